//! One function per kernel. All numbers are bfloat16 unless said; all shapes are row-major and
//! contiguous; addresses are of 16 bytes' alignment. Nothing here waits for the device.

mod attention;
mod draw;
mod training;

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

pub use attention::{Attention, Heads, Rope, attend, copy_block, rope_and_cache, scratch};
pub use draw::{Draw, Drawn, Sampling, sample};
pub(crate) use launch;
pub use training::{
    AdamW, Angles, Scored, State, adamw, rotate, rotate_back, score, score_back, swiglu_back,
};

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
