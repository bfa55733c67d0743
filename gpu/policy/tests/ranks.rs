//! Several processes that train and sample together: the same as one, whatever is cut where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::engine::{Engine, engine, files, load, samples, saved_model, step, tensors};
use policy::checkpoint;
use serde_json::{Value, json};

/// Twenty steps on `world` ranks: reports, and where it was saved.
fn train(dir: &Path, model: &Path, world: usize, kind: &str) -> (Vec<Value>, PathBuf) {
    let mut e = Engine::start(world, &[]);
    e.ok(&load(model, json!({"dtype": kind})));
    e.ok(&json!({"op": "load", "slot": "ref", "dir": model, "dtype": kind}));
    let batch = samples(9);
    let reports = (0..20).map(|_| e.ok(&step(&batch))).collect();
    let saved = dir.join(format!("{kind}-{world}"));
    let save = json!({"op": "save", "slot": "a", "dir": saved, "optimizer": true});
    e.ok(&save);
    // What was saved is read again as it was, whoever reads it.
    let mut resume = load(&saved, json!({"dtype": kind}));
    resume["optimizer"] = json!(saved.join(checkpoint::OPTIMIZER_FILE));
    assert_eq!(e.ok(&resume)["step"], 20);
    let again = dir.join(format!("{kind}-{world}-again"));
    e.ok(&json!({"op": "save", "slot": "a", "dir": again, "optimizer": true}));
    assert_eq!(files(&saved), files(&again));
    e.close();
    (reports, saved)
}

fn number(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"))
}

/// Loss, divergence and norm of every step within `tolerance` of one rank's, and weights and moments.
fn agrees_with_one(kind: &str, tolerance: f64) {
    let dir = tempfile::tempdir().unwrap();
    let model = saved_model(dir.path());
    let (alone, saved) = train(dir.path(), &model, 1, kind);
    assert!(number(&alone[19], "kl") > 0.01, "it trains: {}", alone[19]);
    let mut most = [0_f64; 2];
    for world in [2, 3, 4] {
        let (reports, shared) = train(dir.path(), &model, world, kind);
        for (i, (one, all)) in alone.iter().zip(&reports).enumerate() {
            for key in ["loss", "kl", "grad_norm", "mismatch_kl", "entropy"] {
                let (a, b) = (number(one, key), number(all, key));
                let off = (a - b).abs() / a.abs().max(1e-2);
                most[0] = most[0].max(off);
                assert!(off < tolerance, "{world} ranks, step {i}: {key} is {b} and not {a}");
            }
            assert_eq!(one["tokens"], all["tokens"]);
        }
        for file in ["model.safetensors", checkpoint::OPTIMIZER_FILE] {
            for ((name, a), (other, b)) in
                tensors(&saved.join(file)).iter().zip(&tensors(&shared.join(file)))
            {
                assert_eq!(name, other);
                let off = common::relative(b, a);
                most[1] = most[1].max(off);
                assert!(off < 100.0 * tolerance, "{world} ranks: {name} is off by {off:e}");
            }
        }
    }
    eprintln!(
        "{kind}: figures off by {:.1e} at most, weights and moments by {:.1e}",
        most[0], most[1]
    );
}

#[test]
fn twenty_steps_are_the_same_on_any_number_of_ranks() {
    agrees_with_one("f32", 1e-5);
}

#[test]
fn a_split_master_is_divided_too() {
    // The packs are the same, so only sums of float32 differ.
    agrees_with_one("bf16", 1e-4);
}

#[test]
fn an_error_on_all_ranks_leaves_them_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let model = saved_model(dir.path());
    let mut e = Engine::start(2, &[]);
    let kind = |reply: Value| reply["error"]["kind"].as_str().unwrap_or_default().to_owned();
    assert_eq!(kind(e.ask(&load(&dir.path().join("none"), json!({})))), "missing");
    assert_eq!(kind(e.ask(&load(&model, json!({"device": "cuda:0"})))), "request");
    assert_eq!(kind(e.ask(&step(&samples(1)))), "slot");
    e.ok(&load(&model, json!({})));
    e.ok(&json!({"op": "load", "slot": "ref", "dir": model}));
    let mut bad = step(&samples(1));
    bad["samples"][0]["advantage"] = 1e300.into();
    assert_eq!(kind(e.ask(&bad)), "not_finite");
    bad["samples"][0]["tokens"] = json!([]);
    assert_eq!(kind(e.ask(&bad)), "request");
    let to = dir.path().join("saved");
    assert_eq!(
        kind(e.ask(&json!({"op": "save", "slot": "ref", "dir": to, "optimizer": true}))),
        "slot"
    );
    std::fs::write(&to, "a file").unwrap();
    assert_eq!(
        kind(e.ask(&json!({"op": "save", "slot": "a", "dir": to, "optimizer": true}))),
        "io"
    );
    // One pack: a rank has nothing to do, and the step is taken all the same.
    assert_eq!(e.ok(&step(&samples(1)))["step"], 1);
    e.ok(&json!({"op": "unload", "slot": "ref"}));
    assert_eq!(e.ok(&json!({"op": "info"}))["slots"].as_array().unwrap().len(), 1);
    let ask = json!({"op": "generate", "slot": "a", "max_new_tokens": 4,
        "prompts": [{"text": "hi", "seeds": [1]}]});
    assert_eq!(e.ok(&ask)["prompts"].as_array().unwrap().len(), 1);
    e.close();
}

#[test]
fn all_ranks_sample_and_say_what_one_would() {
    let dir = tempfile::tempdir().unwrap();
    let model = saved_model(dir.path());
    let ask = |more: Value| {
        let prompts: Vec<Value> = (0..7_u64)
            .map(|i| json!({"text": format!("{i} a"), "seeds": [i, 100 + i, 200 + i]}))
            .collect();
        let mut ask = json!({"op": "generate", "slot": "a", "max_new_tokens": 20, "max_batch": 4,
            "prompts": prompts});
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask
    };
    let open = |world: usize| {
        let mut e = Engine::start(world, &[]);
        e.ok(&json!({"op": "load", "slot": "a", "dir": model}));
        e
    };
    let mut one = open(1);
    let wanted = one.ok(&ask(json!({})));
    for world in [2, 3] {
        let mut e = open(world);
        for stream in [false, true] {
            e.send(&ask(json!({"stream": stream})));
            let mut streamed = Vec::new();
            let mut found = loop {
                let line = e.reply();
                if line.get("ok").is_some() {
                    break line;
                }
                streamed.push(line);
            };
            assert_eq!(streamed.len(), if stream { 21 } else { 0 });
            streamed.sort_by_key(|line| line["index"].as_u64());
            for mut line in streamed {
                let prompt = line["prompt"].as_u64().unwrap() as usize;
                let samples = found["prompts"][prompt]["samples"].as_array_mut().unwrap();
                samples.push(line["sample"].take());
            }
            assert_eq!(found["tokens"], wanted["tokens"]);
            let lists = |v: &Value| v["prompts"].as_array().unwrap().clone();
            for (a, b) in lists(&wanted).iter().zip(&lists(&found)) {
                assert_eq!(a["prompt_tokens"], b["prompt_tokens"]);
                let samples = |v: &Value| v["samples"].as_array().unwrap().clone();
                assert_eq!((samples(a).len(), samples(b).len()), (3, 3));
                for (a, b) in samples(a).iter().zip(&samples(b)) {
                    assert_eq!((&a["tokens"], &a["finish"]), (&b["tokens"], &b["finish"]));
                    let scores = |v: &Value| -> Vec<f64> {
                        let list = v["logprobs"].as_array().unwrap().iter();
                        list.map(|x| x.as_f64().unwrap()).collect()
                    };
                    assert!(scores(a).iter().zip(scores(b)).all(|(a, b)| (a - b).abs() < 1e-4));
                }
            }
        }
        // What fails on another rank fails the whole, and leaves nothing behind.
        let mut long = ask(json!({}));
        long["prompts"][1] = json!({"tokens": vec![5; 100], "seeds": [1]});
        let reply = e.ask(&long);
        let text = reply["error"]["message"].as_str().unwrap_or_default();
        assert!(reply["error"]["kind"] == "rank" && text.contains("rank 1"), "{reply}");
        // Of two lines sent at once the second ends the first, unless that is quicker.
        e.send(&ask(json!({})));
        let (first, second) = (e.ask(&json!({"op": "cancel"})), e.reply());
        assert!(first["error"]["kind"] == "cancelled" || first["ok"] == true, "{first}");
        assert_eq!(second["ok"], true);
        assert_eq!(e.ok(&ask(json!({})))["tokens"], wanted["tokens"]);
        let one = json!({"op": "generate", "slot": "a", "max_new_tokens": 4,
            "prompts": [{"text": "hi", "seeds": [1]}]});
        assert_eq!(e.ok(&one)["prompts"].as_array().unwrap().len(), 1, "others have nothing to do");
        e.close();
    }
}

#[test]
fn an_adapter_is_divided_and_saved() {
    let dir = tempfile::tempdir().unwrap();
    let model = saved_model(dir.path());
    let lora = json!({"r": 4, "alpha": 8.0, "dropout": 0.1, "targets": ["q_proj", "down_proj"]});
    let train = |world: usize| {
        let mut e = Engine::start(world, &[]);
        e.ok(&load(&model, json!({"lora": lora})));
        let mut ask = step(&samples(6));
        ask.as_object_mut().unwrap().remove("reference_slot");
        let losses: Vec<f64> = (0..5).map(|_| number(&e.ok(&ask), "loss")).collect();
        let to = dir.path().join(format!("adapter-{world}"));
        e.ok(&json!({"op": "save", "slot": "a", "dir": to, "optimizer": true}));
        (losses, tensors(&to.join("adapter_model.safetensors")))
    };
    let (losses, weights) = train(1);
    for world in [2, 3] {
        let (shared, theirs) = train(world);
        for (a, b) in losses.iter().zip(&shared) {
            assert!((a - b).abs() < 1e-5 * a.abs().max(0.1), "{world} ranks: {b} is not {a}");
        }
        for ((name, a), (_, b)) in weights.iter().zip(&theirs) {
            assert!(common::relative(b, a) < 1e-3, "{name}");
        }
    }
}

#[test]
fn devices_that_make_no_sense_are_refused_before_anything_starts() {
    for (ranks, word) in [("cpu,cuda:0", "cuda:0"), ("", "device"), ("cpu,gpu", "gpu")] {
        let run = Command::new(engine())
            .args(["serve", "--ranks", ranks])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success() && text.contains(word), "{ranks}: {text}");
    }
}
