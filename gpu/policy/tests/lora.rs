//! Adapters: gradients against autograd over explicitly merged weights, merging, the base as
//! reference, files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use policy::batch::{Batch, Sequence};
use policy::config::{Architecture, ModelConfig};
use policy::grpo::{self, Graded, Objective, Old, Options};
use policy::lora::{Adapter, Lora, TARGETS, Target};
use policy::model::Model;
use policy::optim::{AdamW, Update};
use policy::params::Params;
use policy::{lora_file, loss};
use tch::{Device, Kind, Tensor};

fn model(kind: Kind, lora: Lora) -> Model {
    let config = ModelConfig { architecture: Architecture::Qwen2, ..common::tiny() };
    let params = Params::random(&config, 3, kind, Device::Cpu).unwrap();
    let _ = params.flat.shallow_clone().f_mul_scalar_(4.0).unwrap();
    let mut model = Model::new(config, params).unwrap();
    let adapter = Adapter::new(&model, lora, 5).unwrap();
    // B starts as zero; move it, or A would have no gradient and merging nothing to do.
    tch::manual_seed(1);
    let noise = Tensor::randn(adapter.params.flat.size(), (kind, Device::Cpu)) * 0.2;
    let _ = adapter.params.flat.shallow_clone().g_add_(&noise);
    model.adapter = Some(adapter);
    model
}

fn all() -> Lora {
    Lora { r: 4, alpha: 6.0, dropout: 0.0, targets: TARGETS.to_vec() }
}

fn sequences() -> Vec<Sequence> {
    let one = |prompt: usize, tokens: &[u32]| Sequence { tokens: tokens.to_vec(), prompt };
    vec![
        one(3, &[5, 9, 11, 20, 21, 22, 3]),
        one(3, &[5, 9, 11, 40, 41]),
        one(1, &[7, 1, 2, 3, 4, 5, 6, 8]),
    ]
}

/// The model's weights with the adapter's product added, differentiable in the adapter's matrices.
fn merged_by_hand(model: &Model, leaves: &[Tensor]) -> Vec<(String, Tensor)> {
    let adapter = model.adapter.as_ref().unwrap();
    let scale = adapter.lora.alpha / adapter.lora.r as f64;
    let names: Vec<&String> = adapter.params.specs.iter().map(|s| &s.parts[0].name).collect();
    let mut out = Vec::new();
    for (part, shape, at) in model.params.specs.iter().flat_map(|s| s.places()) {
        let w = model.params.flat.narrow(0, at, shape.iter().product()).view(&shape[..]);
        let stem = part.name.trim_end_matches(".weight");
        let a = names.iter().position(|n| n.contains(&format!("{stem}.lora_A")));
        let w = match a {
            Some(a) => w + leaves[a + 1].matmul(&leaves[a]) * scale,
            None => w,
        };
        out.push((part.name.clone(), w));
    }
    out
}

#[test]
fn gradients_are_those_of_the_merged_weights() {
    for targets in [TARGETS.to_vec(), vec![Target::V, Target::Down]] {
        let m = model(Kind::Double, Lora { targets, ..all() });
        let data = sequences();
        let rows: Vec<&Sequence> = data.iter().collect();
        let found = common::packed_gradient(&m, &rows, 0);
        // d/dA of sum(G * (W + s B A)) for the gradient G of the merged weights.
        let leaves: Vec<Tensor> = m
            .adapter
            .as_ref()
            .unwrap()
            .params
            .views
            .iter()
            .map(|v| v.detach().set_requires_grad(true))
            .collect();
        let merged = merged_by_hand(&m, &leaves);
        let plain = Params::random(&m.config, 3, Kind::Double, Device::Cpu).unwrap();
        for ((_, _, at), (_, w)) in plain.specs.iter().flat_map(|s| s.places()).zip(&merged) {
            plain.write_master(at, &w.detach()).unwrap();
        }
        let plain = Model::new(m.config.clone(), plain).unwrap();
        let by_weights = common::packed_gradient(&plain, &rows, u64::MAX);
        let mut sum = Tensor::zeros([], (Kind::Double, Device::Cpu));
        for ((_, shape, at), (_, w)) in
            plain.params.specs.iter().flat_map(|s| s.places()).zip(&merged)
        {
            let n = shape.iter().product();
            sum += (by_weights.narrow(0, at, n).view(&shape[..]) * w).sum(Kind::Double);
        }
        let wanted = Tensor::run_backward(&[sum], &leaves, false, false);
        let adapter = &m.adapter.as_ref().unwrap().params;
        for (spec, wanted) in adapter.specs.iter().zip(&wanted) {
            let found = found.narrow(0, spec.offset, spec.numel()).view(&spec.shape[..]);
            let difference = common::relative(&found, wanted);
            assert!(difference < 1e-11, "{}: {difference}", spec.parts[0].name);
        }
    }
}

#[test]
fn merged_is_unmerged_within_rounding_and_undone_bit_for_bit() {
    for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 3e-2)] {
        let mut m = model(kind, all());
        let data = sequences();
        let rows: Vec<&Sequence> = data.iter().collect();
        let batch = Batch::new(&rows, Device::Cpu).unwrap();
        let scores = |m: &Model| loss::logprobs(m, &batch, 1.0).unwrap();
        let (before, apart) = (m.params.flat.detach_copy(), scores(&m));
        m.merge().unwrap();
        let hidden = |m: &Model| {
            let ids = Tensor::from_slice(&[5_i64, 9, 11]).view([1, -1]);
            tch::no_grad(|| m.hidden(&ids).unwrap())
        };
        let with = hidden(&m);
        assert!(!m.params.flat.equal(&before));
        m.unmerge().unwrap();
        assert!(m.params.flat.equal(&before), "{kind:?}: not as before");
        assert!(!hidden(&m).equal(&with), "the adapter is felt");
        // The merged weights alone, without the adapter beside them.
        m.merge().unwrap();
        let base = Params::random(&m.config, 3, kind, Device::Cpu).unwrap();
        base.flat.shallow_clone().copy_(&m.params.flat);
        let base = Model::new(m.config.clone(), base).unwrap();
        let difference = common::relative(&scores(&base), &apart);
        assert!(difference < tolerance, "{kind:?}: {difference}");
    }
}

#[test]
fn a_step_trains_the_adapter_alone_with_the_base_as_reference() {
    let mut m = model(Kind::Float, Lora { dropout: 0.2, ..all() });
    let graded: Vec<Graded> = sequences()
        .iter()
        .zip([1.0, -1.0, 0.5])
        .map(|(s, advantage)| Graded {
            prompt_tokens: s.tokens[..s.prompt].to_vec(),
            tokens: s.tokens[s.prompt..].to_vec(),
            logprobs: vec![-2.0; s.answer()],
            advantage,
        })
        .collect();
    let o = Options {
        update: Update { lr: 1e-2, weight_decay: 0.0, grad_clip: 1.0 },
        objective: Objective { kl: 0.1, ..Objective::default() },
        temperature: 1.0,
        micro_tokens: 64,
        old: Old::Recompute,
        memory: 0,
    };
    let before = m.params.flat.detach_copy();
    let run = |m: &mut Model| {
        let mut optim = AdamW::new(m.trained()).unwrap();
        let first = grpo::step(m, &mut optim, None, &graded, &o).unwrap();
        let second = grpo::step(m, &mut optim, None, &graded, &o).unwrap();
        (first, second, m.trained().flat.detach_copy())
    };
    let start = m.trained().flat.detach_copy();
    let (first, second, after) = run(&mut m);
    assert!(m.params.flat.equal(&before), "the base has moved");
    assert!(!after.equal(&start) && second.kl != first.kl && first.kl > 0.0);
    // Dropout is drawn from where the step stands, so that the same step is the same step.
    m.trained().flat.shallow_clone().copy_(&start);
    assert!(run(&mut m).2.equal(&after));
    m.merge().unwrap();
    let mut optim = AdamW::new(m.trained()).unwrap();
    let error = grpo::step(&mut m, &mut optim, None, &graded, &o).err().unwrap();
    assert!(error.to_string().contains("unmerge"), "{error}");
}

#[test]
fn an_adapter_is_saved_as_peft_stores_it_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let m = model(Kind::Float, Lora { targets: vec![Target::Q, Target::Up], ..all() });
    let adapter = m.adapter.as_ref().unwrap();
    let read = |at, n| adapter.params.read_master(at, n);
    lora_file::save(adapter, dir.path(), Kind::Float, read).unwrap();
    let again = lora_file::load(&m, dir.path()).unwrap();
    assert_eq!(again.lora, adapter.lora);
    assert!(again.params.flat.equal(&adapter.params.flat));
    let names = policy::files::shapes(&dir.path().join("adapter_model.safetensors")).unwrap();
    let name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";
    assert_eq!(names[name], [4, 32]);
    let path = dir.path().join("adapter_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to, word) in [
        ("\"bias\":\"none\"", "\"bias\":\"all\"", "bias"),
        ("q_proj", "qkv_proj", "target_modules"),
        ("\"r\":4", "\"r\":0", "lora"),
    ] {
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let error = lora_file::load(&m, dir.path()).err().unwrap();
        assert!(error.to_string().contains(word), "{error}");
    }
    std::fs::write(&path, text.replace("\"r\":4", "\"r\":8")).unwrap();
    assert_eq!(lora_file::load(&m, dir.path()).err().unwrap().kind(), "shape");
}
