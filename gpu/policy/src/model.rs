//! Llama and Qwen2: one decoder, differing only in biases.
//!
//! Shapes: `B` rows, `T` positions, `H` query heads, `K` key heads, `D` head width.

use tch::{Device, Kind, Tensor};

use crate::config::{Architecture, ModelConfig};
use crate::error::Result;
use crate::params::Params;
use crate::rope::Rope;

pub(crate) struct Layer {
    pub(crate) norm1: Tensor,
    pub(crate) qkv: Tensor,
    pub(crate) bias: Option<Tensor>,
    pub(crate) out: Tensor,
    pub(crate) norm2: Tensor,
    pub(crate) gate_up: Tensor,
    pub(crate) down: Tensor,
}

/// A decoder with its weights. All tensors live on one device.
pub struct Model {
    /// The shape.
    pub config: ModelConfig,
    /// The weights.
    pub params: Params,
    /// Where they live.
    pub device: Device,
    /// The type they are computed in.
    pub kind: Kind,
    pub(crate) embed: Tensor,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Tensor,
    pub(crate) head: Tensor,
    pub(crate) rope: Rope,
}

impl Model {
    /// Builds the decoder over `params`, which must follow `config`'s layout.
    pub fn new(config: ModelConfig, params: Params) -> Result<Self> {
        let (device, kind) = (params.flat.device(), params.flat.f_kind()?);
        let per_layer = if config.architecture == Architecture::Qwen2 { 7 } else { 6 };
        let v = |i: usize| params.views[i].shallow_clone();
        let layer = |i: usize| {
            let at = 1 + i * per_layer;
            let b = per_layer - 6;
            Layer {
                norm1: v(at),
                qkv: v(at + 1),
                bias: (b == 1).then(|| v(at + 2)),
                out: v(at + 2 + b),
                norm2: v(at + 3 + b),
                gate_up: v(at + 4 + b),
                down: v(at + 5 + b),
            }
        };
        let layers: Vec<Layer> = (0..config.layers as usize).map(layer).collect();
        let after = 1 + layers.len() * per_layer;
        let rope = Rope::new(&config, kind, device)?;
        let head = if config.tied { v(0) } else { v(after + 1) };
        let (embed, norm) = (v(0), v(after));
        Ok(Model { config, device, kind, embed, layers, norm, head, rope, params })
    }

    /// Index into `params.views` of the output head.
    pub fn head_index(&self) -> usize {
        if self.config.tied { 0 } else { self.params.views.len() - 1 }
    }

    /// Normed hidden states `[B, T, hidden]` of right-padded `ids` `[B, T]` (int64), causal.
    /// What stands in the padding reaches no real position.
    pub fn hidden(&self, ids: &Tensor) -> Result<Tensor> {
        let length = ids.size()[1];
        let turn = self.rope.range(length)?;
        self.run(ids, &turn, |_, q, k, v| {
            let (q, k, v) = (q.f_transpose(1, 2)?, k.f_transpose(1, 2)?, v.f_transpose(1, 2)?);
            self.attend(&q, &k, &v, None, true)
        })
    }

    /// Logits `[n, vocab]` in float32 of hidden states `[n, hidden]`.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(hidden.f_linear::<&Tensor>(&self.head, None)?.f_to_kind(Kind::Float)?)
    }

    /// The decoder. `attend(layer, q [B,T,H,D], k [B,T,K,D], v)` answers `[B, T, H*D]`.
    pub(crate) fn run(
        &self,
        ids: &Tensor,
        turn: &crate::rope::Turn,
        mut attend: impl FnMut(usize, &Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let c = &self.config;
        let (rows, length) = ids.size2()?;
        let norm = |x: &Tensor, w: &Tensor| x.f_rms_norm([c.hidden], Some(w), c.norm_eps);
        let mut x = Tensor::f_embedding(&self.embed, ids, -1, false, false)?;
        for (i, l) in self.layers.iter().enumerate() {
            let qkv = norm(&x, &l.norm1)?.f_linear(&l.qkv, l.bias.as_ref())?;
            let heads = c.heads + 2 * c.kv_heads;
            let qkv = qkv.f_view([rows, length, heads, c.head_dim])?;
            let qk = turn.apply(&qkv.f_narrow(2, 0, c.heads + c.kv_heads)?)?;
            let q = qk.f_narrow(2, 0, c.heads)?;
            let k = qk.f_narrow(2, c.heads, c.kv_heads)?;
            let v = qkv.f_narrow(2, c.heads + c.kv_heads, c.kv_heads)?;
            let mixed = attend(i, &q, &k, &v)?.f_linear::<&Tensor>(&l.out, None)?;
            x = x.f_add(&mixed)?;
            let up = norm(&x, &l.norm2)?.f_linear::<&Tensor>(&l.gate_up, None)?;
            let gate = up.f_narrow(2, 0, c.ffn)?.f_silu()?;
            let inner = gate.f_mul(&up.f_narrow(2, c.ffn, c.ffn)?)?;
            x = x.f_add(&inner.f_linear::<&Tensor>(&l.down, None)?)?;
        }
        Ok(norm(&x, &self.norm)?)
    }

    /// Attention over `[B, H, T, D]` and `[B, K, T, D]`; answers `[B, T, H*D]`.
    pub(crate) fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        causal: bool,
    ) -> Result<Tensor> {
        let c = &self.config;
        let (rows, _, length, _) = q.size4()?;
        // The memory-efficient CUDA kernel (float32, or any mask) knows no grouped heads; the
        // fall-back would build the whole T x T matrix.
        let grouped = self.device == Device::Cpu || (self.kind != Kind::Float && mask.is_none());
        let out = if grouped || c.heads == c.kv_heads {
            let gqa = c.heads != c.kv_heads;
            Tensor::f_scaled_dot_product_attention(q, k, v, mask, 0.0, causal, None, gqa)?
        } else {
            let (k, v) = (repeat(k, c.heads / c.kv_heads)?, repeat(v, c.heads / c.kv_heads)?);
            Tensor::f_scaled_dot_product_attention(q, &k, &v, mask, 0.0, causal, None, false)?
        };
        Ok(out.f_transpose(1, 2)?.f_reshape([rows, length, c.heads * c.head_dim])?)
    }
}

fn repeat(x: &Tensor, times: i64) -> Result<Tensor> {
    Ok(x.f_repeat_interleave_self_int(times, 1, None)?)
}
