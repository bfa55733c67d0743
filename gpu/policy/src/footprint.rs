//! Bytes that training needs, counted from the shape of a model.

use tch::{Device, Kind};

use crate::config::{Architecture, ModelConfig};
use crate::error::{Error, Result};
use crate::fused;
use crate::metrics;
use crate::model::Model;

/// Bytes that one layer keeps of `tokens` packed tokens: its input; in addition what
/// [`crate::layer::Keep::Attention`] keeps; in addition what `All` keeps.
pub(crate) fn kept(c: &ModelConfig, kind: Kind, tokens: i64) -> [u64; 3] {
    let size = kind.elt_size_in_bytes() as i64;
    let heads = (c.heads + 2 * c.kv_heads) * c.head_dim;
    // The norms of Qwen3 need the projections as they were before them.
    let again = match c.architecture {
        Architecture::Qwen3 => (c.heads + c.kv_heads) * c.head_dim,
        Architecture::Llama | Architecture::Qwen2 => 0,
    };
    let attention = (heads + again + c.heads * c.head_dim + c.hidden) * size + c.heads * 4;
    [c.hidden * size, attention, 2 * c.ffn * size].map(|bytes| (bytes * tokens) as u64)
}

/// Of `layers`, how many keep attention too, and how many of these everything, when `spare` bytes
/// are left beside all inputs; `bytes` as [`kept`] says. All keep attention before one keeps more.
pub(crate) fn layers_kept(bytes: [u64; 3], layers: usize, spare: u64) -> [usize; 2] {
    let attention = ((spare / bytes[1]) as usize).min(layers);
    let rest = spare - bytes[1] * attention as u64;
    let whole = if attention < layers { 0 } else { ((rest / bytes[2]) as usize).min(layers) };
    [attention, whole]
}

/// Bytes that layers may keep on a CPU.
pub const HOST_KEPT: u64 = 4 << 30;

/// Bytes of a device that are left alone: the context, cuBLAS's workspace, fragments.
pub(crate) const RESERVE: u64 = 2_500_000_000;

/// Bytes that the widest moment of a step takes for `tokens` packed tokens beside all that is kept:
/// the way back through a feed-forward block, or a chunk of logits and the head's gradient. Our kernels
/// (bfloat16) need fewer tensors in between, and no place for the gradient of a matrix.
pub(crate) fn working(c: &ModelConfig, kind: Kind, tokens: i64) -> u64 {
    let size = kind.elt_size_in_bytes() as i64;
    let fused = kind == Kind::BFloat16 && fused::serves(c);
    let (inner, matrix) = if fused { (4, 0) } else { (6, size) };
    let block = tokens * (inner * c.ffn + 6 * c.hidden) * size + 2 * c.ffn * c.hidden * matrix;
    let logit = if kind == Kind::BFloat16 && c.vocab % 8 == 0 { size } else { 2 * 4 + 2 * size };
    let chunk = rows_at_once(c).min(tokens) * c.vocab * logit;
    let head = chunk + c.vocab * c.hidden * matrix + tokens * c.hidden * size;
    block.max(head) as u64
}

/// Elements of logits that exist at once on a GPU: 1.3 GB in float32.
const LOGITS: i64 = 5 << 26;

/// Positions whose logits exist at once on a GPU, in multiples that GEMM likes.
pub(crate) fn rows_at_once(c: &ModelConfig) -> i64 {
    // The grid of a kernel has so many rows at most.
    (LOGITS / c.vocab / 256 * 256).clamp(256, 65_536 - 256)
}

/// Bytes that the layers of a pack of `tokens` may keep for the way back, when `resident` bytes of
/// the device are taken by weights and optimizers.
///
/// # Errors
/// The pack does not fit even if every layer keeps its input alone.
pub fn spare(model: &Model, tokens: usize, resident: u64) -> Result<u64> {
    let Device::Cuda(i) = model.device else { return Ok(HOST_KEPT) };
    let Some((_, total)) = metrics::device_memory(i) else { return Ok(HOST_KEPT) };
    let (c, tokens) = (&model.config, tokens as i64);
    let taken = resident + working(c, model.kind, tokens) + RESERVE;
    let spare = total.saturating_sub(taken);
    let least = kept(c, model.kind, tokens)[0] * c.layers as u64;
    if spare < least {
        return Err(Error::Request(format!(
            "packs of {tokens} tokens need {:.1} GB beside the {:.1} GB of weights and optimizer, \
             and the device has {:.1} GB: make micro_tokens smaller",
            (taken - resident + least) as f64 / 1e9,
            resident as f64 / 1e9,
            total as f64 / 1e9
        )));
    }
    Ok(spare)
}
