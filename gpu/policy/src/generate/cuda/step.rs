//! One step: a token per row through the model, and a draw.

use kernels::launch::{self, Attention, Draw, Heads, Rope, Tokens};
use kernels::{Address, Gpu};
use tch::Tensor;

use super::buffers::Buffers;
use crate::error::Result;
use crate::model::Model;

/// A matrix as its address and as libtorch's transposed view of it.
pub(super) struct Matrix {
    pub address: Address,
    pub view: Tensor,
    rows: usize,
    columns: usize,
}

impl Matrix {
    fn new(weight: &Tensor) -> Result<Self> {
        let (rows, columns) = weight.size2()?;
        let view = weight.f_detach()?.f_transpose(0, 1)?;
        Ok(Matrix {
            address: address(weight),
            view,
            rows: rows as usize,
            columns: columns as usize,
        })
    }
}

/// The first byte of a tensor.
pub(super) fn address(t: &Tensor) -> Address {
    t.data_ptr() as Address
}

/// A layer's weights.
pub(super) struct Layer {
    pub norm1: Address,
    pub qkv: Matrix,
    pub rope: Rope,
    pub out: Matrix,
    pub norm2: Address,
    pub gate_up: Matrix,
    pub down: Matrix,
}

/// The model's weights, which must stay where they are.
pub(super) struct Weights<'a> {
    pub model: &'a Model,
    pub layers: Vec<Layer>,
    pub embed: Address,
    pub norm: Address,
    pub head: Matrix,
    pub eps: f32,
}

impl<'a> Weights<'a> {
    pub fn new(model: &'a Model) -> Result<Self> {
        let eps = model.config.norm_eps as f32;
        let mut layers = Vec::with_capacity(model.config.layers as usize);
        for i in 0..model.config.layers as usize {
            // Views of weights that live on the device, as the caller has made sure.
            let l = model.layer(i)?;
            let rope = Rope {
                bias: l.bias.as_ref().map_or(0, address),
                query_norm: l.heads.as_ref().map_or(0, |(query, _)| address(query)),
                key_norm: l.heads.as_ref().map_or(0, |(_, key)| address(key)),
                eps,
                cosines: address(&model.rope.cos),
                sines: address(&model.rope.sin),
            };
            layers.push(Layer {
                norm1: address(&l.norm1),
                qkv: Matrix::new(&l.qkv)?,
                rope,
                out: Matrix::new(&l.out)?,
                norm2: address(&l.norm2),
                gate_up: Matrix::new(&l.gate_up)?,
                down: Matrix::new(&l.down)?,
            });
        }
        let (embed, norm, head) =
            (address(&model.embed), address(&model.norm), Matrix::new(&model.head()?)?);
        Ok(Weights { model, layers, embed, norm, head, eps })
    }
}

/// What a step launches; the same each time, so that it can be recorded.
pub(super) struct Step<'a> {
    pub gpu: &'a Gpu,
    pub weights: &'a Weights<'a>,
    pub buffers: &'a Buffers,
    pub heads: Heads,
    pub sampling: &'a launch::Sampling,
    pub rows: usize,
    /// Rows of one product; divides `rows`.
    pub tile: usize,
    pub splits: usize,
}

impl Step<'_> {
    /// Launches all of it.
    pub fn run(&self) -> Result<()> {
        let (b, w, gpu, rows) = (self.buffers, self.weights, self.gpu, self.rows);
        let c = &w.model.config;
        let (hidden, vocab) = (c.hidden as usize, c.vocab as usize);
        let (x, h, delta) = (address(&b.x), address(&b.h), address(&b.delta));
        let tokens = Tokens { given: b.given(), slots: b.slots(), drawn: b.tokens.address() };
        // SAFETY, here and below: buffers have `rows` rows or more of the model's widths.
        unsafe { launch::embed(gpu, &tokens, w.embed, x, rows, hidden) }?;
        for (i, layer) in w.layers.iter().enumerate() {
            let before = if i == 0 { 0 } else { delta };
            unsafe { launch::rms_norm(gpu, x, before, layer.norm1, h, rows, hidden, w.eps) }?;
            self.multiply(&b.h, &layer.qkv, &b.qkv)?;
            self.attend(i, layer)?;
            self.multiply(&b.mixed, &layer.out, &b.delta)?;
            unsafe { launch::rms_norm(gpu, x, delta, layer.norm2, h, rows, hidden, w.eps) }?;
            self.gate(layer)?;
            self.multiply(&b.act, &layer.down, &b.delta)?;
        }
        unsafe { launch::rms_norm(gpu, x, delta, w.norm, h, rows, hidden, w.eps) }?;
        self.multiply(&b.h, &w.head, &b.logits)?;
        let draw = Draw {
            logits: address(&b.logits),
            float: false,
            seeds: b.seeds(),
            indices: b.indices(),
            slots: b.slots(),
            tokens: b.tokens.address(),
            out: b.drawn.address(),
        };
        Ok(unsafe { launch::sample(gpu, &draw, self.sampling, rows, vocab) }?)
    }

    fn attend(&self, index: usize, layer: &Layer) -> Result<()> {
        let (b, rows) = (self.buffers, self.rows);
        let (qkv, cache) = (address(&b.qkv), b.layer(index));
        let (positions, places) = (b.positions(), b.places());
        let attention = Attention {
            qkv,
            keys: cache.0,
            values: cache.1,
            tables: b.tables(),
            table_width: b.width,
            positions,
            out: address(&b.mixed),
            scratch: b.scratch.address(),
        };
        // SAFETY: buffers have `rows` rows or more; the host wrote positions and places within
        // the tables and the cache.
        unsafe {
            let (gpu, heads) = (self.gpu, self.heads);
            launch::rope_and_cache(gpu, qkv, &layer.rope, positions, places, cache, rows, heads)?;
            launch::attend(gpu, &attention, rows, self.splits, heads)?;
        }
        Ok(())
    }

    fn gate(&self, layer: &Layer) -> Result<()> {
        let (b, m) = (self.buffers, &layer.gate_up);
        let width = m.rows / 2;
        let (h, act) = (address(&b.h), address(&b.act));
        // SAFETY: as in `run`.
        unsafe {
            if self.rows == 1 {
                return Ok(launch::gemv_swiglu(self.gpu, m.address, h, act, width, m.columns)?);
            }
            self.multiply(&b.h, m, &b.both)?;
            Ok(launch::swiglu(self.gpu, address(&b.both), act, self.rows, width)?)
        }
    }

    /// `out = x * m'` for the rows of the step.
    fn multiply(&self, x: &Tensor, m: &Matrix, out: &Tensor) -> Result<()> {
        if self.rows == 1 {
            let (from, to) = (address(x), address(out));
            // SAFETY: both have a row of the matrix's widths.
            return Ok(unsafe { launch::gemv(self.gpu, m.address, from, to, m.rows, m.columns) }?);
        }
        for from in (0..self.rows).step_by(self.tile) {
            let cut = |t: &Tensor| t.f_narrow(0, from as i64, self.tile as i64);
            let _ = cut(x)?.f_mm_out(&cut(out)?, &m.view)?;
        }
        Ok(())
    }
}
