//! The engine's port: ranks that die, adapters, a reference in the host's memory, samples as they are
//! finished.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cli;
mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actors::ports::{Adapter, Engine, GenerateJob, Prompt, TrainJob, Trained, Weights};
use actors::shells::{Limits, Start, Turn, drive, start};
use actors::{Bus, Shells};
use common::{HashEvidence, HashJudge};
use events::config::{Lora, OldLogprobs, RunConfig, Variant};
use events::event::{Event, InitialPolicy};
use events::ids::{BlobId, PolicyVersion, Role, RunId};
use events::log::{Blobs, Log};
use events::sample::{Sample, Sampling};
use kernelzero::audit::{Since, audit_log};
use kernelzero::effects::{Kind, Sampling as Choice, World as Machine, effects};
use kernelzero::engine::ChildEngine;
use kernelzero::host::HostConfig;
use store::Home;

/// A shipped policy.
fn files(home: &Home, role: Role) -> Vec<(String, BlobId)> {
    let blobs = home.blobs().unwrap();
    let folder = cli::root().join(format!("configs/policies/{role}"));
    let names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let put = |name: &str| (name.to_owned(), blobs.put_file(&folder.join(name)).unwrap());
    names.map(put).into()
}

fn host() -> HostConfig {
    let engine = Path::new(cli::KERNELZERO).with_file_name("kernelzero-engine");
    HostConfig { engine: Some(engine), ..HostConfig::default() }
}

/// An engine with a folder of its own.
fn engine(home: &Home, host: &HostConfig, name: &str) -> ChildEngine {
    let folder = home.run_dir(RunId::new(1, [3; 10])).with_file_name(name);
    std::fs::create_dir_all(&folder).unwrap();
    ChildEngine::new(host, home.blobs().unwrap(), &folder).unwrap()
}

fn job(home: &Home, samples: u32) -> TrainJob {
    let weights = Weights {
        policy: PolicyVersion { role: Role::Proposer, steps: 0 },
        files: files(home, Role::Proposer),
        adapter: None,
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
    let host = HostConfig { ranks: vec!["cpu".to_owned(), "cpu".to_owned()], ..host() };
    let job = job(&home, 120);
    let mut calm = engine(&home, &host, "calm");
    let began = Instant::now();
    let undisturbed = calm.train(&job).unwrap();
    let usual = began.elapsed();
    drop(calm);

    let mut disturbed = engine(&home, &host, "disturbed");
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

const LORA: &str =
    r#"{"r": 4, "alpha": 8.0, "dropout": 0.1, "targets": ["q_proj", "v_proj", "down_proj"]}"#;

fn lora() -> Lora {
    serde_json::from_str(LORA).unwrap()
}

#[test]
fn an_adapter_goes_on_from_its_files_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::open(dir.path()).unwrap();
    let mut first = job(&home, 16);
    first.weights.adapter = Some(Adapter { lora: lora(), seed: 5, files: vec![] });
    let mut one = engine(&home, &host(), "one");
    let after = one.train(&first).unwrap();
    let names: Vec<&str> = after.files.iter().map(|(name, _)| name.as_str()).collect();
    let wanted = ["adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors"];
    assert_eq!(names, wanted);
    assert_eq!(after.update.weights, after.files[1].1);
    assert!(after.update.kl == 0.0, "a new adapter is its reference: {}", after.update.kl);

    let mut second = first.clone();
    second.weights.policy.steps = 1;
    second.weights.adapter =
        Some(Adapter { files: after.files.clone(), ..first.weights.adapter.unwrap() });
    let held = one.train(&second).unwrap();
    assert!(held.update.kl > 0.0, "the reference is what lies beneath");
    let mut other = engine(&home, &host(), "other");
    // What is drawn with it in the matrices leaves no trace.
    let with = drawn(&mut other, &second.weights);
    same(&other.train(&second).unwrap(), &held);
    let without = drawn(&mut other, &first.reference);
    assert_eq!(with.len(), without.len());
    let scores = |drawn: &[Sample]| drawn.iter().map(|s| s.logprobs[0]).collect::<Vec<_>>();
    assert_ne!(scores(&with), scores(&without), "it takes part in what is drawn");
}

fn ask(weights: &Weights, seeds: u64) -> GenerateJob {
    let sampling = Sampling { temperature: 0.8, top_p: 0.95, top_k: 0 };
    let prompts = ["APIs: torch.relu", "APIs: torch.exp"];
    let prompt = |text: &str| Prompt { text: text.to_owned(), seeds: (0..seeds).collect() };
    GenerateJob {
        weights: weights.clone(),
        prompts: prompts.map(prompt).into(),
        sampling,
        max_prompt_tokens: 128,
        max_output_tokens: 24,
    }
}

fn drawn(engine: &mut ChildEngine, weights: &Weights) -> Vec<Sample> {
    let mut all = Vec::new();
    engine
        .generate(&ask(weights, 2), &mut |one| {
            all.push(((one.prompt, one.index), one.sample));
            ControlFlow::Continue(())
        })
        .unwrap();
    all.sort_by_key(|(place, _)| *place);
    let places: Vec<_> = all.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    all.into_iter().map(|(_, sample)| sample).collect()
}

#[test]
fn who_has_enough_gets_no_more_and_the_engine_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::open(dir.path()).unwrap();
    let weights = job(&home, 1).weights;
    let mut engine = engine(&home, &host(), "engine");
    let before = drawn(&mut engine, &weights);
    for enough in [1, 5] {
        let mut count = 0;
        engine
            .generate(&ask(&weights, 40), &mut |_| {
                count += 1;
                if count == enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!(count, enough);
        assert_eq!(drawn(&mut engine, &weights), before);
    }
    // A prompt that is too long ends it, before anything of it is recorded.
    let mut long = ask(&weights, 1);
    long.max_prompt_tokens = 2;
    let error = engine.generate(&long, &mut |_| panic!("nothing fits")).unwrap_err();
    assert!(error.0.contains("max-prompt-tokens is 2"), "{error}");
    assert_eq!(drawn(&mut engine, &weights), before);
}

#[test]
fn where_the_reference_lies_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::open(dir.path()).unwrap();
    let job = job(&home, 16);
    let beside = engine(&home, &host(), "beside").train(&job).unwrap();
    let hosted = HostConfig { hosted_reference: true, ..host() };
    same(&engine(&home, &hosted, "hosted").train(&job).unwrap(), &beside);
}

/// A run of adapters with the real engine, and a judge of hashes.
#[test]
fn a_run_of_adapters_ends_audits_and_is_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::open(dir.path()).unwrap();
    let blobs = Arc::new(home.blobs().unwrap());
    let run = RunId::new(1, [3; 10]);
    let log = Arc::new(home.create_run(run).unwrap());
    let bus = Bus::open(log.clone(), blobs.clone()).unwrap();
    let mut config = common::config(3);
    config.rounds = 1.try_into().unwrap();
    config.trainer.lora = Some(lora());
    config.proposer.policy.group_size = 4.try_into().unwrap();
    config.proposer.policy.max_output_tokens = 320.try_into().unwrap();
    config.coder.policy.max_output_tokens = 480.try_into().unwrap();
    let config = RunConfig::parse(&config.to_text().unwrap()).unwrap();
    let policy = |role| InitialPolicy { role, files: files(&home, role) };
    let first = Start {
        run,
        config: config.to_text().unwrap(),
        code: "test".into(),
        environment: vec![],
        api_table: blobs
            .put(b"torch.relu\t5\ntorch.exp\t5\ntorch.sum\t5\ntorch.tanh\t5\n")
            .unwrap(),
        policies: vec![policy(Role::Proposer), policy(Role::Coder)],
    };
    start(&bus, first).unwrap();
    let shells = |name: &str| {
        let limits = Limits { samples: 512, judges: 2 };
        Shells::new(Box::new(engine(&home, &host(), name)), Arc::new(HashJudge), limits)
    };
    assert_eq!(drive(&mut shells("run"), &bus).unwrap(), Turn::Idle);
    let report = audit_log(&log, &HashEvidence(&*blobs), Since::Start).unwrap();
    assert_eq!(report.found, 0);
    let saved = bus.ask(|state| state.checkpoints.clone()).unwrap();
    let files = saved.values().flat_map(|checkpoint| &checkpoint.files);
    assert!(
        files.clone().count() > 0 && files.clone().all(|(name, _)| name != "model.safetensors")
    );
    let mut count = 0;
    let mut machine = Machine {
        blobs: &*blobs,
        judge: &HashJudge,
        device: "none".to_owned(),
        engine: Box::new(|| {
            count += 1;
            Ok(Box::new(engine(&home, &host(), &format!("again{count}"))) as Box<dyn Engine>)
        }),
    };
    let choice = Choice { count: usize::MAX, seed: 0, since: Since::Start };
    let steps = effects(&log, choice, &mut machine).unwrap().counts[&Kind::Step];
    assert!(steps.all > 0 && steps.agree == steps.all, "{steps:?}");
    let finished = bus.ask(|state| state.last).unwrap();
    let last = log.read_after(events::ids::Seq(finished.0 - 1), 1).unwrap();
    assert!(matches!(last[0].event, Event::RunFinished));
}
