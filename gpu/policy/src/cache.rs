//! Keys and values in blocks, as libtorch tensors of one per layer.

use tch::{Device, IndexOp, Kind, Tensor};

use crate::decode::{self, Written};
use crate::error::Result;
use crate::generate::blocks::BLOCK;
use crate::model::Model;

/// All layers' keys and values, `[blocks, K, 16, D]` each.
pub struct Cache {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    device: Device,
    kind: Kind,
    heads: i64,
    width: i64,
}

/// A step's rows: their blocks, and the positions that each sees.
pub struct View<'a> {
    /// Blocks of each row, in order.
    pub tables: &'a [&'a [u32]],
    /// Positions of each row, the new one included.
    pub lengths: &'a [usize],
    /// The blocks, `[B * W]`, and what is hidden, `[B, 1, 1, W * 16]`, where libtorch gathers.
    gathered: Option<(Tensor, Tensor)>,
}

impl Cache {
    /// A cache of that many blocks. Its pages are touched as they are written.
    pub fn new(model: &Model, blocks: usize) -> Result<Self> {
        let c = &model.config;
        let (device, kind) = (model.device, model.kind);
        let shape = [blocks as i64, c.kv_heads, BLOCK as i64, c.head_dim];
        // What is hidden by a mask must still be a number.
        let own = decode::suits(kind, device, c.head_dim);
        let make = |_| match own {
            true => Tensor::f_empty(shape, (kind, device)),
            false => Tensor::f_zeros(shape, (kind, device)),
        };
        let keys = (0..c.layers).map(make).collect::<std::result::Result<_, _>>()?;
        let values = (0..c.layers).map(make).collect::<std::result::Result<_, _>>()?;
        Ok(Cache { keys, values, device, kind, heads: c.kv_heads, width: c.head_dim })
    }

    /// Bytes that a block takes in all layers.
    pub fn block_bytes(model: &Model) -> usize {
        let c = &model.config;
        let width = model.kind.elt_size_in_bytes();
        BLOCK * width * (2 * c.layers * c.kv_heads * c.head_dim) as usize
    }

    /// Rows of the flattened cache `[blocks * K * 16, D]` where a token's heads go; `places` are
    /// (block, place in it).
    pub fn places(&self, places: impl Iterator<Item = (u32, usize)>) -> Result<Tensor> {
        let heads = self.heads;
        let rows: Vec<i64> = places
            .flat_map(|(block, at)| {
                (0..heads).map(move |h| (i64::from(block) * heads + h) * BLOCK as i64 + at as i64)
            })
            .collect();
        Ok(Tensor::f_from_slice(&rows)?.f_to_device(self.device)?)
    }

    /// Writes keys and values, `[n, K, D]` in any leading shape, at `places`.
    pub fn put(&mut self, layer: usize, places: &Tensor, k: &Tensor, v: &Tensor) -> Result<()> {
        for (side, new) in [(&self.keys[layer], k), (&self.values[layer], v)] {
            let mut flat = side.f_view([-1, self.width])?;
            let _ = flat.f_index_copy_(0, places, &new.f_reshape([-1, self.width])?)?;
        }
        Ok(())
    }

    /// Copies a block of all layers.
    pub fn copy(&mut self, from: u32, to: u32) -> Result<()> {
        for side in self.keys.iter().chain(&self.values) {
            side.i(i64::from(to)).f_copy_(&side.i(i64::from(from)))?;
        }
        Ok(())
    }

    /// What rows see.
    pub fn view<'a>(&self, tables: &'a [&'a [u32]], lengths: &'a [usize]) -> Result<View<'a>> {
        if decode::suits(self.kind, self.device, self.width) {
            return Ok(View { tables, lengths, gathered: None });
        }
        let width = tables.iter().map(|t| t.len()).max().unwrap_or(1);
        let (mut blocks, mut mask) = (Vec::new(), Vec::new());
        for (table, &length) in tables.iter().zip(lengths) {
            blocks.extend((0..width).map(|n| table.get(n).map_or(0, |&b| i64::from(b))));
            mask.extend(
                (0..width * BLOCK).map(|n| if n < length { 0.0 } else { f32::NEG_INFINITY }),
            );
        }
        let blocks = Tensor::f_from_slice(&blocks)?.f_to_device(self.device)?;
        let mask = Tensor::f_from_slice(&mask)?.f_view([tables.len() as i64, 1, 1, -1])?;
        let mask = mask.f_to_kind(self.kind)?.f_to_device(self.device)?;
        Ok(View { tables, lengths, gathered: Some((blocks, mask)) })
    }

    /// Attention of one new token per row: `q` `[B, H, D]`; answers `[B, 1, H * D]`.
    pub fn attend(&self, layer: usize, q: &Tensor, view: &View) -> Result<Tensor> {
        let (keys, values) = (&self.keys[layer], &self.values[layer]);
        let (rows, heads, width) = q.size3()?;
        let Some((blocks, mask)) = &view.gathered else {
            let (tables, lengths) = (view.tables, view.lengths);
            let out = decode::attend(q, &Written { keys, values, tables, lengths })?;
            return Ok(out.f_view([rows, 1, -1])?);
        };
        let own = |side: &Tensor| -> Result<Tensor> {
            let all = side.f_index_select(0, blocks)?;
            let all = all.f_view([rows, -1, self.heads, BLOCK as i64, width])?;
            Ok(all.f_transpose(1, 2)?.f_reshape([rows, self.heads, -1, width])?)
        };
        // The query heads that share a key head become the rows of one small product, so that
        // each key is read once.
        let q = q.f_reshape([rows, self.heads, heads / self.heads, width])?;
        let (k, v) = (own(keys)?, own(values)?);
        let out = Tensor::f_scaled_dot_product_attention(
            &q,
            &k,
            &v,
            Some(mask),
            0.0,
            false,
            None,
            false,
        )?;
        Ok(out.f_reshape([rows, 1, heads * width])?)
    }
}
