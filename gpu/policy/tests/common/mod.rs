//! What the tests share: the Python that makes fixtures, and a tiny random model.
#![allow(dead_code, clippy::unwrap_used)]

pub mod engine;

use std::path::{Path, PathBuf};
use std::process::Command;

use policy::batch::{Batch, Sequence};
use policy::config::{Architecture, ModelConfig};
use policy::gradients::Gradients;
use policy::loss::{Loss, Pass};
use policy::metrics::Clock;
use policy::model::Model;
use policy::params::Params;
use tch::{Device, Kind, Tensor};

/// The Python with torch and transformers: `KERNELZERO_PYTHON`, or the project's environment.
pub fn python() -> PathBuf {
    let default = || {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        home.join(".cache/kernelzero/venv/bin/python")
    };
    std::env::var_os("KERNELZERO_PYTHON").map(PathBuf::from).unwrap_or_else(default)
}

/// Runs `tests/<script>` with `args`.
pub fn run_python(script: &str, args: &[&str]) {
    let python = python();
    let script =
        Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("tests").join(script);
    let run = Command::new(&python).arg(&script).args(args).output().unwrap_or_else(|e| {
        panic!(
            "cannot start {}: {e}. These tests compare with PyTorch: set KERNELZERO_PYTHON to a \
             Python with torch 2.11 and transformers",
            python.display()
        )
    });
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{} failed:\n{errors}", script.display());
}

/// A small shape with grouped heads.
pub fn tiny() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Llama,
        vocab: 97,
        hidden: 32,
        ffn: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        context: 64,
        rope_theta: 10_000.0,
        rope_scaling: None,
        norm_eps: 1e-5,
        tied: true,
        eos: vec![3],
    }
}

/// A random model of that shape, spread out enough that its answers vary.
pub fn tiny_model(seed: u64) -> Model {
    let params = Params::random(&tiny(), seed, Kind::Float, Device::Cpu).unwrap();
    let _ = tch::no_grad(|| params.flat.shallow_clone().f_mul_scalar_(6.0).unwrap());
    Model::new(tiny(), params).unwrap()
}

/// Opens a folder without a tokenizer.
pub fn open(dir: &Path, trainable: bool) -> policy::Result<Model> {
    let config = ModelConfig::read(dir)?;
    let params = Params::read(dir, &config, Kind::Float, Device::Cpu, trainable)?;
    Model::new(config, params)
}

/// The largest difference, relative to the largest expected value.
pub fn relative(found: &tch::Tensor, expected: &tch::Tensor) -> f64 {
    let difference = (found - expected).abs().max().double_value(&[]);
    difference / expected.abs().max().double_value(&[])
}

/// The gradient `[total]` of the sum of the log-probabilities of all answer tokens, by the packed,
/// chunked path with as much kept as `memory` allows.
pub fn packed_gradient(model: &Model, sequences: &[&Sequence], memory: u64) -> Tensor {
    let batch = Batch::new(sequences, model.device).unwrap();
    let total = model.trained().flat.size();
    let kind = if model.kind == Kind::Double { Kind::Double } else { Kind::Float };
    let flat = Tensor::zeros(total, (kind, model.device));
    let grads = Gradients::new(model, &flat);
    let mut clock = Clock::new(model.device);
    let pass = Pass::new(model, &batch, 1.0, memory, 7).unwrap();
    pass.backward(&grads, &mut clock, |s| Ok(Loss::from(s.chosen.sum(kind)))).unwrap();
    flat
}
