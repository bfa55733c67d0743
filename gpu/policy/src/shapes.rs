//! Shapes of known models, for planning and measuring without their files.

use crate::config::{Architecture, ModelConfig};
use crate::error::{Error, Result};

/// Name, architecture, and vocabulary, width, ffn, layers, heads, key heads, head width, context.
const SHAPES: [(&str, Architecture, [i64; 8], bool); 6] = [
    ("qwen2-0.5b", Architecture::Qwen2, [151_936, 896, 4864, 24, 14, 2, 64, 32_768], true),
    ("qwen2-1.5b", Architecture::Qwen2, [151_936, 1536, 8960, 28, 12, 2, 128, 32_768], true),
    ("qwen2-7b", Architecture::Qwen2, [152_064, 3584, 18_944, 28, 28, 4, 128, 32_768], false),
    ("qwen3-8b", Architecture::Qwen3, [151_936, 4096, 12_288, 36, 32, 8, 128, 40_960], false),
    ("llama3-8b", Architecture::Llama, [128_256, 4096, 14_336, 32, 32, 8, 128, 8192], false),
    ("smollm2-135m", Architecture::Llama, [49_152, 576, 1536, 30, 9, 3, 64, 8192], true),
];

/// The shape called `name`.
///
/// # Errors
/// An unknown name; the error lists the known ones.
pub fn named(name: &str) -> Result<ModelConfig> {
    let Some((_, architecture, sizes, tied)) = SHAPES.into_iter().find(|s| s.0 == name) else {
        let known: Vec<&str> = SHAPES.iter().map(|s| s.0).collect();
        return Err(Error::Request(format!("shape `{name}`: known are {}", known.join(", "))));
    };
    let [vocab, hidden, ffn, layers, heads, kv_heads, head_dim, context] = sizes;
    let rope_theta = match architecture {
        Architecture::Llama if name.starts_with("smollm2") => 100_000.0,
        Architecture::Llama => 500_000.0,
        Architecture::Qwen2 | Architecture::Qwen3 => 1_000_000.0,
    };
    let (rope_scaling, norm_eps, eos) = (None, 1e-6, vec![2]);
    Ok(ModelConfig {
        architecture,
        vocab,
        hidden,
        ffn,
        layers,
        heads,
        kv_heads,
        head_dim,
        context,
        rope_theta,
        rope_scaling,
        norm_eps,
        tied,
        eos,
    })
}
