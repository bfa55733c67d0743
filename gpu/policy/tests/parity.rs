//! The same weights give the same logits as transformers, and the same step as PyTorch.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::HashMap;
use std::path::Path;

use policy::grpo::{self, Graded, Old, Options};
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

fn logits_agree(fixture: &str) {
    let dir = tempfile::tempdir().unwrap();
    common::run_python("fixtures.py", &[fixture, dir.path().to_str().unwrap()]);
    let model = common::open(dir.path(), false).unwrap();
    let expected = tensors(&dir.path().join("expected.safetensors"));
    let ids = expected["ids"].to_kind(Kind::Int64);
    let hidden = model.hidden(&ids).unwrap();
    let logits = model.logits(&hidden.reshape([-1, model.config.hidden])).unwrap();
    let wanted = &expected["logits"];
    let difference = common::relative(&logits.view_as(wanted), wanted);
    assert!(difference < 1e-4, "{fixture}: logits differ by {difference}");
}

/// Llama with an untied head, Llama 3's rope scaling and sharded files.
#[test]
fn llama_logits_agree_with_transformers() {
    logits_agree("llama");
}

/// Qwen2 with biases and a tied head.
#[test]
fn qwen2_logits_agree_with_transformers() {
    logits_agree("qwen2");
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
        kl: option("kl"),
        clip: option("clip"),
        temperature: option("temperature"),
        // Small enough that the samples fall into several rectangles.
        micro_tokens: 24,
        old: Old::Sampler,
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
