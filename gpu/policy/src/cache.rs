//! Keys and values of the tokens read so far, for a batch of left-padded rows.
//!
//! All rows share the current column, so a step writes one slice; rows differ in how many
//! columns of padding precede their first token.

use tch::{Device, Kind, Tensor};

use crate::decode;
use crate::error::Result;
use crate::model::Model;

/// Room grows by at least this many positions at a time.
const CHUNK: i64 = 256;

/// One batch's keys and values, `[B, K, capacity, D]` per layer.
pub struct Cache {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    length: i64,
    capacity: i64,
    /// int64 `[B]`: padding columns of each row.
    pads: Tensor,
    /// The same, on the host.
    host_pads: Vec<i64>,
    /// `[B, 1, 1, capacity]`, minus infinity on padding; `None` if no row has any.
    mask: Option<Tensor>,
    kind: Kind,
    device: Device,
}

impl Cache {
    /// An empty cache.
    pub fn new(model: &Model, rows: i64, capacity: i64, pads: &[i64]) -> Result<Self> {
        let c = &model.config;
        let capacity = (capacity + 7) / 8 * 8;
        let shape = [rows, c.kv_heads, capacity, c.head_dim];
        let make = |_| Tensor::f_zeros(shape, (model.kind, model.device));
        let keys = (0..c.layers).map(make).collect::<std::result::Result<_, _>>()?;
        let values = (0..c.layers).map(make).collect::<std::result::Result<_, _>>()?;
        let padded = pads.iter().any(|&p| p > 0);
        let host_pads = pads.to_vec();
        let pads = Tensor::f_from_slice(pads)?.f_to_device(model.device)?;
        let (kind, device) = (model.kind, model.device);
        let (length, mask) = (0, None);
        let mut cache =
            Cache { keys, values, length, capacity, pads, host_pads, mask, kind, device };
        if padded {
            cache.mask = Some(cache.build_mask()?);
        }
        Ok(cache)
    }

    /// Columns in use.
    pub fn length(&self) -> i64 {
        self.length
    }

    fn build_mask(&self) -> Result<Tensor> {
        let columns = Tensor::f_arange(self.capacity, (Kind::Int64, self.device))?;
        let hidden = columns.f_unsqueeze(0)?.f_lt_tensor(&self.pads.f_unsqueeze(1)?)?;
        let rows = self.pads.size()[0];
        let zeros = Tensor::f_zeros([rows, self.capacity], (self.kind, self.device))?;
        let mask = zeros.f_masked_fill(&hidden, f64::NEG_INFINITY)?;
        Ok(mask.f_view([rows, 1, 1, self.capacity])?)
    }

    /// The mask of a whole left-padded prompt, `[B, 1, T, T]`; `None` without padding.
    /// A padding position sees itself, since a row of nothing would give NaN.
    pub fn prefill_mask(&self, length: i64) -> Result<Option<Tensor>> {
        let Some(padding) = &self.mask else { return Ok(None) };
        let at = Tensor::f_arange(length, (Kind::Int64, self.device))?;
        let (query, key) = (at.f_unsqueeze(1)?, at.f_unsqueeze(0)?);
        let later = key.f_gt_tensor(&query)?;
        let other = key.f_ne_tensor(&query)?;
        let hidden = padding.f_narrow(3, 0, length)?.f_lt(0.0)?.f_logical_or(&later)?;
        let hidden = hidden.f_logical_and(&other)?;
        let zeros = Tensor::f_zeros(&hidden.size()[..], (self.kind, self.device))?;
        Ok(Some(zeros.f_masked_fill(&hidden, f64::NEG_INFINITY)?))
    }

    /// Positions int64 `[B, T]` of a whole left-padded prompt, padding at 0.
    pub fn positions(&self, length: i64) -> Result<Tensor> {
        let at = Tensor::f_arange(length, (Kind::Int64, self.device))?;
        let positions = at.f_unsqueeze(0)?.f_sub(&self.pads.f_unsqueeze(1)?)?;
        Ok(positions.f_clamp_min(0)?)
    }

    /// Positions int64 `[B, 1]` of the next token.
    pub fn position(&self) -> Result<Tensor> {
        Ok(self.pads.f_neg()?.f_add_scalar(self.length)?.f_unsqueeze(1)?)
    }

    /// The mask over the columns up to and with the current one.
    pub fn step_mask(&self) -> Result<Option<Tensor>> {
        let cut = |m: &Tensor| m.f_narrow(3, 0, self.length + 1);
        Ok(self.mask.as_ref().map(cut).transpose()?)
    }

    /// Writes `[B, K, count, D]` keys and values at the current column.
    pub fn put(&mut self, layer: usize, k: &Tensor, v: &Tensor, count: i64) -> Result<()> {
        self.keys[layer].f_narrow(2, self.length, count)?.f_copy_(k)?;
        self.values[layer].f_narrow(2, self.length, count)?.f_copy_(v)?;
        Ok(())
    }

    /// Keys and values up to and with `more` columns beyond the current length.
    pub fn upto(&self, layer: usize, more: i64) -> Result<(Tensor, Tensor)> {
        let cut = |t: &Tensor| t.f_narrow(2, 0, self.length + more);
        Ok((cut(&self.keys[layer])?, cut(&self.values[layer])?))
    }

    /// A layer up to and with the current column, if our own kernel can read it.
    pub fn on_cpu(&self, layer: usize) -> Option<decode::Written<'_>> {
        let (keys, values) = (&self.keys[layer], &self.values[layer]);
        let (length, pads) = (self.length as usize + 1, &self.host_pads[..]);
        decode::suits(keys).then_some(decode::Written { keys, values, length, pads })
    }

    /// Counts `count` columns as written.
    pub fn advance(&mut self, count: i64) {
        self.length += count;
    }

    /// Keeps `rows` (int64), in that order; a row may repeat.
    pub fn select(&mut self, rows: &[i64]) -> Result<()> {
        self.host_pads = rows.iter().map(|&r| self.host_pads[r as usize]).collect();
        let rows = Tensor::f_from_slice(rows)?.f_to_device(self.device)?;
        for t in self.keys.iter_mut().chain(&mut self.values) {
            *t = t.f_index_select(0, &rows)?;
        }
        self.pads = self.pads.f_index_select(0, &rows)?;
        self.mask = self.mask.take().map(|m| m.f_index_select(0, &rows)).transpose()?;
        Ok(())
    }

    /// Makes sure that one more column fits; `most` bounds the growth.
    pub fn reserve(&mut self, most: i64) -> Result<()> {
        if self.length < self.capacity {
            return Ok(());
        }
        let wanted = (self.capacity + CHUNK.max(self.capacity / 2)).min(most);
        let capacity = (wanted.max(self.length + 1) + 7) / 8 * 8;
        for t in self.keys.iter_mut().chain(&mut self.values) {
            let (rows, heads, _, width) = t.size4()?;
            let larger = Tensor::f_zeros([rows, heads, capacity, width], (self.kind, self.device))?;
            larger.f_narrow(2, 0, self.length)?.f_copy_(&t.f_narrow(2, 0, self.length)?)?;
            *t = larger;
        }
        self.capacity = capacity;
        if self.mask.is_some() {
            self.mask = Some(self.build_mask()?);
        }
        Ok(())
    }
}
