//! Models of a named shape with random weights made on their device.

use policy::config::{Architecture, ModelConfig};
use policy::model::Model;
use policy::params::Params;
use policy::{Result, shapes};
use tch::{Device, Kind};

/// Shapes to compare on, and the known ones.
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
        _ => shapes::named(name),
    }
}

/// A model of that shape; matrices are normal with deviation `std`, norms are 1.
///
/// # Errors
/// libtorch's: out of memory included.
pub fn model(config: ModelConfig, std: f64, kind: Kind, device: Device) -> Result<Model> {
    let _guard = tch::no_grad_guard();
    let params = Params::noise(&config, kind, device, false)?;
    for (spec, view) in params.specs.iter().zip(&params.views) {
        if spec.std.is_some() {
            let _ = view.shallow_clone().f_normal_(0.0, std)?;
        }
    }
    Model::new(config, params)
}
