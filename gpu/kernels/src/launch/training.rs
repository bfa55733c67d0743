//! What training computes between its matrix products.

use std::ffi::c_void;

use super::{Heads, eighths, launch};
use crate::error::{Error, Result};
use crate::machine::{Address, Machine};

/// Blocks that keep any device busy.
const BLOCKS: usize = 132 * 16;

/// `both` `[rows, 2, width]`, gate and up, becomes its own gradient, given `grad` `[rows, width]`, that
/// of `silu(gate) * up`.
///
/// # Errors
/// `width` is no multiple of 8; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes.
pub unsafe fn swiglu_back(
    gpu: &dyn Machine,
    both: Address,
    grad: Address,
    rows: usize,
    width: usize,
) -> Result<()> {
    eighths("the feed-forward width", width)?;
    let blocks = (rows * width / 8).div_ceil(256).min(BLOCKS) as u32;
    let (grid, threads) = ([blocks, 1, 1], [256, 1, 1]);
    launch!(gpu, "swiglu_back", grid, threads, &both, &grad, &(rows as i32), &(width as i32))
}

/// The angles of each row.
#[derive(Clone, Copy, Debug)]
pub struct Angles {
    /// `[rows, dim]`.
    pub cosines: Address,
    /// `[rows, dim]`, those of the first half negated.
    pub sines: Address,
}

fn sixteenths(dim: usize) -> Result<()> {
    match dim % 16 {
        0 => Ok(()),
        _ => Err(Error::Shape(format!("heads are {dim} wide; the kernels need a multiple of 16"))),
    }
}

/// Turns query and key heads of `qkv` `[rows, heads + 2 * kv_heads, dim]` in place.
///
/// # Errors
/// `dim` is no multiple of 16; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes.
pub unsafe fn rotate(
    gpu: &dyn Machine,
    qkv: Address,
    angles: Angles,
    rows: usize,
    h: Heads,
) -> Result<()> {
    sixteenths(h.dim)?;
    let turned = h.heads + h.kv_heads;
    let (grid, threads) = ([rows as u32, 1, 1], [256, 1, 1]);
    launch!(
        gpu,
        "rotate",
        grid,
        threads,
        &qkv,
        &angles.cosines,
        &angles.sines,
        &((turned + h.kv_heads) as i32),
        &(turned as i32),
        &(h.dim as i32)
    )
}

/// The gradient `out` `[rows, heads + 2 * kv_heads, dim]` of what [`rotate`] was given, from those of
/// queries `[rows, heads, dim]`, keys and values `[rows, kv_heads, dim]`.
///
/// # Errors
/// `dim` is no multiple of 16; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes.
pub unsafe fn rotate_back(
    gpu: &dyn Machine,
    [dq, dk, dv]: [Address; 3],
    angles: Angles,
    out: Address,
    rows: usize,
    h: Heads,
) -> Result<()> {
    sixteenths(h.dim)?;
    let (heads, kv_heads, dim) = (h.heads as i32, h.kv_heads as i32, h.dim as i32);
    let (grid, threads) = ([rows as u32, 1, 1], [256, 1, 1]);
    let Angles { cosines, sines } = angles;
    launch!(
        gpu,
        "rotate_back",
        grid,
        threads,
        &dq,
        &dk,
        &dv,
        &cosines,
        &sines,
        &out,
        &heads,
        &kv_heads,
        &dim
    )
}

/// What stands over each row of logits. All `[rows]`.
#[derive(Clone, Copy, Debug)]
pub struct Scored {
    /// i64: the tokens asked for.
    pub targets: Address,
    /// float32: the log of the sum of exponentials.
    pub sums: Address,
    /// float32: entropies in nats.
    pub entropies: Address,
}

/// Sums and entropies of `logits / divisor` `[rows, vocab]`, the targets' log-probabilities `chosen`
/// float32 `[rows]`, and the best tokens `best` i64 `[rows]`, the first of equals.
///
/// # Errors
/// `vocab` is no multiple of 8; the driver's.
///
/// # Safety
/// The addresses are of memory of those shapes; targets are below `vocab`, and that below 2^24.
pub unsafe fn score(
    gpu: &dyn Machine,
    logits: Address,
    divisor: f32,
    to: Scored,
    (chosen, best): (Address, Address),
    rows: usize,
    vocab: usize,
) -> Result<()> {
    eighths("the vocabulary", vocab)?;
    let (grid, threads) = ([rows as u32, 1, 1], [512, 1, 1]);
    let Scored { targets, sums, entropies } = to;
    launch!(
        gpu,
        "score",
        grid,
        threads,
        &logits,
        &targets,
        &divisor,
        &sums,
        &chosen,
        &entropies,
        &best,
        &(vocab as i32)
    )
}

/// `logits` `[rows, vocab]` become their own gradient: float32 `[rows]` are that of the targets'
/// log-probabilities and that of the entropies (or 0); `scored` as [`score`] left it.
///
/// # Errors
/// `vocab` is no multiple of 8; the driver's.
///
/// # Safety
/// As [`score`].
pub unsafe fn score_back(
    gpu: &dyn Machine,
    logits: Address,
    divisor: f32,
    scored: Scored,
    (by_chosen, by_entropy): (Address, Address),
    rows: usize,
    vocab: usize,
) -> Result<()> {
    eighths("the vocabulary", vocab)?;
    let blocks = (vocab / 8).div_ceil(256).min(16) as u32;
    let (grid, threads) = ([blocks, rows as u32, 1], [256, 1, 1]);
    let Scored { targets, sums, entropies } = scored;
    launch!(
        gpu,
        "score_back",
        grid,
        threads,
        &logits,
        &targets,
        &divisor,
        &sums,
        &entropies,
        &by_chosen,
        &by_entropy,
        &(vocab as i32)
    )
}

/// What an AdamW step changes, each of the same length.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// The nearest bfloat16 of each float32 weight.
    pub high: Address,
    /// i16: the weight's bits less those of `high`.
    pub low: Address,
    /// float32: first moments.
    pub m: Address,
    /// float32: second moments.
    pub v: Address,
}

/// Numbers of an AdamW step.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Learning rate.
    pub rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub decay: f64,
    /// The gradient is divided by it.
    pub scale: f64,
    /// Steps taken, this one included.
    pub step: u64,
}

/// One AdamW step on `n` weights with gradient `grad`, float32 `[n]`.
///
/// # Errors
/// The driver's.
///
/// # Safety
/// The addresses are of memory of those shapes.
pub unsafe fn adamw(
    gpu: &dyn Machine,
    state: State,
    grad: Address,
    n: usize,
    o: &AdamW,
) -> Result<()> {
    let corrected = |beta: f64| 1.0 - beta.powf(o.step as f64);
    let (first, second) = (corrected(o.beta1) as f32, corrected(o.beta2).sqrt() as f32);
    let [rate, beta1, beta2, eps, decay, scale] =
        [o.rate, o.beta1, o.beta2, o.eps, o.decay, o.scale].map(|x| x as f32);
    let (grid, threads) = ([n.div_ceil(1024).clamp(1, BLOCKS) as u32, 1, 1], [256, 1, 1]);
    let State { high, low, m, v } = state;
    launch!(
        gpu, "adamw", grid, threads, &high, &low, &grad, &m, &v, &n, &rate, &beta1, &beta2, &eps,
        &decay, &scale, &first, &second
    )
}
