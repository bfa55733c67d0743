//! The same weights give the same logits as transformers, and the same step as PyTorch.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::HashMap;
use std::path::Path;

use policy::grpo::{self, Graded, Objective, Old, Options};
use policy::optim::{AdamW, Update};
use serde_json::Value;
use tch::{Kind, Tensor};

fn tensors(path: &Path) -> HashMap<String, Tensor> {
    let mut out = HashMap::new();
    policy::files::visit(path, |name, tensor| {
        out.insert(name.to_owned(), tensor);
        Ok(())
    })
    .unwrap();
    out
}

/// Logits and the gradient of every tensor, in float32 and in bfloat16.
fn agrees(fixture: &str) {
    let dir = tempfile::tempdir().unwrap();
    common::run_python("fixtures.py", &[fixture, dir.path().to_str().unwrap()]);
    let expected = tensors(&dir.path().join("expected.safetensors"));
    let gradients = tensors(&dir.path().join("gradients.safetensors"));
    let rows: Vec<Vec<i64>> = Vec::try_from(expected["ids"].to_kind(Kind::Int64)).unwrap();
    let sequence = |row: &Vec<i64>| policy::batch::Sequence {
        tokens: row.iter().map(|&t| t as u32).collect(),
        prompt: 1,
    };
    let sequences: Vec<_> = rows.iter().map(sequence).collect();
    let sequences: Vec<_> = sequences.iter().collect();
    for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 2e-2)] {
        let config = policy::config::ModelConfig::read(dir.path()).unwrap();
        let device = tch::Device::Cpu;
        let params = policy::params::Params::read(dir.path(), &config, kind, device, true).unwrap();
        let model = policy::model::Model::new(config, params).unwrap();
        let ids = expected["ids"].to_kind(Kind::Int64);
        let hidden = tch::no_grad(|| model.hidden(&ids).unwrap());
        let logits = model.logits(&hidden.reshape([-1, model.config.hidden])).unwrap();
        let wanted = &expected["logits"];
        let difference = common::relative(&logits.view_as(wanted), wanted);
        assert!(difference < tolerance, "{fixture} {kind:?}: logits differ by {difference}");

        let grads = common::packed_gradient(&model, &sequences, u64::MAX);
        let mut found = HashMap::new();
        for (spec, at) in
            model.params.specs.iter().flat_map(|s| s.places()).map(|(p, s, at)| ((p, s), at))
        {
            let (part, shape) = spec;
            let n = shape.iter().product();
            found.insert(part.name.clone(), grads.narrow(0, at, n).view(&shape[..]));
        }
        assert_eq!(found.len(), gradients.len());
        for (name, wanted) in &gradients {
            let difference = common::relative(&found[name], wanted);
            let tolerance = if kind == Kind::Float { 1e-5 } else { 6e-2 };
            assert!(difference < tolerance, "{fixture} {kind:?}: {name} differs by {difference}");
        }
    }
}

/// Llama with an untied head, Llama 3's rope scaling and sharded files.
#[test]
fn llama_agrees_with_transformers() {
    agrees("llama");
}

/// Qwen2 with biases and a tied head.
#[test]
fn qwen2_agrees_with_transformers() {
    agrees("qwen2");
}

/// Qwen3 with norms of heads, wider than the residual stream.
#[test]
fn qwen3_agrees_with_transformers() {
    agrees("qwen3");
}

#[test]
fn a_grpo_step_agrees_with_pytorch() {
    let dir = tempfile::tempdir().unwrap();
    common::run_python("fixtures.py", &["grpo", dir.path().to_str().unwrap()]);
    let text = std::fs::read_to_string(dir.path().join("grpo.json")).unwrap();
    let mut fixture: Value = serde_json::from_str(&text).unwrap();
    let samples: Vec<Graded> = serde_json::from_value(fixture["samples"].take()).unwrap();
    let number = |part: &str, key: &str| fixture[part][key].as_f64().unwrap();
    let option = |key: &str| number("options", key);
    let mut model = common::open(&dir.path().join("model"), true).unwrap();
    let reference = common::open(&dir.path().join("reference"), false).unwrap();
    let mut optim = AdamW::new(&model.params).unwrap();
    let options = Options {
        update: Update {
            lr: option("lr"),
            weight_decay: option("weight_decay"),
            grad_clip: option("grad_clip"),
        },
        objective: Objective { kl: option("kl"), clip: option("clip"), ..Objective::default() },
        temperature: option("temperature"),
        // Small enough that the samples fall into several packs.
        micro_tokens: 24,
        old: Old::Sampler,
        memory: u64::MAX,
    };
    let report = grpo::step(&mut model, &mut optim, Some(&reference), &samples, &options).unwrap();
    for (key, found) in [
        ("loss", report.loss),
        ("kl", report.kl),
        ("clip_fraction", report.clip_fraction),
        ("mismatch_kl", report.mismatch_kl),
        ("entropy", report.entropy),
        ("grad_norm", report.grad_norm),
    ] {
        let wanted = number("expected", key);
        let close = (found - wanted).abs() <= 1e-4 * wanted.abs().max(1e-2);
        assert!(close, "{key} is {found}, PyTorch has {wanted}");
    }
    let after = common::open(&dir.path().join("after"), false).unwrap();
    let difference = common::relative(&model.params.flat.detach(), &after.params.flat);
    assert!(difference < 1e-5, "weights after the step differ by {difference}");
}
