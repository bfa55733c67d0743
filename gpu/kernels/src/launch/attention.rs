//! Queries, keys and values, their cache, and attention over it.

use std::ffi::c_void;

use super::{eighths, launch};
use crate::error::{Error, Result};
use crate::machine::{Address, Machine};

/// The heads of an attention layer and its cache.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head: 64 or 128.
    pub dim: usize,
}

impl Heads {
    /// # Errors
    /// A width or a grouping that the kernels do not serve.
    pub fn checked(self) -> Result<Self> {
        if !matches!(self.dim, 64 | 128) || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::Shape(format!(
                "{self:?}: the kernels need heads of width 64 or 128 in whole groups"
            )));
        }
        Ok(self)
    }

    /// Width of a row of the fused projection.
    pub fn row(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }
}

/// What turns a fused projection into queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Rope {
    /// `[heads + 2 * kv_heads, dim]`, or 0.
    pub bias: Address,
    /// `[dim]`: weight of the norm of every query head (Qwen3), or 0.
    pub query_norm: Address,
    /// `[dim]`: the same of key heads, or 0.
    pub key_norm: Address,
    /// Epsilon of those norms.
    pub eps: f32,
    /// `[context, dim]`.
    pub cosines: Address,
    /// `[context, dim]`, those of the first half negated.
    pub sines: Address,
}

/// Finishes `qkv` `[rows, heads + 2 * kv_heads, dim]` in place and writes keys and values
/// `[blocks, kv_heads, 16, dim]` at `places` (i32 `[rows]`, block * 16 + place in it);
/// `positions` is i32 `[rows]`.
///
/// # Errors
/// Heads that the kernels do not serve; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes; positions and places are within bounds, and no
/// two rows have the same place, save in a block that nobody reads.
#[allow(clippy::too_many_arguments)]
pub unsafe fn rope_and_cache(
    gpu: &dyn Machine,
    qkv: Address,
    rope: &Rope,
    positions: Address,
    places: Address,
    (keys, values): (Address, Address),
    rows: usize,
    heads: Heads,
) -> Result<()> {
    let h = heads.checked()?;
    let all = h.heads + 2 * h.kv_heads;
    let (grid, threads) = ([rows as u32, all.div_ceil(4) as u32, 1], [32, 4, 1]);
    let (heads, kv_heads, dim) = (h.heads as i32, h.kv_heads as i32, h.dim as i32);
    launch!(
        gpu,
        "rope_and_cache",
        grid,
        threads,
        &qkv,
        &rope.bias,
        &rope.query_norm,
        &rope.key_norm,
        &rope.eps,
        &rope.cosines,
        &rope.sines,
        &positions,
        &places,
        &keys,
        &values,
        &heads,
        &kv_heads,
        &dim
    )
}

/// Copies block `from` to block `to` in `sides` arrays of blocks that lie `stride` elements apart;
/// a block has `size` elements.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// `cache` addresses all of them.
pub unsafe fn copy_block(
    gpu: &dyn Machine,
    cache: Address,
    (sides, stride, size): (usize, usize, usize),
    from: u32,
    to: u32,
) -> Result<()> {
    eighths("the size of a block", size)?;
    let (grid, threads) = ([4, sides as u32, 1], [128, 1, 1]);
    let (from, to) = (from as i32, to as i32);
    launch!(gpu, "copy_block", grid, threads, &cache, &stride, &size, &from, &to)
}

/// A step's queries and where their keys lie.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// `[rows, heads + 2 * kv_heads, dim]`, as [`rope_and_cache`] left it.
    pub qkv: Address,
    /// `[blocks, kv_heads, 16, dim]`.
    pub keys: Address,
    /// The same.
    pub values: Address,
    /// i32 `[rows, table_width]`: blocks in order.
    pub tables: Address,
    /// Entries of a row of `tables`.
    pub table_width: usize,
    /// i32 `[rows]`: each row sees positions up to and with its own.
    pub positions: Address,
    /// `[rows, heads, dim]`.
    pub out: Address,
    /// float32 scratch of [`scratch`] numbers.
    pub scratch: Address,
}

/// Float32 numbers of scratch that [`attend`] needs.
pub fn scratch(rows: usize, heads: Heads, splits: usize) -> usize {
    if splits == 1 { 0 } else { rows * heads.heads * splits * (heads.dim + 2) }
}

/// Attention of one query per row. `splits` is at least `ceil(length / 256)` of the longest row.
///
/// # Errors
/// Heads that the kernels do not serve; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes, entries of `tables` within bounds.
pub unsafe fn attend(
    gpu: &dyn Machine,
    a: &Attention,
    rows: usize,
    splits: usize,
    heads: Heads,
) -> Result<()> {
    let h = heads.checked()?;
    let sums = a.scratch;
    let stats = sums + (rows * h.heads * splits * h.dim * 4) as u64;
    // Scores are taken to the base 2.
    let scale = std::f32::consts::LOG2_E / (h.dim as f32).sqrt();
    let parts = (h.heads / h.kv_heads).div_ceil(8);
    let grid = [splits as u32, (h.kv_heads * parts) as u32, rows as u32];
    let (heads, kv_heads) = (h.heads as i32, h.kv_heads as i32);
    let (stride, width) = (h.row() as i32, a.table_width as i32);
    let name = if h.dim == 128 { "attend_128" } else { "attend_64" };
    let done: Result<()> = launch!(
        gpu,
        name,
        grid,
        [128, 1, 1],
        &a.qkv,
        &stride,
        &a.keys,
        &a.values,
        &a.tables,
        &width,
        &a.positions,
        &a.out,
        &sums,
        &stats,
        &heads,
        &kv_heads,
        &scale
    );
    done?;
    if splits == 1 {
        return Ok(());
    }
    let (grid, threads) = ([h.heads as u32, rows as u32, 1], [h.dim as u32, 1, 1]);
    launch!(gpu, "combine", grid, threads, &sums, &stats, &a.positions, &a.out, &(splits as i32))
}
