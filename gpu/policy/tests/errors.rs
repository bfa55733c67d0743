//! Damaged and mismatched folders are refused by name, and nothing is loaded by half.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use policy::config::ModelConfig;
use policy::files::{self, Stored};
use policy::{Open, Policy, Result, checkpoint};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

const OPEN: Open = Open { device: Device::Cpu, kind: None, trainable: false };

/// A sound folder, to be spoilt.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = dir.path().join("tokenizer");
    policy::bpe::train(["a b".to_owned()].into_iter(), 260, &tokenizer).unwrap();
    let shape = |vocab| ModelConfig { vocab, ..common::tiny() };
    let policy = Policy::random(&tokenizer, shape, 1, OPEN).unwrap();
    let model = dir.path().join("model");
    checkpoint::save(&policy, None, &model, Kind::Float).unwrap();
    Policy::open(&model, OPEN).unwrap();
    (dir, model)
}

fn refused(result: Result<Policy>, kind: &str, words: &[&str]) {
    let error = result.err().expect("the folder was accepted");
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(words.iter().all(|w| text.contains(w)), "{text} lacks one of {words:?}");
}

fn edit(path: &Path, f: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    f(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

/// Rewrites the weights with `f` applied to the list of tensors.
fn reweigh(model: &Path, f: impl FnOnce(&mut BTreeMap<String, Tensor>)) {
    let path = model.join("model.safetensors");
    let mut tensors = BTreeMap::new();
    files::visit(&path, |name, t| {
        tensors.insert(name.to_owned(), t);
        Ok(())
    })
    .unwrap();
    f(&mut tensors);
    let stored = |(name, t): (&String, &Tensor)| {
        let t = t.shallow_clone();
        Stored::new(name.clone(), t.size(), Kind::Float, move || Ok(t.shallow_clone()))
    };
    let all: Vec<Stored> = tensors.iter().map(stored).collect();
    files::write(&path, &all, "format", "pt").unwrap();
}

#[test]
fn missing_parts() {
    let (_dir, model) = folder();
    refused(Policy::open(&model.join("no"), OPEN), "missing", &["no"]);
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let (path, aside) = (model.join(name), model.join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        refused(Policy::open(&model, OPEN), "missing", &[name]);
        std::fs::rename(&aside, &path).unwrap();
    }
}

#[test]
fn configs_that_make_no_sense() {
    for (key, value, word) in [
        ("architectures", json!(["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
        ("hidden_size", json!(-1), "hidden_size"),
        ("num_key_value_heads", json!(3), "num_key_value_heads"),
        ("hidden_act", json!("gelu"), "gelu"),
        ("rope_scaling", json!({"rope_type": "yarn"}), "yarn"),
        ("attention_bias", json!(true), "attention_bias"),
        ("layer_types", json!(["full_attention", "sliding_attention"]), "sliding_attention"),
    ] {
        let (_dir, model) = folder();
        edit(&model.join("config.json"), |c| c[key] = value);
        refused(Policy::open(&model, OPEN), "config", &["config.json", word]);
    }
    let (_dir, model) = folder();
    std::fs::write(model.join("config.json"), "{").unwrap();
    refused(Policy::open(&model, OPEN), "json", &["config.json"]);
}

#[test]
fn weights_that_do_not_fit() {
    let name = "model.layers.1.mlp.up_proj.weight";
    let (_dir, model) = folder();
    reweigh(&model, |t| drop(t.remove(name)));
    refused(Policy::open(&model, OPEN), "missing_tensor", &[name]);
    // All that is missing is named, not only the first.
    reweigh(&model, |t| t.retain(|n, _| !n.contains("layers.0.mlp")));
    let all = ["layers.0.mlp.down_proj", "layers.0.mlp.gate_proj", "layers.0.mlp.up_proj", name];
    refused(Policy::open(&model, OPEN), "missing_tensor", &all);

    let (_dir, model) = folder();
    reweigh(&model, |t| drop(t.insert("extra".into(), Tensor::from(1.0))));
    refused(Policy::open(&model, OPEN), "unexpected_tensor", &["extra"]);

    let (_dir, model) = folder();
    reweigh(&model, |t| drop(t.insert(name.into(), Tensor::from_slice(&[1.0, 2.0]))));
    refused(Policy::open(&model, OPEN), "shape", &[name, "[2]", "[64, 32]"]);

    let (_dir, model) = folder();
    reweigh(&model, |t| {
        let _ = t.get_mut(name).unwrap().get(0).fill_(f64::NAN);
    });
    refused(Policy::open(&model, OPEN), "weights_not_finite", &[name]);

    let (_dir, model) = folder();
    let path = model.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    refused(Policy::open(&model, OPEN), "safetensors", &["model.safetensors"]);
}

#[test]
fn tokenizers_that_do_not_fit() {
    let (_dir, model) = folder();
    edit(&model.join("config.json"), |c| c["vocab_size"] = json!(100));
    refused(Policy::open(&model, OPEN), "tokenizer", &["259", "100 rows"]);

    let (_dir, model) = folder();
    edit(&model.join("tokenizer_config.json"), |c| c["eos_token"] = json!("<|stop|>"));
    refused(Policy::open(&model, OPEN), "tokenizer", &["<|stop|>"]);

    let (_dir, model) = folder();
    edit(&model.join("tokenizer_config.json"), |c| c["eos_token"] = Value::Null);
    edit(&model.join("config.json"), |c| c["eos_token_id"] = Value::Null);
    refused(Policy::open(&model, OPEN), "tokenizer", &["end-of-answer"]);

    let (_dir, model) = folder();
    edit(&model.join("tokenizer_config.json"), |c| c["chat_template"] = Value::Null);
    let error = Policy::open(&model, OPEN).unwrap().text.chat("hello").unwrap_err();
    assert_eq!(error.kind(), "chat_template");
}

#[test]
fn devices_that_are_not_there() {
    for word in ["gpu", "cuda:x", "cuda:99"] {
        assert_eq!(policy::policy::device(word).unwrap_err().kind(), "request");
    }
}
