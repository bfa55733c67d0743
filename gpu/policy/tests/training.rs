//! Training: hand-computed vectors, determinism, exact resumption, refusals.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;

use policy::batch::Sequence;
use policy::error::Error;
use policy::grpo::{self, Graded, Objective, Old, Options, k3};
use policy::model::Model;
use policy::optim::{AdamW, Schedule, Update};
use policy::tokenizer::Text;
use policy::{Policy, checkpoint, sft};
use tch::{Kind, Tensor};

const UPDATE: Update = Update { lr: 1e-3, weight_decay: 0.01, grad_clip: 1.0 };

fn options() -> Options {
    Options {
        update: UPDATE,
        objective: Objective { kl: 0.0, ..Objective::default() },
        temperature: 1.0,
        micro_tokens: 64,
        old: Old::Sampler,
        memory: u64::MAX,
    }
}

fn logprobs(model: &Model, prompt: &[u32], answer: &[u32]) -> Vec<f32> {
    let tokens = prompt.iter().chain(answer).copied().collect();
    let sequence = Sequence { tokens, prompt: prompt.len() };
    let batch = policy::batch::Batch::new(&[&sequence], model.device).unwrap();
    Vec::try_from(policy::loss::logprobs(model, &batch, 1.0).unwrap()).unwrap()
}

/// A sample whose token ratios (trainer over sampler) are `ratios`.
fn graded(model: &Model, ratios: &[f32], advantage: f64) -> Graded {
    let tokens: Vec<u32> = (0..ratios.len() as u32).map(|i| 11 + 7 * i).collect();
    let lp = logprobs(model, &[5, 9], &tokens);
    let logprobs = lp.iter().zip(ratios).map(|(lp, r)| lp - r.ln()).collect();
    Graded { prompt_tokens: vec![5, 9], tokens, logprobs, advantage }
}

fn bytes(model: &Model) -> Vec<f32> {
    Vec::try_from(&model.params.flat.detach()).unwrap()
}

#[test]
fn k3_is_exp_d_minus_d_minus_1() {
    let p = Tensor::from_slice(&[-1.0_f32, -2.0, -0.5, 0.0]);
    let q = Tensor::from_slice(&[-1.0_f32, -1.0, -1.5, -100.0]);
    let found: Vec<f32> = Vec::try_from(k3(&p, &q).unwrap()).unwrap();
    // d = 0, 1, -1, and -100 held at -20.
    for (f, wanted) in found.iter().zip([0.0, 0.718_281_8, 0.367_879_4, 19.0]) {
        assert!((f - wanted).abs() < 1e-5, "{f} is not {wanted}");
    }
}

#[test]
fn the_clip_holds_the_ratio_on_the_side_of_the_advantage() {
    for (advantage, loss, clipped) in [
        // min(r A, clip(r) A) over r = 1.5, 1.1, 0.5: 1.2 + 1.1 + 0.5, one cut off.
        (1.0, -(1.2 + 1.1 + 0.5) / 3.0, 1.0 / 3.0),
        // With A = -1: -1.5 - 1.1 - 0.8, again one.
        (-1.0, (1.5 + 1.1 + 0.8) / 3.0, 1.0 / 3.0),
        (0.0, 0.0, 0.0),
    ] {
        let mut model = common::tiny_model(5);
        let sample = graded(&model, &[1.5, 1.1, 0.5], advantage);
        let mut optim = AdamW::new(&model.params).unwrap();
        let report = grpo::step(&mut model, &mut optim, None, &[sample], &options()).unwrap();
        assert!((report.loss - loss).abs() < 1e-4, "A = {advantage}: {}", report.loss);
        assert!((report.clip_fraction - clipped).abs() < 1e-6);
        assert_eq!(report.grad_norm == 0.0, advantage == 0.0);
    }
}

#[test]
fn an_update_moves_towards_the_better_sample() {
    let mut model = common::tiny_model(6);
    let (good, bad) = (graded(&model, &[1.0; 3], 1.0), graded(&model, &[1.0; 3], -1.0));
    let bad = Graded { tokens: vec![40, 41, 42], ..bad };
    let score = |m: &Model, s: &Graded| logprobs(m, &[5, 9], &s.tokens).iter().sum::<f32>();
    let before = (score(&model, &good), score(&model, &bad));
    let mut optim = AdamW::new(&model.params).unwrap();
    let o = Options { old: Old::Recompute, ..options() };
    let samples = [good.clone(), bad.clone()];
    let report = grpo::step(&mut model, &mut optim, None, &samples, &o).unwrap();
    assert!(report.loss.abs() < 1e-6 && report.clip_fraction == 0.0, "the ratio is 1");
    assert!(score(&model, &good) > before.0 && score(&model, &bad) < before.1);
}

#[test]
fn the_same_step_gives_the_same_bytes() {
    let run = || {
        let mut model = common::tiny_model(7);
        let sample = graded(&model, &[1.2, 0.9], 0.7);
        let mut optim = AdamW::new(&model.params).unwrap();
        grpo::step(&mut model, &mut optim, None, &[sample], &options()).unwrap();
        bytes(&model)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_step_that_is_not_finite_changes_nothing() {
    let mut model = common::tiny_model(8);
    let sample = graded(&model, &[1.0, 1.0], 1.0);
    let mut optim = AdamW::new(&model.params).unwrap();
    let (before, weights) = (bytes(&model), model.params.flat.detach());
    let _ = weights.get(0).fill_(f64::NAN);
    let broken = bytes(&model);
    let error = grpo::step(&mut model, &mut optim, None, std::slice::from_ref(&sample), &options());
    assert!(matches!(error, Err(Error::NotFinite { .. })));
    let after = bytes(&model);
    assert!(after.iter().zip(&broken).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert_eq!(optim.step, 0);
    let _ = weights.get(0).fill_(f64::from(before[0]));
    grpo::step(&mut model, &mut optim, None, &[sample], &options()).unwrap();
}

#[test]
fn malformed_samples_are_refused() {
    let mut model = common::tiny_model(9);
    let mut optim = AdamW::new(&model.params).unwrap();
    let good = graded(&model, &[1.0, 1.0], 1.0);
    for bad in [
        Graded { tokens: vec![], logprobs: vec![], ..good.clone() },
        Graded { logprobs: vec![0.0], ..good.clone() },
        Graded { tokens: vec![97, 1], ..good.clone() },
        Graded { advantage: f64::NAN, ..good.clone() },
        Graded { prompt_tokens: vec![1; 64], ..good.clone() },
    ] {
        let error = grpo::step(&mut model, &mut optim, None, &[bad], &options()).unwrap_err();
        assert_eq!(error.kind(), "request", "{error}");
    }
    let objective = Objective { kl: 0.1, ..Objective::default() };
    let o = Options { objective, ..options() };
    assert!(grpo::step(&mut model, &mut optim, None, &[good], &o).is_err());
}

/// A policy with a tokenizer of bytes.
fn policy(dir: &Path, seed: u64) -> Policy {
    policy::bpe::train(["x = 1\n".to_owned()].into_iter(), 260, dir).unwrap();
    let open = policy::Open { device: tch::Device::Cpu, kind: None, trainable: true };
    let shape = |vocab| policy::config::ModelConfig { vocab, ..common::tiny() };
    Policy::random(dir, shape, seed, open).unwrap()
}

#[test]
fn a_resumed_training_goes_on_exactly() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let dir = tempfile::tempdir().unwrap();
        let mut straight = policy(dir.path(), 10);
        let mut optim = AdamW::new(&straight.model.params).unwrap();
        let sample = graded(&straight.model, &[1.3, 0.9], 0.7);
        let one = |p: &mut Policy, o: &mut AdamW| {
            grpo::step(&mut p.model, o, None, std::slice::from_ref(&sample), &options()).unwrap();
        };
        one(&mut straight, &mut optim);
        let saved = dir.path().join("saved");
        checkpoint::save(&straight, Some(&optim), &saved, kind).unwrap();
        let again = dir.path().join("again");
        checkpoint::save(&straight, Some(&optim), &again, kind).unwrap();
        for file in ["model.safetensors", checkpoint::OPTIMIZER_FILE, "config.json"] {
            let read = |d: &Path| std::fs::read(d.join(file)).unwrap();
            assert_eq!(read(&saved), read(&again), "{file} differs between two saves");
        }
        let open = policy::Open { device: tch::Device::Cpu, kind: None, trainable: true };
        let mut resumed = Policy::open(&saved, open).unwrap();
        let file = saved.join(checkpoint::OPTIMIZER_FILE);
        let mut moments = checkpoint::load_optimizer(&resumed.model.params, &file).unwrap();
        one(&mut straight, &mut optim);
        one(&mut resumed, &mut moments);
        assert_eq!(bytes(&straight.model), bytes(&resumed.model));
        assert_eq!(moments.step, 2);
    }
}

#[test]
fn supervised_training_learns_a_rule() {
    let dir = tempfile::tempdir().unwrap();
    let mut p = policy(dir.path(), 11);
    let text = Text::read(dir.path(), &p.model.config).unwrap();
    let example = |n: u32| policy::data::Example {
        prompt: format!("{}", n % 10),
        completion: format!("{}{}", n % 10, n % 10),
    };
    let examples: Vec<_> = (0..40).map(example).collect();
    let (data, dropped) = policy::data::sequences(&text, &examples, 64).unwrap();
    assert_eq!((data.len(), dropped), (40, 0));
    let before = sft::evaluate(&p.model, &data, 512).unwrap();
    let mut optim = AdamW::new(&p.model.params).unwrap();
    let options = sft::Options {
        update: Update { lr: 1e-2, weight_decay: 0.0, grad_clip: 1.0 },
        schedule: Schedule::Cosine,
        warmup: 5,
        batch_tokens: 512,
        micro_tokens: 256,
        memory: u64::MAX,
        steps: Some(80),
        time: None,
        seed: 0,
        log_every: 10,
        eval_every: 1000,
    };
    let mut last = None;
    sft::train(&mut p.model, &mut optim, &data, &data, &options, |p| last = Some(p)).unwrap();
    let after = last.unwrap().held_out.unwrap();
    assert!(before.loss > 4.0 && after.loss < 0.1 && after.accuracy > 0.99, "{before:?} {after:?}");
}
