//! One decoder layer over packed tokens, forward and back.
//!
//! The backward pass is written out rather than left to autograd: so it keeps what is dear to
//! compute and cheap to hold, computes the rest again, and its gradients go straight into the sums.

use tch::Tensor;

use crate::attention::{self, Attended, Spans};
use crate::error::Result;
use crate::fused::{self, Fused};
use crate::gradients::{Gradients, Sink, vjp};
use crate::linear::Proj;
use crate::model::{Layer, Model};
use crate::rope::Turn;

/// What a backward pass wants of the first half of a layer. `T` tokens.
pub(crate) struct Mid {
    /// Rotated query and key heads and value heads: `[T, H, D]`, `[T, K, D]`, `[T, K, D]`.
    qkv: [Tensor; 3],
    /// Query and key projections before their norms `[1, T, H + K, D]`, if they have any.
    raw: Option<Tensor>,
    attended: Attended,
    /// The residual stream after attention `[T, hidden]`.
    x: Tensor,
}

/// What is kept of a layer's forward pass.
pub(crate) struct Saved {
    /// The layer's input `[T, hidden]`.
    x: Tensor,
    mid: Option<Mid>,
    /// Gate and up projections `[T, 2 * ffn]`.
    up: Option<Tensor>,
}

/// How much of a layer is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Its input: the whole layer is computed again.
    Input,
    /// Also projections, output and log-sum-exp of attention and what comes after it: the
    /// gate-up product is computed again.
    Attention,
    /// Also the gate-up product: only norms and products of numbers are computed again.
    All,
}

/// The pack that layers work on.
pub(crate) struct Context<'a> {
    pub(crate) model: &'a Model,
    pub(crate) turn: &'a Turn,
    pub(crate) spans: &'a Spans,
    /// Our kernels, where they serve.
    fused: Option<Fused>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(model: &'a Model, turn: &'a Turn, spans: &'a Spans) -> Result<Self> {
        let fused = match fused::serves(&model.config) {
            true => fused::kernels(model.device, model.kind)?,
            false => None,
        };
        Ok(Context { model, turn, spans, fused })
    }

    /// The layer's output, nothing kept.
    pub(crate) fn through(&self, l: usize, layer: &Layer, x: Tensor) -> Result<Tensor> {
        let mid = self.first(l, layer, &x)?.x;
        let inner = self.gated(&self.up(l, layer, &mid)?)?;
        Ok(self.model.project(l, layer, Proj::Down, &inner)?.f_add_(&mid)?)
    }

    /// The layer's output `[T, hidden]` for its input `x`.
    pub(crate) fn forward(&self, l: usize, x: Tensor, keep: Keep) -> Result<(Tensor, Saved)> {
        let layer = self.model.layer(l)?;
        let mid = self.first(l, &layer, &x)?;
        let up = self.up(l, &layer, &mid.x)?;
        let inner = self.gated(&up)?;
        let y = self.model.project(l, &layer, Proj::Down, &inner)?.f_add_(&mid.x)?;
        let mid = (keep != Keep::Input).then_some(mid);
        let up = (keep == Keep::All).then_some(up);
        Ok((y, Saved { x, mid, up }))
    }

    fn first(&self, l: usize, layer: &Layer, x: &Tensor) -> Result<Mid> {
        let (model, c) = (self.model, &self.model.config);
        let tokens = x.size()[0];
        let flat = model.project(l, layer, Proj::Qkv, &self.model.normed(x, &layer.norm1)?)?;
        let whole = flat.f_view([1, tokens, c.heads + 2 * c.kv_heads, c.head_dim])?;
        let (qkv, raw) = if let (Some(fused), None) = (&self.fused, &layer.heads) {
            fused.rotate(&whole, self.turn, c)?;
            let cut = |from, n| whole.f_narrow(2, from, n);
            let (q, k) = (cut(0, c.heads)?, cut(c.heads, c.kv_heads)?);
            ([q, k, cut(c.heads + c.kv_heads, c.kv_heads)?], None)
        } else if layer.heads.is_none() {
            let [q, k, v] = model.heads(layer, &whole, self.turn)?;
            // What was rotated is not needed again, so the rotated takes its place.
            let q = { whole.f_narrow(2, 0, c.heads)? }.replaced(&q)?;
            let k = { whole.f_narrow(2, c.heads, c.kv_heads)? }.replaced(&k)?;
            ([q, k, v], None)
        } else {
            let [q, k, v] = model.heads(layer, &whole, self.turn)?;
            ([q, k, v], Some(whole.f_narrow(2, 0, c.heads + c.kv_heads)?))
        };
        let qkv = qkv.map(|t| t.f_squeeze_dim(0));
        let [q, k, v] = qkv;
        let (q, k, v) = (q?, k?, v?);
        let attended = attention::forward(&q, &k, &v, self.spans, model.exact)?;
        let out = attended.out.f_reshape([tokens, c.heads * c.head_dim])?;
        let x = model.project(l, layer, Proj::Out, &out)?.f_add_(x)?;
        Ok(Mid { qkv: [q, k, v], raw, attended, x })
    }

    fn up(&self, l: usize, layer: &Layer, x: &Tensor) -> Result<Tensor> {
        self.model.project(l, layer, Proj::GateUp, &self.model.normed(x, &layer.norm2)?)
    }

    /// `silu(gate) * up` `[T, ffn]`.
    fn gated(&self, up: &Tensor) -> Result<Tensor> {
        if let Some(fused) = &self.fused {
            return fused.swiglu(up);
        }
        self.model.gated(up)
    }

    /// The gradient of `up`, given that of [`Self::gated`].
    fn gated_back(&self, up: Tensor, mut grad: Tensor) -> Result<Tensor> {
        if let Some(fused) = &self.fused {
            return fused.swiglu_back(up, &grad);
        }
        let ffn = self.model.config.ffn;
        let (gate, rest) = (up.f_narrow(1, 0, ffn)?, up.f_narrow(1, ffn, ffn)?);
        let d_up = up.f_empty_like()?;
        let _ = grad.f_mul_out(&d_up.f_narrow(1, ffn, ffn)?, &gate.f_silu()?)?;
        let _ = grad.f_mul_(&rest)?;
        let _ = gate.f_silu_backward_grad_input(&d_up.f_narrow(1, 0, ffn)?, &grad)?;
        Ok(d_up)
    }

    /// The gradient of the layer's input, given that of its output.
    pub(crate) fn backward(
        &self,
        l: usize,
        saved: Saved,
        dy: Tensor,
        grads: &Gradients,
    ) -> Result<Tensor> {
        let layer = self.model.layer(l)?;
        let Saved { x, mid, up } = saved;
        let mid = match mid {
            Some(mid) => mid,
            None => self.first(l, &layer, &x)?,
        };
        let dx = self.second_back(l, &layer, &mid.x, up, dy, grads)?;
        self.first_back(l, &layer, &x, mid, dx, grads)
    }

    /// Through the feed-forward half: `x` is the stream between the halves.
    fn second_back(
        &self,
        l: usize,
        layer: &Layer,
        x: &Tensor,
        up: Option<Tensor>,
        dy: Tensor,
        grads: &Gradients,
    ) -> Result<Tensor> {
        let model = self.model;
        let normed = self.model.normed(x, &layer.norm2)?;
        let up = match up {
            Some(up) => up,
            None => model.project(l, layer, Proj::GateUp, &normed)?,
        };
        let inner = self.gated(&up)?;
        let d_inner = model.project_back(l, layer, Proj::Down, [&inner, &dy], grads)?;
        drop(inner);
        let d_up = self.gated_back(up, d_inner)?;
        let d_normed = model.project_back(l, layer, Proj::GateUp, [&normed, &d_up], grads)?;
        drop((d_up, normed));
        let index = layer.second() + 1;
        self.norm_back([x, &layer.norm2, &d_normed], index, grads.base.as_ref(), dy)
    }

    /// Through the attention half: `dx` is the gradient of the stream between the halves.
    fn first_back(
        &self,
        l: usize,
        layer: &Layer,
        x: &Tensor,
        mid: Mid,
        dx: Tensor,
        grads: &Gradients,
    ) -> Result<Tensor> {
        let (model, c) = (self.model, &self.model.config);
        let tokens = x.size()[0];
        let out = mid.attended.out.f_reshape([tokens, c.heads * c.head_dim])?;
        let d_out = model.project_back(l, layer, Proj::Out, [&out, &dx], grads)?;
        let d_out = d_out.f_view([tokens, c.heads, c.head_dim])?;
        let [q, k, v] = &mid.qkv;
        let [dq, dk, dv] = attention::backward(&d_out, [q, k, v], &mid.attended, self.spans)?;
        drop(d_out);
        let d_qkv = self.heads_back(layer, mid.raw.as_ref(), [dq, dk, dv], grads)?;
        drop(mid);
        let d_qkv = d_qkv.f_view([tokens, -1])?;
        let normed = self.model.normed(x, &layer.norm1)?;
        let d_normed = model.project_back(l, layer, Proj::Qkv, [&normed, &d_qkv], grads)?;
        self.norm_back([x, &layer.norm1, &d_normed], layer.first, grads.base.as_ref(), dx)
    }

    /// The gradient `[T, H + 2K, D]` of the projections, from those of the heads; `raw` are the
    /// projections before their norms.
    fn heads_back(
        &self,
        layer: &Layer,
        raw: Option<&Tensor>,
        [dq, dk, dv]: [Tensor; 3],
        grads: &Gradients,
    ) -> Result<Tensor> {
        let (model, c) = (self.model, &self.model.config);
        if let (Some(fused), None) = (&self.fused, &layer.heads) {
            let parts = [dq.f_contiguous()?, dk.f_contiguous()?, dv.f_contiguous()?];
            return fused.rotate_back(parts.each_ref(), self.turn, c);
        }
        let whole = [dq.size()[0], c.heads + 2 * c.kv_heads, c.head_dim];
        let d_qkv = Tensor::f_empty(whole, (model.kind, model.device))?;
        let back = self.turn.back()?;
        let mut parts = [
            (back.apply(&dq.f_unsqueeze(0)?)?, 0, c.heads),
            (back.apply(&dk.f_unsqueeze(0)?)?, c.heads, c.kv_heads),
        ];
        if let (Some(raw), Some((q_norm, k_norm))) = (raw, &layer.heads) {
            for ((grad, from, n), (weight, index)) in
                parts.iter_mut().zip([(q_norm, layer.first + 2), (k_norm, layer.first + 3)])
            {
                let raw = raw.f_narrow(2, *from, *n)?;
                let found = vjp(&[&raw, weight], grad, |leaves| {
                    Ok(leaves[0].f_rms_norm([c.head_dim], Some(&leaves[1]), c.norm_eps)?)
                })?;
                if let Some(sink) = &grads.base {
                    sink.add(index, &found[1])?;
                }
                *grad = found[0].shallow_clone();
            }
        }
        for (grad, from, n) in &parts {
            d_qkv.f_narrow(1, *from, *n)?.f_copy_(&grad.f_squeeze_dim(0)?)?;
        }
        d_qkv.f_narrow(1, c.heads + c.kv_heads, c.kv_heads)?.f_copy_(&dv)?;
        Ok(d_qkv)
    }

    /// Adds to `stream`, the gradient past a norm, what came through it.
    fn norm_back(
        &self,
        [x, weight, grad]: [&Tensor; 3],
        index: usize,
        sink: Option<&Sink>,
        mut stream: Tensor,
    ) -> Result<Tensor> {
        let c = &self.model.config;
        let found = vjp(&[x, weight], grad, |leaves| {
            Ok(leaves[0].f_internal_fused_rms_norm([c.hidden], Some(&leaves[1]), c.norm_eps)?.0)
        })?;
        if let Some(sink) = sink {
            sink.add(index, &found[1])?;
        }
        Ok(stream.f_add_(&found[0])?)
    }
}

/// A tensor with other contents.
trait Replaced {
    fn replaced(self, by: &Tensor) -> Result<Tensor>;
}

impl Replaced for Tensor {
    fn replaced(mut self, by: &Tensor) -> Result<Tensor> {
        self.f_copy_(by)?;
        Ok(self)
    }
}
