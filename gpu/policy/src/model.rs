//! Llama, Qwen2 and Qwen3: one decoder, differing only in biases and in norms of heads.
//!
//! [`Model::hidden`] is the plain forward pass over rectangles, on libtorch's own attention and
//! differentiable: what packed training ([`crate::train`]) and generation are held to.
//!
//! Shapes: `B` rows, `T` positions, `H` query heads, `K` key heads, `D` head width.

use tch::{Device, Kind, Tensor};

use crate::config::{Architecture, ModelConfig};
use crate::decode;
use crate::error::Result;
use crate::exact::{self, Sight};
use crate::layout::per_layer;
use crate::libtorch;
use crate::lora::Adapter;
use crate::params::Params;
use crate::rope::{Rope, Turn};

/// The weights of one layer.
pub(crate) struct Layer {
    /// Place of `norm1` among the parameters; the others follow in the order of the layout.
    pub(crate) first: usize,
    pub(crate) norm1: Tensor,
    pub(crate) qkv: Tensor,
    pub(crate) bias: Option<Tensor>,
    /// Norms of query and key heads.
    pub(crate) heads: Option<(Tensor, Tensor)>,
    pub(crate) out: Tensor,
    pub(crate) norm2: Tensor,
    pub(crate) gate_up: Tensor,
    pub(crate) down: Tensor,
}

impl Layer {
    /// `v` are the layer's parameters in the order of the layout.
    fn new(first: usize, architecture: Architecture, v: &[Tensor]) -> Self {
        let at = |i: usize| v[i].shallow_clone();
        let more = per_layer(architecture) - 6;
        Layer {
            first,
            norm1: at(0),
            qkv: at(1),
            bias: (more == 1).then(|| at(2)),
            heads: (more == 2).then(|| (at(2), at(3))),
            out: at(2 + more),
            norm2: at(3 + more),
            gate_up: at(4 + more),
            down: at(5 + more),
        }
    }

    /// Place of `out` among the parameters; `norm2`, `gate_up` and `down` follow it.
    pub(crate) fn second(&self) -> usize {
        self.first + 2 + usize::from(self.bias.is_some()) + 2 * usize::from(self.heads.is_some())
    }
}

/// A decoder with its weights. All tensors live on one device.
pub struct Model {
    /// The shape.
    pub config: ModelConfig,
    /// The weights.
    pub params: Params,
    /// Where it computes; the weights may live in the host's memory meanwhile.
    pub device: Device,
    /// The type they are computed in.
    pub kind: Kind,
    /// What is trained instead of the weights, if anything.
    pub adapter: Option<Adapter>,
    /// A token's scores depend, to the last bit, on the tokens before it alone: in deterministic mode,
    /// where there is such a pass (float32 on a CPU, heads a multiple of 8 wide). Slower.
    pub exact: bool,
    pub(crate) embed: Tensor,
    pub(crate) norm: Tensor,
    head: Tensor,
    pub(crate) rope: Rope,
}

impl Model {
    /// Builds the decoder over `params`, which must follow `config`'s layout.
    pub fn new(config: ModelConfig, params: Params) -> Result<Self> {
        let device = params.flat.device();
        Self::on(config, params, device)
    }

    /// A decoder that computes on `device` with weights that stay where they are; if that is the
    /// host's memory, layers are copied to the device one by one when they are needed.
    pub fn on(config: ModelConfig, params: Params, device: Device) -> Result<Self> {
        let kind = params.flat.f_kind()?;
        let v = |i: usize| params.views[i].shallow_clone();
        let after = 1 + config.layers as usize * per_layer(config.architecture);
        let rope = Rope::new(&config, kind, device)?;
        let head = if config.tied { v(0) } else { v(after + 1) };
        let (embed, norm) = (v(0), v(after).f_to_device(device)?);
        let exact = libtorch::is_deterministic() && decode::suits(kind, device, config.head_dim);
        Ok(Model { config, device, kind, adapter: None, exact, embed, norm, head, rope, params })
    }

    /// The weights of layer `i`, on the device.
    pub(crate) fn layer(&self, i: usize) -> Result<Layer> {
        let architecture = self.config.architecture;
        let (first, count) = (1 + i * per_layer(architecture), per_layer(architecture));
        let views = &self.params.views[first..first + count];
        if self.params.flat.device() == self.device {
            return Ok(Layer::new(first, architecture, views));
        }
        let copy = |t: &Tensor| t.f_to_device_(self.device, self.kind, true, false);
        let views = views.iter().map(copy).collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(Layer::new(first, architecture, &views))
    }

    /// The output head `[vocab, hidden]`, on the device.
    pub fn head(&self) -> Result<Tensor> {
        Ok(self.head.f_to_device(self.device)?)
    }

    /// Embeddings `[.., hidden]` of `ids`, on the device.
    pub(crate) fn embedded(&self, ids: &Tensor) -> Result<Tensor> {
        let ids = ids.f_to_device(self.embed.device())?;
        Ok(Tensor::f_embedding(&self.embed, &ids, -1, false, false)?.f_to_device(self.device)?)
    }

    /// Index into `params.views` of the output head.
    pub fn head_index(&self) -> usize {
        if self.config.tied { 0 } else { self.params.views.len() - 1 }
    }

    /// Index into `params.views` of the last norm.
    pub(crate) fn norm_index(&self) -> usize {
        1 + self.config.layers as usize * per_layer(self.config.architecture)
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
        Ok(self.linear(hidden, &self.head()?, None)?.f_to_kind(self.sum_kind())?)
    }

    /// `[.., out]` of `x` `[.., in]`.
    pub(crate) fn linear(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if self.exact { exact::linear(x, w, bias) } else { Ok(x.f_linear(w, bias)?) }
    }

    /// `x` `[.., n]` normed, with the weights `[n]` of the norm.
    pub(crate) fn normed(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let eps = self.config.norm_eps;
        match self.exact {
            true => exact::rms_norm(x, weight, eps),
            false => Ok(x.f_internal_fused_rms_norm(weight.size(), Some(weight), eps)?.0),
        }
    }

    /// `silu(gate) * up` `[.., ffn]` of `both` `[.., 2 * ffn]`.
    pub(crate) fn gated(&self, both: &Tensor) -> Result<Tensor> {
        if self.exact {
            return exact::swiglu(both);
        }
        let (ffn, dim) = (self.config.ffn, both.dim() as i64 - 1);
        let gate = both.f_narrow(dim, 0, ffn)?.f_silu()?;
        Ok(gate.f_mul(&both.f_narrow(dim, ffn, ffn)?)?)
    }

    /// The type of sums, scores and gradients: float32, or float64 of a float64 model.
    pub fn sum_kind(&self) -> Kind {
        if self.kind == Kind::Double { self.kind } else { Kind::Float }
    }

    /// Query, key and value heads of projections `[.., H + 2K, D]`: normed if the architecture
    /// norms them, and rotated.
    pub(crate) fn heads(&self, layer: &Layer, qkv: &Tensor, turn: &Turn) -> Result<[Tensor; 3]> {
        let c = &self.config;
        let dim = qkv.dim() as i64 - 2;
        let cut = |from, n| qkv.f_narrow(dim, from, n);
        let v = cut(c.heads + c.kv_heads, c.kv_heads)?;
        let qk = match &layer.heads {
            None => cut(0, c.heads + c.kv_heads)?,
            Some((q_norm, k_norm)) => {
                let q = self.normed(&cut(0, c.heads)?, q_norm)?;
                Tensor::f_cat(&[q, self.normed(&cut(c.heads, c.kv_heads)?, k_norm)?], dim)?
            }
        };
        let qk = if self.exact { exact::turned(&qk, turn)? } else { turn.apply(&qk)? };
        Ok([qk.f_narrow(dim, 0, c.heads)?, qk.f_narrow(dim, c.heads, c.kv_heads)?, v])
    }

    /// The decoder. `attend(layer, q [B,T,H,D], k [B,T,K,D], v)` answers `[B, T, H*D]`.
    pub(crate) fn run(
        &self,
        ids: &Tensor,
        turn: &Turn,
        mut attend: impl FnMut(usize, &Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let c = &self.config;
        let (rows, length) = ids.size2()?;
        let mut x = self.embedded(ids)?;
        for i in 0..c.layers as usize {
            let l = self.layer(i)?;
            let qkv = self.linear(&self.normed(&x, &l.norm1)?, &l.qkv, l.bias.as_ref())?;
            let heads = c.heads + 2 * c.kv_heads;
            let qkv = qkv.f_view([rows, length, heads, c.head_dim])?;
            let [q, k, v] = self.heads(&l, &qkv, turn)?;
            x = x.f_add(&self.linear(&attend(i, &q, &k, &v)?, &l.out, None)?)?;
            let up = self.linear(&self.normed(&x, &l.norm2)?, &l.gate_up, None)?;
            x = x.f_add(&self.linear(&self.gated(&up)?, &l.down, None)?)?;
        }
        self.normed(&x, &self.norm)
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
        if self.exact && causal && mask.is_none() {
            let flat = |t: &Tensor| t.f_transpose(1, 2)?.f_flatten(0, 1);
            let n = length as usize;
            let one = |t| Sight { start: t / n * n, own: t % n + 1, ..Sight::default() };
            let sights: Vec<Sight> = (0..rows as usize * n).map(one).collect();
            let (out, _) = exact::attend([&flat(q)?, &flat(k)?, &flat(v)?], &sights)?;
            return Ok(out.f_view([rows, length, c.heads * c.head_dim])?);
        }
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
