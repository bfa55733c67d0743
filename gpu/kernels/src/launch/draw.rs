//! Drawing tokens.

use std::ffi::c_void;

use super::launch;
use crate::error::Result;
use crate::machine::{Address, Machine};

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
