//! One function per kernel. All numbers are bfloat16 unless said; all shapes are row-major and
//! contiguous; addresses are of 16 bytes' alignment. Nothing here waits for the device.

use std::ffi::c_void;

use crate::error::{Error, Result};
use crate::machine::{Address, Machine};

/// Tokens in a block of the cache.
pub const BLOCK: usize = 16;
/// Tokens of a split of the attention, whatever the batch.
pub const SPLIT: usize = 256;

/// Launches `$name` with a grid, threads, and the arguments, whose types are the kernel's.
macro_rules! launch {
    ($machine:expr, $name:expr, $grid:expr, $threads:expr, $($arg:expr),+ $(,)?) => {{
        // One expression, so that the arguments live until the launch.
        // SAFETY: the caller's promise about every address; the argument list is the kernel's.
        unsafe {
            $machine.launch($name, $grid, $threads, &mut [$(std::ptr::from_ref($arg) as *mut c_void),+])
        }
    }};
}

fn eighths(what: &str, width: usize) -> Result<()> {
    match width % 8 {
        0 => Ok(()),
        _ => Err(Error::Shape(format!("{what} is {width}; the kernels need a multiple of 8"))),
    }
}

/// `out[r] = x[r] / rms(x[r]) * weight` for `x`, `out` `[rows, width]`; with `delta` (not 0),
/// `x += delta` first, in place.
///
/// # Errors
/// `width` is no multiple of 8; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes.
#[allow(clippy::too_many_arguments)]
pub unsafe fn rms_norm(
    gpu: &dyn Machine,
    x: Address,
    delta: Address,
    weight: Address,
    out: Address,
    rows: usize,
    width: usize,
    eps: f32,
) -> Result<()> {
    eighths("the hidden width", width)?;
    let threads = (width / 8).div_ceil(32).clamp(1, 16) as u32 * 32;
    let (grid, threads) = ([rows as u32, 1, 1], [threads, 1, 1]);
    launch!(gpu, "rms_norm", grid, threads, &x, &delta, &weight, &out, &(width as i32), &eps)
}

/// `out [rows, width] = silu(gate) * up` of `both [rows, 2, width]`.
///
/// # Errors
/// `width` is no multiple of 8; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes.
pub unsafe fn swiglu(
    gpu: &dyn Machine,
    both: Address,
    out: Address,
    rows: usize,
    width: usize,
) -> Result<()> {
    eighths("the feed-forward width", width)?;
    let blocks = (rows * width / 8).div_ceil(256).min(132 * 16) as u32;
    let (grid, threads) = ([blocks, 1, 1], [256, 1, 1]);
    launch!(gpu, "swiglu", grid, threads, &both, &out, &(rows as i32), &(width as i32))
}

/// Where the tokens of a step come from.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    /// i32 `[rows]`: the token of each row, or below 0.
    pub given: Address,
    /// i32 `[rows]`: where in `drawn` a token stands that is not given; 0 if all are.
    pub slots: Address,
    /// u32: the tokens last drawn, by slot.
    pub drawn: Address,
}

/// `out[r] = table[token of r]` with `table` `[vocab, width]`.
///
/// # Errors
/// `width` is no multiple of 8; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes; slots and tokens are within bounds.
pub unsafe fn embed(
    gpu: &dyn Machine,
    tokens: &Tokens,
    table: Address,
    out: Address,
    rows: usize,
    width: usize,
) -> Result<()> {
    eighths("the hidden width", width)?;
    let (grid, threads) = ([rows as u32, 1, 1], [128, 1, 1]);
    let t = tokens;
    launch!(
        gpu,
        "embed",
        grid,
        threads,
        &t.given,
        &t.slots,
        &t.drawn,
        &table,
        &out,
        &(width as i32)
    )
}

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

/// `y [rows] = weight [rows, columns] * x [columns]`.
///
/// # Errors
/// `columns` is no multiple of 8; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes.
pub unsafe fn gemv(
    gpu: &dyn Machine,
    weight: Address,
    x: Address,
    y: Address,
    rows: usize,
    columns: usize,
) -> Result<()> {
    eighths("the number of columns", columns)?;
    let (grid, threads) = ([rows.div_ceil(8) as u32, 1, 1], [128, 1, 1]);
    launch!(gpu, "gemv", grid, threads, &weight, &x, &y, &(rows as i32), &(columns as i32))
}

/// `y [width] = silu(gate) * up` with gate and up the halves of `weight [2, width, columns] * x`.
///
/// # Errors
/// `columns` is no multiple of 8; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes.
pub unsafe fn gemv_swiglu(
    gpu: &dyn Machine,
    weight: Address,
    x: Address,
    y: Address,
    width: usize,
    columns: usize,
) -> Result<()> {
    eighths("the number of columns", columns)?;
    let (grid, threads) = ([width.div_ceil(4) as u32, 1, 1], [128, 1, 1]);
    launch!(gpu, "gemv_swiglu", grid, threads, &weight, &x, &y, &(width as i32), &(columns as i32))
}

/// What one draw gave, as the kernel writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// Log-probability under the whole softmax at the temperature; NaN if a score is.
    pub logprob: f32,
    /// The same within the kept tokens.
    pub truncated: f32,
    padding: u32,
}

impl Drawn {
    /// A draw.
    pub fn new(token: u32, logprob: f32, truncated: f32) -> Self {
        Drawn { token, logprob, truncated, padding: 0 }
    }
}

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Scores are divided by it; 0 takes the best token, log-probs then are at 1.
    pub temperature: f64,
    /// Best tokens to draw from; 0 is no limit.
    pub top_k: usize,
    /// Mass of the best tokens to draw from; 1 is no limit.
    pub top_p: f64,
}

/// Scores and seeds of a step.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// `[rows, vocab]`.
    pub logits: Address,
    /// The scores are float32.
    pub float: bool,
    /// u64 `[rows]`.
    pub seeds: Address,
    /// i32 `[rows]`: which token of its answer each row draws.
    pub indices: Address,
    /// i32 `[rows]`: where in `tokens` each goes.
    pub slots: Address,
    /// u32, or 0: the tokens for the next step.
    pub tokens: Address,
    /// [`Drawn`] `[rows]`.
    pub out: Address,
}

/// Draws one token per row.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// The addresses are of memory of those shapes, slots within bounds.
pub unsafe fn sample(
    gpu: &dyn Machine,
    d: &Draw,
    s: &Sampling,
    rows: usize,
    vocab: usize,
) -> Result<()> {
    let greedy = i32::from(s.temperature <= 0.0);
    let inverse = if s.temperature > 0.0 { (1.0 / s.temperature) as f32 } else { 1.0 };
    let (vocab, top_k) = (vocab as i32, s.top_k.min(i32::MAX as usize) as i32);
    let name = if d.float { "sample_f32" } else { "sample_bf16" };
    let (grid, threads) = ([rows as u32, 1, 1], [1024, 1, 1]);
    launch!(
        gpu, name, grid, threads, &d.logits, &vocab, &d.seeds, &d.indices, &d.slots, &inverse,
        &top_k, &s.top_p, &greedy, &d.tokens, &d.out
    )
}
