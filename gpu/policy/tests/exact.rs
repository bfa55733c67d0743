//! Deterministic mode on a CPU: what is sampled in any batch is what the trainer sees in any pack, bit for bit.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use policy::batch::{Batch, Sequence, plan};
use policy::config::{Architecture, ModelConfig};
use policy::generate::{Limits, Prompt, Sample, generate};
use policy::loss;
use policy::model::Model;
use policy::params::Params;
use policy::sampling::Sampling;
use tch::{Device, Kind, Tensor};

const TEMPERATURE: f64 = 0.8;
const WARM: Sampling = Sampling { temperature: TEMPERATURE, top_k: 20, top_p: 0.95 };

/// Widths that no register divides, heads that share keys, and answers that vary.
fn model(architecture: Architecture, exact: bool) -> Model {
    let c = ModelConfig {
        architecture,
        vocab: 157,
        hidden: 60,
        ffn: 92,
        heads: 6,
        kv_heads: 2,
        head_dim: 16,
        context: 128,
        ..common::tiny()
    };
    let params = Params::random(&c, 5, Kind::Float, Device::Cpu).unwrap();
    let _ = tch::no_grad(|| params.flat.shallow_clone().f_mul_scalar_(4.0).unwrap());
    let mut model = Model::new(c, params).unwrap();
    model.exact = exact;
    model
}

const ALL: [Architecture; 3] = [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];

/// Prompts from shorter than a block of the cache to some blocks long, with groups of 1 to 5.
fn prompts() -> Vec<Prompt> {
    (0..7_u32)
        .map(|p| Prompt {
            tokens: (0..1 + p * p).map(|t| (t * 31 + p * 7) % 157).collect(),
            seeds: (0..1 + u64::from(p) % 5).map(|s| u64::from(p) * 100 + s).collect(),
        })
        .collect()
}

fn sample(model: &Model, prompts: &[Prompt], max_batch: usize) -> Vec<Vec<Sample>> {
    let limits = Limits { max_new_tokens: 50, max_batch };
    generate(model, &[3], prompts, &WARM, limits).unwrap()
}

/// Equal to the last bit, as numbers of that type say it.
fn bits(samples: &[Vec<Sample>]) -> Vec<(Vec<u32>, Vec<u32>, Vec<u32>)> {
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect();
    let one = |s: &Sample| (s.tokens.clone(), bits(&s.logprobs), bits(&s.truncated));
    samples.iter().flatten().map(one).collect()
}

#[test]
fn a_sample_does_not_depend_on_its_batch() {
    for architecture in ALL {
        let (model, prompts) = (model(architecture, true), prompts());
        let wanted = bits(&sample(&model, &prompts, 64));
        assert!(wanted.iter().map(|s| s.0.len()).sum::<usize>() > 100);
        for max_batch in [1, 3, 17] {
            assert!(bits(&sample(&model, &prompts, max_batch)) == wanted, "{max_batch}");
        }
        // Each sample by itself: no neighbours, nothing shared.
        let alone = prompts.iter().flat_map(|p| {
            p.seeds.iter().map(|&seed| Prompt { tokens: p.tokens.clone(), seeds: vec![seed] })
        });
        let alone: Vec<_> = alone.flat_map(|p| sample(&model, &[p], 1)).collect();
        assert!(bits(&alone) == wanted, "{architecture:?}");
    }
}

/// The same of our kernels on CUDA: any tiles, splits of the attention and neighbours.
#[test]
#[ignore = "needs a GPU"]
fn a_sample_on_a_gpu_does_not_depend_on_its_batch() {
    policy::libtorch::deterministic();
    for architecture in ALL {
        let c = ModelConfig {
            architecture,
            vocab: 1000,
            hidden: 512,
            ffn: 1024,
            heads: 8,
            kv_heads: 2,
            head_dim: 64,
            context: 1024,
            ..common::tiny()
        };
        let params = Params::random(&c, 5, Kind::BFloat16, Device::Cuda(0)).unwrap();
        let _ = tch::no_grad(|| params.flat.shallow_clone().f_mul_scalar_(4.0).unwrap());
        let model = Model::new(c, params).unwrap();
        let prompts: Vec<Prompt> = (0..6_u32)
            .map(|p| Prompt {
                tokens: (0..1 + p * p * 21).map(|t| (t * 31 + p * 7) % 1000).collect(),
                seeds: (0..15).map(|s| u64::from(p) * 100 + s).collect(),
            })
            .collect();
        let wanted = bits(&sample(&model, &prompts, 90));
        println!("{architecture:?}: {} tokens", wanted.iter().map(|s| s.0.len()).sum::<usize>());
        for max_batch in [64, 17] {
            assert!(bits(&sample(&model, &prompts, max_batch)) == wanted, "{max_batch}");
        }
        let one = Prompt { tokens: prompts[5].tokens.clone(), seeds: vec![503] };
        let alone = bits(&sample(&model, &[one], 1));
        assert!(alone[0] == wanted[5 * 15 + 3], "{architecture:?} alone");
    }
}

#[test]
fn the_trainer_sees_what_was_emitted() {
    for architecture in ALL {
        let model = model(architecture, true);
        let (mut rows, mut emitted) = (Vec::new(), Vec::new());
        let prompts = prompts();
        for (prompt, samples) in prompts.iter().zip(sample(&model, &prompts, 5)) {
            for s in samples {
                let tokens = prompt.tokens.iter().chain(&s.tokens).copied().collect();
                rows.push(Sequence { tokens, prompt: prompt.tokens.len() });
                emitted.push(s.logprobs);
            }
        }
        let rows: Vec<&Sequence> = rows.iter().collect();
        // One pack for all, some packs, and a pack for each.
        for budget in [usize::MAX, 200, 1] {
            for pack in plan(&rows, budget) {
                let own: Vec<&Sequence> = pack.iter().map(|&i| rows[i]).collect();
                let batch = Batch::new(&own, Device::Cpu).unwrap();
                let seen = loss::logprobs(&model, &batch, TEMPERATURE).unwrap();
                let seen = Vec::<f32>::try_from(seen).unwrap();
                let wanted: Vec<f32> =
                    pack.iter().flat_map(|&i| emitted[i].iter().copied()).collect();
                assert_eq!(seen.len(), wanted.len());
                let same = seen.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{architecture:?}, packs of {budget}");
            }
        }
    }
}

#[test]
fn it_is_the_usual_pass_but_for_rounding() {
    for architecture in ALL {
        let (exact, usual) = (model(architecture, true), model(architecture, false));
        let tokens = |i: u32| (0..40).map(|t| (t * 37 + i % 2 * 11 + t / 20 * i) % 157).collect();
        let all: Vec<Sequence> =
            (0..6).map(|i| Sequence { tokens: tokens(i), prompt: 20 }).collect();
        let rows: Vec<&Sequence> = all.iter().collect();
        let batch = Batch::new(&rows, Device::Cpu).unwrap();
        let scores = |m| loss::logprobs(m, &batch, TEMPERATURE).unwrap();
        let found = common::relative(&scores(&exact), &scores(&usual));
        assert!(found < 1e-5, "{architecture:?}: scores differ by {found}");
        for memory in [u64::MAX, 0] {
            let gradient = |m: &Model| common::packed_gradient(m, &rows, memory);
            let found = common::relative(&gradient(&exact), &gradient(&usual));
            assert!(found < 1e-4, "{architecture:?}: gradients differ by {found}");
        }
    }
}

#[test]
fn deterministic_mode_turns_it_on() {
    let off = common::tiny_model(1);
    policy::libtorch::deterministic();
    let on = common::tiny_model(1);
    assert!(!off.exact && on.exact);
    let ids = Tensor::from_slice(&[5_i64, 9, 11]).view([1, -1]);
    let hidden = |m: &Model| tch::no_grad(|| m.hidden(&ids).unwrap());
    assert!(common::relative(&hidden(&on), &hidden(&off)) < 1e-5);
}
