//! A rank that dies or hangs loses nothing but the step that was under way.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;
use std::time::Duration;

use common::engine::{Engine, files, load, samples, saved, saved_model, step, tensors};
use policy::checkpoint;
use policy::config::ModelConfig;
use serde_json::json;

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
