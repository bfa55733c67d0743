//! The engine's port with several ranks: a rank that dies fails the job as the world's fault, and the
//! job done again comes to the same weights.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cli;

use std::time::{Duration, Instant};

use actors::ports::{Engine, TrainJob, Trained, Weights};
use events::config::{OldLogprobs, Variant};
use events::ids::{PolicyVersion, Role};
use events::sample::{Sample, Sampling};
use kernelzero::engine::ChildEngine;
use kernelzero::host::HostConfig;
use store::Home;

fn job(home: &Home, samples: u32) -> TrainJob {
    let blobs = home.blobs().unwrap();
    let folder = cli::root().join("configs/policies/proposer");
    let names = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
    let put = |name: &str| (name.to_owned(), blobs.put_file(&folder.join(name)).unwrap());
    let weights = Weights {
        policy: PolicyVersion { role: Role::Proposer, steps: 0 },
        files: names.map(put).into(),
    };
    let sampling = Sampling { temperature: 0.8, top_p: 0.95, top_k: 0 };
    let one = |i: u32| {
        let n = 40 + i % 30;
        let sample = Sample {
            prompt: "p".into(),
            prompt_tokens: (0..30).map(|j| 20 + (i / 4 + j) % 400).collect(),
            text: "t".into(),
            tokens: (0..n).map(|j| 20 + (i * 7 + j * 3) % 400).collect(),
            logprobs: vec![-5.0; n as usize],
            truncated_logprobs: vec![-5.0; n as usize],
            sampling,
        };
        (f64::from(i % 4) - 1.5, sample)
    };
    TrainJob {
        reference: weights.clone(),
        weights,
        samples: (0..samples).map(one).collect(),
        learning_rate: 1e-4,
        weight_decay: 0.01,
        grad_clip: 1.0,
        kl_coefficient: 0.01,
        clip_ratio: 0.2,
        micro_tokens: 512,
        old_logprobs: OldLogprobs::Recompute,
        variant: Variant::default(),
    }
}

fn children(of: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
    list.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The second rank of an engine that this test's threads have started.
fn second_rank() -> Option<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let lists = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    let engines: Vec<u32> = lists
        .flat_map(|l| l.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|word| word.parse().ok())
        .collect();
    engines.into_iter().find_map(|engine| children(engine).first().copied())
}

fn same(a: &Trained, b: &Trained) {
    assert_eq!(a.files, b.files, "weights and optimizer, byte for byte");
    assert_eq!(a.update, b.update);
}

#[test]
fn a_step_whose_rank_is_killed_is_done_again_to_the_same_weights() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::open(dir.path()).unwrap();
    let ranks = vec!["cpu".to_owned(), "cpu".to_owned()];
    let engine = std::path::Path::new(cli::KERNELZERO).with_file_name("kernelzero-engine");
    let host = HostConfig { ranks, engine: Some(engine), ..HostConfig::default() };
    let job = job(&home, 120);
    let engine = |name: &str| {
        let folder = dir.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        ChildEngine::new(&host, home.blobs().unwrap(), &folder).unwrap()
    };
    let mut calm = engine("calm");
    let began = Instant::now();
    let undisturbed = calm.train(&job).unwrap();
    let usual = began.elapsed();
    drop(calm);

    let mut disturbed = engine("disturbed");
    let (failed, again) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let second = loop {
                match second_rank() {
                    Some(id) => break id,
                    None => std::thread::sleep(Duration::from_millis(20)),
                }
            };
            // Past the start and the loading, before the end.
            std::thread::sleep(usual.mul_f64(0.6));
            let second = nix::unistd::Pid::from_raw(second as i32);
            nix::sys::signal::kill(second, nix::sys::signal::Signal::SIGKILL).unwrap();
        });
        let failed = disturbed.train(&job);
        (failed, disturbed.train(&job))
    });
    let failed = failed.unwrap_err().0;
    assert!(failed.contains("rank 1 is lost") && failed.contains("signal 9"), "{failed}");
    same(&again.unwrap(), &undisturbed);
}
