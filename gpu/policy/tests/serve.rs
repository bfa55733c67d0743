//! The engine as its parent sees it: a process that answers lines.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::io::{BufRead, Write};

use common::engine::{Engine, saved_model};
use policy::checkpoint;
use serde_json::{Value, json};

#[test]
fn answers_are_streamed_stopped_and_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let model = saved_model(dir.path());
    let mut e = Engine::alone();
    e.ok(&json!({"op": "load", "slot": "a", "dir": model}));
    let ask = |more: Value| {
        let mut ask = json!({"op": "generate", "slot": "a", "max_new_tokens": 30, "max_batch": 2,
            "prompts": [{"text": "hi", "seeds": [1, 2, 3]}, {"text": "ho", "seeds": [4]}]});
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask
    };
    let plain = e.ok(&ask(json!({})));
    writeln!(e.input.as_mut().unwrap(), "{}", ask(json!({"stream": true, "id": "x"}))).unwrap();
    let mut streamed = Vec::new();
    let reply = loop {
        let mut line = String::new();
        e.output.read_line(&mut line).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["id"], "x");
        if line.get("ok").is_some() {
            break line;
        }
        streamed.push(line);
    };
    assert_eq!(reply["tokens"], plain["tokens"]);
    assert_eq!(streamed.len(), 4);
    for s in &streamed {
        let at = |key: &str| s[key].as_u64().unwrap() as usize;
        let prompt = &plain["prompts"][at("prompt")];
        assert_eq!(s["sample"], prompt["samples"][at("index")], "streaming changes nothing");
        assert_eq!(s["prompt_tokens"], prompt["prompt_tokens"]);
    }
    for prompt in reply["prompts"].as_array().unwrap() {
        assert_eq!(prompt["samples"], json!([]), "they are not said twice");
    }

    // A string in the middle of an answer ends it there. The model says any bytes: a letter is sure
    // to be one in any context.
    let whole = plain["prompts"][0]["samples"][0]["text"].as_str().unwrap();
    let letter = whole.chars().skip(1).find(char::is_ascii_graphic).unwrap().to_string();
    let stopped = e.ok(&ask(json!({"stop": [letter]})));
    let answer = &stopped["prompts"][0]["samples"][0];
    let until = whole.find(&letter).unwrap() + 1;
    assert_eq!(answer["text"].as_str().unwrap(), &whole[..until]);
    assert_eq!(answer["finish"], "stop");
    assert_eq!(e.error(ask(json!({"stop": [""]}))), "request");

    // Both lines are sent at once; only if the second is read late do the answers come all the same.
    let input = e.input.as_mut().unwrap();
    write!(input, "{}\n{}\n", ask(json!({})), json!({"op": "cancel", "id": 9})).unwrap();
    let mut replies = String::new();
    e.output.read_line(&mut replies).unwrap();
    e.output.read_line(&mut replies).unwrap();
    let mut lines = replies.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    let (first, second) = (lines.next().unwrap(), lines.next().unwrap());
    assert!(first["error"]["kind"] == "cancelled" || first["ok"] == true, "{first}");
    assert_eq!((&second["id"], &second["ok"]), (&json!(9), &json!(true)));
    assert_eq!(e.ok(&ask(json!({})))["prompts"], plain["prompts"], "and nothing is left over");
}

#[test]
fn a_session() {
    let dir = tempfile::tempdir().unwrap();
    let model = saved_model(dir.path());

    let mut e = Engine::alone();
    assert_eq!(e.ok(&json!({"op": "ping", "id": 7}))["id"], 7);
    assert_eq!(e.line("nonsense")["error"]["kind"], "request");
    assert_eq!(e.error(json!({"op": "dance"})), "request");
    assert_eq!(e.error(json!({"op": "load", "slot": "a", "dir": "nowhere"})), "missing");
    let load = |slot: &str, trainable: bool| json!({"op": "load", "slot": slot, "dir": model, "trainable": trainable});
    assert_eq!(e.ok(&load("a", true))["trainable"], true);
    e.ok(&load("ref", false));

    let ask = |seeds: Value| {
        json!({"op": "generate", "slot": "a", "prompts": [{"text": "hi", "seeds": seeds}],
            "temperature": 1.0, "top_k": 20, "top_p": 0.95, "max_new_tokens": 8, "max_batch": 4})
    };
    let numbers = e.ok(&ask(json!([u64::MAX, u64::MAX - 1])));
    let texts = e.ok(&ask(json!(["18446744073709551615", "18446744073709551614"])));
    assert_eq!(numbers["prompts"], texts["prompts"]);
    let prompt = &numbers["prompts"][0];
    assert_ne!(prompt["samples"][0]["tokens"], prompt["samples"][1]["tokens"]);
    assert_eq!(e.error(ask(json!([-1]))), "request");

    let samples: Vec<Value> = prompt["samples"]
        .as_array()
        .unwrap()
        .iter()
        .zip([1.0, -1.0])
        .map(|(s, advantage)| {
            json!({"prompt_tokens": prompt["prompt_tokens"], "tokens": s["tokens"],
                "logprobs": s["logprobs"], "advantage": advantage})
        })
        .collect();
    let train = |slot: &str| json!({"op": "grpo", "slot": slot, "reference_slot": "ref", "samples": samples, "lr": 1e-3});
    let report = e.ok(&train("a"));
    assert!(report["mismatch_kl"].as_f64().unwrap() < 1e-6, "{report}");
    assert!(report["kl"].as_f64().unwrap() < 1e-6, "the reference equals the start");
    assert!(e.ok(&train("a"))["kl"].as_f64().unwrap() > 1e-6, "and no longer after a step");
    assert_eq!(e.error(train("ref")), "slot");

    let saved = dir.path().join("saved");
    e.ok(&json!({"op": "save", "slot": "a", "dir": saved, "optimizer": true}));
    let parts = dir.path().join("parts");
    e.ok(&json!({"op": "save", "slot": "a", "dir": parts, "shard_bytes": 4096}));
    assert!(parts.join("model.safetensors.index.json").is_file());
    e.ok(&json!({"op": "save", "slot": "a", "dir": parts, "shard_bytes": u64::MAX}));
    assert!(parts.join("model.safetensors").is_file());
    let resumed = e.ok(&json!({"op": "load", "slot": "b", "dir": saved, "trainable": true,
        "optimizer": saved.join(checkpoint::OPTIMIZER_FILE)}));
    assert_eq!(resumed["step"], 2);
    e.ok(&json!({"op": "unload", "slot": "b"}));
    assert_eq!(e.ok(&json!({"op": "info"}))["slots"].as_array().unwrap().len(), 2);

    drop(e.input.take());
    assert!(e.child.wait().unwrap().success());
}

#[test]
fn an_adapter_is_trained_sampled_saved_and_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let model = saved_model(dir.path());
    let mut e = Engine::alone();
    let samples = json!([
        {"prompt_tokens": [5, 9], "tokens": [7, 8, 3], "logprobs": [-4.0, -4.0, -4.0], "advantage": 1.0},
        {"prompt_tokens": [5, 9], "tokens": [20, 3], "logprobs": [-4.0, -4.0], "advantage": -1.0},
    ]);
    // An adapter beside frozen weights, its base the reference; sampling merges it, training unmerges.
    let lora = json!({"r": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]});
    let with = json!({"op": "load", "slot": "l", "dir": model, "trainable": true, "lora": lora});
    assert_eq!(e.ok(&with)["trainable"], true);
    let train = json!({"op": "grpo", "slot": "l", "samples": samples, "lr": 1e-2, "kl": 0.1});
    assert!(e.ok(&train.clone())["kl"].as_f64().unwrap() < 1e-6, "B is zero");
    let ask = json!({"op": "generate", "slot": "l", "prompts": [{"text": "hi", "seeds": [1]}],
        "temperature": 1.0, "max_new_tokens": 8});
    let first = e.ok(&ask.clone());
    assert!(e.ok(&train)["kl"].as_f64().unwrap() > 1e-9);
    let second = e.ok(&ask.clone());
    assert_ne!(
        first["prompts"][0]["samples"][0]["logprobs"],
        second["prompts"][0]["samples"][0]["logprobs"]
    );
    // The variants by their names on the wire.
    let mut variant = json!({"op": "grpo", "slot": "l", "samples": samples, "lr": 0.0, "kl": 0.1,
        "ratio": "sequence", "aggregate": {"sample-sum": 20.0}, "clip_high": 0.3, "penalty": "k2",
        "importance_cap": 2.0, "entropy": 0.01});
    let report = e.ok(&variant.clone());
    assert!(report["tokens_per_second"].as_f64().unwrap() > 0.0 && report["memory"].is_u64());
    assert!(report["parts"]["backward"].is_f64() && report["mfu"].is_null(), "{report}");
    variant["aggregate"] = "token-mean".into();
    e.ok(&variant.clone());
    variant["clip_high"] = (-1.0).into();
    assert_eq!(e.error(variant), "request");
    let adapter = dir.path().join("adapter");
    e.ok(&json!({"op": "save", "slot": "l", "dir": adapter, "optimizer": true}));
    e.ok(&json!({"op": "load", "slot": "m", "dir": model, "adapter": adapter, "trainable": true,
        "optimizer": adapter.join(checkpoint::OPTIMIZER_FILE)}));
    let mut again = ask;
    again["slot"] = "m".into();
    assert_eq!(e.ok(&again)["prompts"], second["prompts"]);
    assert_eq!(
        e.error(json!({"op": "load", "slot": "x", "dir": model, "hosted": true, "lora": lora,
        "trainable": true})),
        "request"
    );
    e.ok(&json!({"op": "load", "slot": "h", "dir": model, "hosted": true}));
}
