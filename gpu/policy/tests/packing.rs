//! The packed, checkpointed, chunked way through a model against the plain one: one sequence at a
//! time, whole logits, libtorch's own autograd, in float64.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use policy::batch::Sequence;
use policy::config::{Architecture, ModelConfig};
use policy::grpo::{self, Aggregate, Graded, Objective, Old, Options, Penalty, Ratio};
use policy::layer::Keep;
use policy::model::Model;
use policy::optim::{AdamW, Update};
use policy::params::Params;
use tch::{Device, Kind, Tensor};

fn model(architecture: Architecture, tied: bool, seed: u64) -> Model {
    let config = ModelConfig { architecture, tied, ..common::tiny() };
    let params = Params::random(&config, seed, Kind::Double, Device::Cpu).unwrap();
    let noise = Tensor::randn(params.flat.size(), (Kind::Double, Device::Cpu)) * 0.1;
    let _ = params.flat.shallow_clone().g_add_(&noise);
    Model::new(config, params).unwrap()
}

/// Groups with a shared prompt of unequal answers (one of a single token), and lone sequences.
fn sequences() -> Vec<Sequence> {
    let one = |prompt: &[u32], answer: &[u32]| Sequence {
        tokens: [prompt, answer].concat(),
        prompt: prompt.len(),
    };
    vec![
        one(&[5, 9, 11, 4], &[20, 21, 22, 3]),
        one(&[7], &[1, 2, 3, 4, 5, 6, 8]),
        one(&[5, 9, 11, 4], &[30]),
        one(&[80, 81, 82, 83, 84, 85], &[40, 41, 3]),
        one(&[5, 9, 11, 4], &[20, 50, 51, 52, 53, 54]),
        one(&[80, 81, 82, 83, 84, 85], &[60, 61]),
    ]
}

/// Log-probabilities of the answer of `s`, differentiable in the weights.
fn plain(model: &Model, s: &Sequence, temperature: f64) -> (Tensor, Tensor) {
    let ids: Vec<i64> = s.tokens.iter().map(|&t| i64::from(t)).collect();
    let hidden = model.hidden(&Tensor::from_slice(&ids).view([1, -1])).unwrap();
    let places = hidden.narrow(1, s.prompt as i64 - 1, s.answer() as i64);
    let logits = model.logits(&places.reshape([-1, model.config.hidden])).unwrap() / temperature;
    let all = logits.log_softmax(-1, Kind::Double);
    let answer = Tensor::from_slice(&ids[s.prompt..]).unsqueeze(1);
    let entropy = -(all.exp() * &all).sum_dim_intlist([1_i64].as_slice(), false, Kind::Double);
    (all.gather(1, &answer, false).squeeze_dim(1), entropy)
}

/// The gradient of `loss` by all weights, laid out flat, by libtorch's autograd.
fn plain_gradient(model: &Model, loss: impl FnOnce(&Model) -> Tensor) -> Tensor {
    for view in &model.params.views {
        let _ = view.set_requires_grad(true);
    }
    let grads = Tensor::run_backward(&[loss(model)], &model.params.views, false, false);
    let flat = model.params.flat.zeros_like();
    for ((spec, view), grad) in model.params.specs.iter().zip(&model.params.views).zip(grads) {
        flat.narrow(0, spec.offset, spec.numel()).copy_(&grad.view(-1));
        let _ = view.set_requires_grad(false);
    }
    flat
}

#[test]
fn packed_gradients_are_the_plain_ones() {
    let all = sequences();
    let rows: Vec<&Sequence> = all.iter().collect();
    for (architecture, tied) in
        [(Architecture::Llama, true), (Architecture::Qwen2, false), (Architecture::Qwen3, true)]
    {
        let m = model(architecture, tied, 3);
        let wanted = plain_gradient(&m, |m| {
            let parts: Vec<Tensor> =
                all.iter().map(|s| plain(m, s, 1.0).0.sum(Kind::Double)).collect();
            Tensor::stack(&parts, 0).sum(Kind::Double)
        });
        let batch = policy::batch::Batch::new(&rows, Device::Cpu).unwrap();
        let found = policy::loss::logprobs(&m, &batch, 1.0).unwrap();
        let plain: Vec<Tensor> = all.iter().map(|s| plain(&m, s, 1.0).0).collect();
        let scores = common::relative(&found, &Tensor::cat(&plain, 0));
        assert!(scores < 1e-12, "{architecture:?}: log-probabilities differ by {scores}");
        // Everything kept, nothing kept, and something between.
        let tokens = batch.spans.tokens();
        let mut plans = Vec::new();
        for memory in [u64::MAX, 0, 60_000, 25_000] {
            plans.push(policy::train::keep(&m, tokens, memory));
            let found = common::packed_gradient(&m, &rows, memory);
            let difference = common::relative(&found, &wanted);
            assert!(difference < 1e-12, "{architecture:?}, {memory} bytes kept: {difference}");
        }
        assert!(plans[0].iter().all(|k| *k == Keep::All));
        assert!(plans[1].iter().all(|k| *k == Keep::Input));
        assert!(plans[2] != plans[1] && plans[2] != plans[0], "{plans:?}");
    }
}

fn graded() -> Vec<Graded> {
    let advantages = [1.2, -0.4, 0.7, -1.1, 0.0, 0.9];
    let one = |(i, s): (usize, Sequence)| {
        let drift = |j: usize| -2.0 + 0.37 * ((i * 7 + j * 3) % 11) as f32;
        Graded {
            prompt_tokens: s.tokens[..s.prompt].to_vec(),
            tokens: s.tokens[s.prompt..].to_vec(),
            logprobs: (0..s.answer()).map(drift).collect(),
            advantage: advantages[i],
        }
    };
    sequences().into_iter().enumerate().map(one).collect()
}

/// The objective by the book: sample by sample, whole sequences.
fn by_the_book(m: &Model, reference: &Model, o: &Options) -> Tensor {
    let (samples, obj) = (graded(), o.objective);
    let tokens: usize = samples.iter().map(|s| s.tokens.len()).sum();
    let mut losses = Vec::new();
    for (s, sequence) in samples.iter().zip(sequences()) {
        let (lp, entropy) = plain(m, &sequence, o.temperature);
        let reference = plain(reference, &sequence, o.temperature).0.detach();
        let sampler = Tensor::from_slice(&s.logprobs).to_kind(Kind::Double);
        let old = if o.old == Old::Recompute { lp.detach() } else { sampler.shallow_clone() };
        let (mut ratio, mut weight) = ((&lp - &old).exp(), (&old - &sampler).exp());
        if obj.ratio == Ratio::Sequence {
            let mean = |t: &Tensor| t.log().mean(Kind::Double).exp().expand_as(&lp);
            (ratio, weight) = (mean(&ratio), mean(&weight));
        }
        let held = ratio.clamp(1.0 - obj.clip, 1.0 + obj.clip_high.unwrap_or(obj.clip));
        let gain = (&ratio * s.advantage).minimum(&(held * s.advantage));
        let gain = match obj.importance_cap {
            Some(cap) => gain * weight.clamp_max(cap),
            None => gain,
        };
        let d: Tensor = reference - &lp;
        let kl = match obj.penalty {
            Penalty::K1 => -&d,
            Penalty::K2 => d.square() / 2.0,
            Penalty::K3 => d.exp() - &d - 1.0,
        };
        let each = -gain + kl * obj.kl - entropy * obj.entropy;
        let n = samples.len() as f64;
        losses.push(match obj.aggregate {
            Aggregate::SampleMean => each.mean(Kind::Double) / n,
            Aggregate::TokenMean => each.sum(Kind::Double) / tokens as f64,
            Aggregate::SampleSum(per) => each.sum(Kind::Double) / (n * per),
        });
    }
    Tensor::stack(&losses, 0).sum(Kind::Double)
}

#[test]
fn every_variant_of_grpo_has_the_loss_and_the_gradient_of_the_book() {
    let paper = Objective { kl: 0.05, ..Objective::default() };
    let variants = [
        (Old::Sampler, paper),
        (Old::Recompute, paper),
        (
            Old::Sampler,
            Objective { clip_high: Some(0.28), aggregate: Aggregate::TokenMean, ..paper },
        ),
        (Old::Sampler, Objective { aggregate: Aggregate::SampleSum(20.0), kl: 0.0, ..paper }),
        (Old::Sampler, Objective { penalty: Penalty::K1, ..paper }),
        (Old::Sampler, Objective { penalty: Penalty::K2, ..paper }),
        (Old::Sampler, Objective { ratio: Ratio::Sequence, clip: 0.4, ..paper }),
        (Old::Recompute, Objective { importance_cap: Some(2.0), ..paper }),
        (Old::Recompute, Objective { importance_cap: Some(1.5), ratio: Ratio::Sequence, ..paper }),
        (Old::Sampler, Objective { entropy: 0.03, ..paper }),
    ];
    for (old, objective) in variants {
        // Packs of 13 positions: groups are torn apart and prompts repeated.
        for micro_tokens in [13, 1000] {
            let update = Update { lr: 0.0, weight_decay: 0.0, grad_clip: 0.0 };
            let memory = u64::MAX;
            let o = Options { update, objective, temperature: 0.7, micro_tokens, old, memory };
            let (mut m, reference) =
                (model(Architecture::Qwen2, false, 5), model(Architecture::Qwen2, false, 6));
            let mut loss = f64::NAN;
            let wanted = plain_gradient(&m, |m| {
                let value = by_the_book(m, &reference, &o);
                loss = value.double_value(&[]);
                value
            });
            let wanted = wanted.norm().double_value(&[]);
            let mut optim = AdamW::new(&m.params).unwrap();
            let report = grpo::step(&mut m, &mut optim, Some(&reference), &graded(), &o).unwrap();
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs().max(1e-2);
            let what = format!("{old:?} {objective:?} in packs of {micro_tokens}");
            assert!(close(report.loss, loss), "{what}: loss {} is not {loss}", report.loss);
            assert!(close(report.grad_norm, wanted), "{what}: {} {wanted}", report.grad_norm);
        }
    }
}

/// The same gradients on a GPU: float32 by rectangles, bfloat16 by the kernel for packed tokens.
#[test]
#[ignore = "needs a GPU"]
fn a_gpu_agrees_with_a_cpu() {
    let sizes = |architecture| ModelConfig {
        architecture,
        vocab: 1000,
        hidden: 256,
        ffn: 512,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        context: 512,
        ..common::tiny()
    };
    let answer =
        |seed: u32, n: u32| (0..n).map(|i| (i * 37 + seed * 101) % 1000).collect::<Vec<_>>();
    let one = |prompt: &[u32], a: Vec<u32>| Sequence {
        tokens: [prompt, &a].concat(),
        prompt: prompt.len(),
    };
    let (p, q) = (answer(1, 130), answer(2, 57));
    let all = [
        one(&p, answer(3, 190)),
        one(&q, answer(4, 33)),
        one(&p, answer(5, 1)),
        one(&p, answer(6, 77)),
        one(&answer(7, 3), answer(8, 300)),
        one(&q, answer(9, 250)),
    ];
    let rows: Vec<&Sequence> = all.iter().collect();
    for architecture in [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3] {
        let c = sizes(architecture);
        let cpu = Params::random(&c, 3, Kind::Float, Device::Cpu).unwrap();
        let cpu = Model::new(c.clone(), cpu).unwrap();
        let wanted = common::packed_gradient(&cpu, &rows, u64::MAX);
        for (kind, tolerance) in [(Kind::Float, 1e-3), (Kind::BFloat16, 6e-2)] {
            let params = Params::random(&c, 3, kind, Device::Cuda(0)).unwrap();
            let gpu = Model::new(c.clone(), params).unwrap();
            for memory in [u64::MAX, 0] {
                let found = common::packed_gradient(&gpu, &rows, memory).to_device(Device::Cpu);
                let difference = common::relative(&found, &wanted);
                let norms = (found.norm() / wanted.norm()).double_value(&[]);
                println!("{architecture:?} {kind:?}: differ by {difference:.2e}, norms by {norms}");
                assert!(difference < tolerance, "{architecture:?} {kind:?}: {difference}");
            }
        }
    }
}

/// What the engine promises without chance: the same step, the same bytes, whatever is kept.
fn the_same_bytes_again(device: Device, kind: Kind) {
    policy::libtorch::deterministic();
    let c = ModelConfig {
        vocab: 1000,
        hidden: 256,
        heads: 8,
        head_dim: 64,
        context: 512,
        ..common::tiny()
    };
    let model = Model::new(c.clone(), Params::random(&c, 3, kind, device).unwrap()).unwrap();
    let tokens = |i: u32| (0..120).map(|t| (t * 37 + i * 101) % 1000).collect();
    let all: Vec<Sequence> = (0..24).map(|i| Sequence { tokens: tokens(i), prompt: 40 }).collect();
    let rows: Vec<&Sequence> = all.iter().collect();
    let first = common::packed_gradient(&model, &rows, u64::MAX);
    for memory in [u64::MAX, 0, 0] {
        assert!(first.equal(&common::packed_gradient(&model, &rows, memory)));
    }
}

#[test]
fn a_cpu_without_chance_gives_the_same_bytes_again() {
    the_same_bytes_again(Device::Cpu, Kind::Float);
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_without_chance_gives_the_same_bytes_again() {
    the_same_bytes_again(Device::Cuda(0), Kind::BFloat16);
}

/// A reference whose layers come from the host's memory scores as one on the GPU does.
#[test]
#[ignore = "needs a GPU"]
fn a_hosted_reference_scores_the_same() {
    let (c, gpu) = (common::tiny(), Device::Cuda(0));
    let all = sequences();
    let rows: Vec<&Sequence> = all.iter().collect();
    let pack = || policy::batch::Batch::new(&rows, gpu).unwrap();
    let batches = [pack(), pack(), pack()];
    let here = Params::random(&c, 3, Kind::BFloat16, gpu).unwrap();
    let there = Params::random(&c, 3, Kind::BFloat16, Device::Cpu).unwrap();
    let there = Model::on(c.clone(), there.pinned(gpu).unwrap(), gpu).unwrap();
    let here = Model::new(c, here).unwrap();
    let scores = |m: &Model| policy::loss::logprobs_all(m, &batches, 0.7).unwrap();
    for (a, b) in scores(&here).iter().zip(scores(&there)) {
        assert!(a.equal(&b));
    }
}

/// An update of a bfloat16 model on a GPU moves its float32 master as a CPU's does.
#[test]
#[ignore = "needs a GPU"]
fn a_gpu_updates_as_a_cpu() {
    let update = Update { lr: 1e-3, weight_decay: 0.1, grad_clip: 1.0 };
    let after = |device: Device| {
        let params = Params::random(&common::tiny(), 3, Kind::BFloat16, device).unwrap();
        let mut optim = AdamW::new(&params).unwrap();
        let numbers = Tensor::arange(params.flat.size()[0], (Kind::Float, Device::Cpu)) * 0.37;
        optim.gradient().unwrap().copy_(&numbers.sin());
        let norms: Vec<f64> = (0..3)
            .map(|_| {
                optim.gradient().unwrap().copy_(&numbers.sin());
                optim.apply(&params, &update).unwrap()
            })
            .collect();
        let all = params.read_master(0, params.flat.size()[0]).unwrap();
        (all.to_device(Device::Cpu), norms)
    };
    let ((cpu, norms), (gpu, same)) = (after(Device::Cpu), after(Device::Cuda(0)));
    let difference = common::relative(&gpu, &cpu);
    assert!(difference < 1e-6, "{difference}");
    assert!(norms.iter().zip(&same).all(|(a, b)| (a / b - 1.0).abs() < 1e-5), "{norms:?} {same:?}");
}
