//! What the scheduler asks of whoever computes: exact and simple on libtorch (`torch`), or with our
//! own kernels on CUDA (`cuda`). It knows blocks, rows and tokens, and no samples or prompts.

use crate::error::Result;
use crate::sampling::Choice;

/// What a backend has room for.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Blocks of the cache, numbered from 0.
    pub blocks: usize,
    /// Rows of a step, and slots.
    pub rows: usize,
    /// Steps that may be launched before the oldest is collected, beyond one: 1 where the host runs
    /// ahead of a device, 0 where a launch computes at once.
    pub ahead: usize,
    /// Tokens that one prefill should read at most (a single longer sequence is read all the same).
    pub prefill_tokens: usize,
}

/// Tokens to read into the cache from position 0.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// At least one.
    pub tokens: Vec<u32>,
    /// Blocks for all of them.
    pub table: Vec<u32>,
}

/// One token to read, and one to draw after it.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Below [`Capacity::rows`], of this row alone: the drawn token is kept there.
    pub slot: u32,
    /// The token to read; `None` is the one drawn last for this slot.
    pub token: Option<u32>,
    /// Where it stands; all positions before it are in the cache.
    pub position: usize,
    /// Blocks up to and with the position's.
    pub table: &'a [u32],
    /// The sample's seed.
    pub seed: u64,
    /// Which token of its answer is drawn, from 0: with the seed, all that chance depends on.
    pub index: usize,
}

/// Computes in the order of the calls. An error leaves the backend of no further use.
pub trait Backend {
    /// Its limits, which do not change.
    fn capacity(&self) -> Capacity;

    /// Reads sequences into their blocks.
    ///
    /// # Errors
    /// libtorch's or the device's.
    fn prefill(&mut self, sequences: &[Sequence]) -> Result<()>;

    /// Copies a block of all layers.
    ///
    /// # Errors
    /// libtorch's or the device's.
    fn copy(&mut self, from: u32, to: u32) -> Result<()>;

    /// Starts a step; at most [`Capacity::ahead`] others may be uncollected.
    ///
    /// # Errors
    /// libtorch's or the device's.
    fn launch(&mut self, rows: &[Row]) -> Result<()>;

    /// The draws of the oldest step not collected, in the order of its rows.
    ///
    /// # Errors
    /// libtorch's or the device's; a score that is not finite.
    fn collect(&mut self) -> Result<Vec<Choice>>;
}
