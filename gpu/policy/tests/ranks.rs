//! Several processes that train together: the same as one, whatever is cut where, and nothing is lost
//! with one that dies.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use policy::config::ModelConfig;
use policy::{Open, Policy, checkpoint};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

/// `KERNELZERO_ENGINE`, or what was built beside this test.
fn engine() -> PathBuf {
    let built = || env!("CARGO_BIN_EXE_kernelzero-engine").into();
    std::env::var_os("KERNELZERO_ENGINE").map_or_else(built, PathBuf::from)
}

struct Engine {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Engine {
    fn start(world: usize, more: &[&str]) -> Self {
        Self::on(&vec!["cpu"; world].join(","), more)
    }

    fn on(devices: &str, more: &[&str]) -> Self {
        let mut child = Command::new(engine())
            .args(["serve", "--ranks", devices])
            .args(more)
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Engine { input: child.stdin.take(), child, output }
    }

    fn send(&mut self, request: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{request}").unwrap();
    }

    fn reply(&mut self) -> Value {
        let mut reply = String::new();
        self.output.read_line(&mut reply).unwrap();
        serde_json::from_str(&reply).unwrap_or_else(|e| panic!("{e}: `{reply}`"))
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.reply()
    }

    #[track_caller]
    fn ok(&mut self, request: &Value) -> Value {
        let reply = self.ask(request);
        assert_eq!(reply["ok"], true, "{reply}");
        reply
    }

    /// Ends it as a parent does.
    fn close(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }

    /// The other ranks' processes, in order.
    fn others(&self) -> Vec<u32> {
        let id = self.child.id();
        let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        list.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn saved_model(dir: &Path) -> PathBuf {
    saved(dir, &common::tiny())
}

fn saved(dir: &Path, shape: &ModelConfig) -> PathBuf {
    let tokenizer = dir.join("tokenizer");
    policy::bpe::train(["a b".to_owned()].into_iter(), 260, &tokenizer).unwrap();
    let shape = |vocab| ModelConfig { vocab, ..shape.clone() };
    let open = Open { device: Device::Cpu, kind: None, trainable: false };
    let policy = Policy::random(&tokenizer, shape, 1, open).unwrap();
    let model = dir.join("model");
    checkpoint::save(&policy, None, &model, Kind::Float).unwrap();
    model
}

/// `groups` prompts with three answers each, of lengths that differ.
fn samples(groups: u32) -> Value {
    let one = |i: u32| {
        let (group, n) = (i / 3, 2 + i * 5 % 17);
        let prompt: Vec<u32> = (0..3 + group % 4).map(|j| 10 + (group * 7 + j) % 200).collect();
        let tokens: Vec<u32> = (0..n).map(|j| 10 + (i * 13 + j * j) % 200).collect();
        let logprobs: Vec<f32> = (0..n).map(|j| -4.0 - (j % 3) as f32 / 2.0).collect();
        json!({"prompt_tokens": prompt, "tokens": tokens, "logprobs": logprobs,
            "advantage": f64::from(i % 3) - 1.0})
    };
    (0..3 * groups).map(one).collect()
}

fn load(model: &Path, more: Value) -> Value {
    let mut load = json!({"op": "load", "slot": "a", "dir": model, "trainable": true});
    load.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    load
}

fn step(samples: &Value) -> Value {
    json!({"op": "grpo", "slot": "a", "reference_slot": "ref", "samples": samples, "lr": 1e-3,
        "kl": 0.1, "micro_tokens": 48, "aggregate": "token-mean"})
}

/// All files of a checkpoint with their bytes.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let names = ["config.json", "model.safetensors", checkpoint::OPTIMIZER_FILE];
    names.map(|n| (n.to_owned(), std::fs::read(dir.join(n)).unwrap())).into()
}

fn tensors(file: &Path) -> Vec<(String, Tensor)> {
    let mut all = Tensor::read_safetensors(file).unwrap();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

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

/// One of the ranks on `devices` is killed at several moments of a step, which is then done again from
/// what was saved before it; `compare` is handed the folders of that and of an undisturbed one.
fn killed(devices: &str, shape: &ModelConfig, compare: impl Fn(&Path, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let model = saved(dir.path(), shape);
    let first = devices.split(',').next().unwrap();
    let start = || {
        let mut e = Engine::on(devices, &[]);
        e.ok(&json!({"op": "load", "slot": "ref", "dir": model, "device": first}));
        e
    };
    let save = |name: &str| json!({"op": "save", "slot": "a", "dir": dir.path().join(name), "optimizer": true});
    let resume = |name: &str| {
        let optimizer = dir.path().join(name).join(checkpoint::OPTIMIZER_FILE);
        load(&dir.path().join(name), json!({"optimizer": optimizer, "device": first}))
    };
    // Long enough to be met in the middle.
    let long = samples(400);

    let mut calm = start();
    calm.ok(&load(&model, json!({"device": first})));
    calm.ok(&step(&long));
    calm.ok(&save("calm-1"));
    let began = std::time::Instant::now();
    calm.ok(&step(&long));
    let usual = began.elapsed();
    calm.ok(&save("calm-2"));
    calm.close();

    for part in [0.2, 0.6, 0.95] {
        let mut e = start();
        e.ok(&resume("calm-1"));
        let others = e.others();
        assert_eq!(others.len(), devices.split(',').count() - 1);
        let victim = (part * 10.0) as usize % others.len();
        e.send(&step(&long));
        std::thread::sleep(usual.mul_f64(part));
        // SAFETY: a signal to a process of this test.
        unsafe { libc::kill(others[victim] as i32, libc::SIGKILL) };
        let reply = e.reply();
        if reply["ok"] == true {
            // It was quicker than usual: then the step is whole.
            assert!(part > 0.9, "{reply}");
            continue;
        }
        assert_eq!(reply["error"]["kind"], "rank_lost", "{reply}");
        let text = reply["error"]["message"].as_str().unwrap();
        let named = text.contains(&format!("rank {}", victim + 1)) && text.contains("signal 9");
        assert!(named, "{text}");
        // It ends, and so do the ranks that were left.
        assert!(!e.child.wait().unwrap().success());
        for other in others {
            assert!(gone(other), "process {other} is still there");
        }
        let mut next = start();
        next.ok(&resume("calm-1"));
        next.ok(&step(&long));
        next.ok(&save("redone"));
        compare(&dir.path().join("redone"), &dir.path().join("calm-2"));
        next.close();
    }
}

#[test]
fn a_rank_that_is_killed_in_mid_step_loses_nothing() {
    let same = |redone: &Path, calm: &Path| assert_eq!(files(redone), files(calm));
    killed("cpu,cpu,cpu", &common::tiny(), same);
}

#[test]
#[ignore = "needs two GPUs"]
fn on_gpus_a_rank_that_is_killed_in_mid_step_loses_nothing() {
    // What the kernels of a GPU serve.
    let shape = ModelConfig { hidden: 256, ffn: 512, head_dim: 64, context: 128, ..common::tiny() };
    killed("cuda:0,cuda:1", &shape, |redone, calm| {
        let read = |dir: &Path| tensors(&dir.join("model.safetensors"));
        for ((name, a), (_, b)) in read(calm).iter().zip(&read(redone)) {
            // The attention of a GPU adds in any order; a step of 1e-3 turns where a gradient is none.
            let off = common::relative(b, a);
            assert!(off < 2e-2, "{name} is off by {off:e}");
        }
    });
}

/// Whether a process ends within a few seconds (a zombie has).
fn gone(process: u32) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let state = std::fs::read_to_string(format!("/proc/{process}/stat"));
        state.map_or(true, |s| s.rsplit(") ").next().is_some_and(|s| s.starts_with('Z')))
    })
}

#[test]
fn a_rank_that_hangs_is_named_and_one_that_is_orphaned_ends() {
    let dir = tempfile::tempdir().unwrap();
    let model = saved_model(dir.path());
    let mut e = Engine::start(3, &["--rank-deadline", "20"]);
    e.ok(&load(&model, json!({})));
    let others = e.others();
    // SAFETY: a signal to a process of this test.
    unsafe { libc::kill(others[1] as i32, libc::SIGSTOP) };
    let mut ask = step(&samples(2));
    ask["kl"] = 0.0.into();
    let reply = e.ask(&ask);
    assert_eq!(reply["error"]["kind"], "rank_lost", "{reply}");
    let text = reply["error"]["message"].as_str().unwrap();
    assert!(text.contains("rank 2") && text.contains("silent"), "{text}");
    assert!(others.into_iter().all(gone));

    let mut e = Engine::start(2, &[]);
    e.ok(&json!({"op": "ping"}));
    let others = e.others();
    e.child.kill().unwrap();
    e.child.wait().unwrap();
    assert!(others.into_iter().all(gone));
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
            let mut streamed = 0;
            let found = loop {
                let line = e.reply();
                if line.get("ok").is_some() {
                    break line;
                }
                streamed += 1;
            };
            assert_eq!(streamed, if stream { 21 } else { 0 });
            assert_eq!(found["tokens"], wanted["tokens"]);
            let lists = |v: &Value| v["prompts"].as_array().unwrap().clone();
            for (a, b) in lists(&wanted).iter().zip(&lists(&found)) {
                assert_eq!(a["prompt_tokens"], b["prompt_tokens"]);
                let samples = |v: &Value| v["samples"].as_array().unwrap().clone();
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
