//! Models of a named shape with random weights made on their device.

use policy::config::{Architecture, ModelConfig};
use policy::model::Model;
use policy::params::{self, Params};
use policy::{Error, Result};
use tch::{Device, Kind, Tensor};

/// Shapes to measure and to compare on.
pub fn shape(name: &str) -> Result<ModelConfig> {
    let tiny = ModelConfig {
        architecture: Architecture::Llama,
        vocab: 1000,
        hidden: 256,
        ffn: 688,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        context: 4096,
        rope_theta: 10_000.0,
        rope_scaling: None,
        norm_eps: 1e-6,
        tied: true,
        eos: vec![0],
    };
    let (architecture, tied) = (Architecture::Qwen2, false);
    match name {
        "tiny" => Ok(tiny),
        "middle" => Ok(ModelConfig {
            architecture,
            vocab: 32_000,
            hidden: 1024,
            ffn: 2816,
            layers: 8,
            heads: 14,
            kv_heads: 2,
            head_dim: 128,
            tied,
            ..tiny
        }),
        "qwen2-7b" => Ok(ModelConfig {
            architecture,
            vocab: 152_064,
            hidden: 3584,
            ffn: 18_944,
            layers: 28,
            heads: 28,
            kv_heads: 4,
            head_dim: 128,
            context: 32_768,
            rope_theta: 1e6,
            tied,
            ..tiny
        }),
        _ => {
            let known = "tiny, middle and qwen2-7b are known";
            Err(Error::Request(format!("shape `{name}`: {known}")))
        }
    }
}

/// A model of that shape; matrices are normal with deviation `std`, norms are 1.
///
/// # Errors
/// libtorch's: out of memory included.
pub fn model(config: ModelConfig, std: f64, kind: Kind, device: Device) -> Result<Model> {
    let _guard = tch::no_grad_guard();
    let specs = params::layout(&config);
    let end = |s: &params::Spec| s.offset + s.numel();
    let total = (specs.iter().map(end).max().unwrap_or(0) + 63) / 64 * 64;
    let decayed = specs.iter().filter(|s| s.decay).map(end).max().unwrap_or(0);
    let flat = Tensor::f_zeros([total], (kind, device))?;
    for s in &specs {
        let mut part = flat.f_narrow(0, s.offset, s.numel())?;
        let norm = s.parts.iter().any(|p| p.name.ends_with("norm.weight"));
        let _ = if norm { part.f_fill_(1.0)? } else { part.f_normal_(0.0, std)? };
    }
    let mut params = Params { specs, views: Vec::new(), flat, master: None, decayed };
    params.publish(false)?;
    Model::new(config, params)
}
