//! Sampling with continuous batching over a paged cache.
//!
//! A prompt is read once and its blocks shared by its samples; each sample then reads the prompt's
//! last token itself, so that every score comes from the same step code. A sample draws by its seed
//! and the index of the token alone: what it says does not depend on its neighbours (up to float
//! rounding, which may differ with the batch's size), nor on being preempted.

pub mod backend;
pub mod blocks;
mod cuda;
mod schedule;
mod stops;
mod torch;

use crate::error::{Error, Result};
use crate::model::Model;
use crate::sampling::Sampling;

pub use cuda::CudaBackend;
pub use schedule::{Listener, schedule};
pub use stops::Stops;
pub use torch::TorchBackend;

/// One prompt and the seeds of the samples wanted from it.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Tokens, template included.
    pub tokens: Vec<u32>,
    /// One per sample.
    pub seeds: Vec<u64>,
}

/// Limits of one call.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens per answer; the context may end it earlier.
    pub max_new_tokens: usize,
    /// Samples in flight.
    pub max_batch: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It said an end-of-answer token or a stop string, which its last token completes.
    Stop,
    /// It ran into a limit.
    Length,
}

/// One answer; the three lists are of equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Tokens, the end-of-answer token included.
    pub tokens: Vec<u32>,
    /// Log-probability of each under the whole softmax at the temperature.
    pub logprobs: Vec<f32>,
    /// The same within what top-k and top-p left.
    pub truncated: Vec<f32>,
    /// Why it ended.
    pub finish: Finish,
}

/// Samples every prompt; `result[p][i]` answers `prompts[p]` with `seeds[i]`.
///
/// # Errors
/// An empty prompt or one that leaves no room, absurd settings, a sample that cannot fit in memory,
/// scores that are not finite.
pub fn generate(
    model: &Model,
    stop: &[u32],
    prompts: &[Prompt],
    sampling: &Sampling,
    limits: Limits,
) -> Result<Vec<Vec<Sample>>> {
    let mut kept = Kept::new(prompts);
    let stops = Stops { tokens: stop, ..Stops::default() };
    stream(model, &stops, prompts, sampling, limits, &mut kept)?;
    Ok(kept.samples())
}

/// The same, each sample handed to `listener` as soon as it is finished.
///
/// # Errors
/// As [`generate`]; [`Error::Cancelled`] once the listener says so.
pub fn stream(
    model: &Model,
    stops: &Stops,
    prompts: &[Prompt],
    sampling: &Sampling,
    limits: Limits,
    listener: &mut dyn Listener,
) -> Result<()> {
    check(model, prompts, sampling, limits)?;
    stops.check()?;
    let _guard = tch::no_grad_guard();
    let plan = Plan::new(prompts, limits, model.config.context as usize);
    if CudaBackend::serves(model) {
        let mut backend = CudaBackend::new(model, *sampling, &plan)?;
        return schedule(&mut backend, stops, prompts, &plan, listener);
    }
    let mut backend = TorchBackend::new(model, *sampling, &plan)?;
    schedule(&mut backend, stops, prompts, &plan, listener)
}

fn check(model: &Model, prompts: &[Prompt], s: &Sampling, limits: Limits) -> Result<()> {
    let refuse = |text: &str| Err(Error::Request(text.into()));
    if !(s.temperature >= 0.0 && s.temperature.is_finite()) {
        return refuse("temperature must be a number from 0 up");
    }
    if !(s.top_p > 0.0 && s.top_p <= 1.0) {
        return refuse("top_p must lie above 0 and at most at 1");
    }
    if limits.max_new_tokens == 0 || limits.max_batch == 0 {
        return refuse("max_new_tokens and max_batch must be at least 1");
    }
    let context = model.config.context as usize;
    for p in prompts {
        let tokens = p.tokens.len();
        if tokens >= context {
            return Err(Error::PromptTooLong { tokens, context });
        }
        if tokens == 0 || p.tokens.iter().any(|&t| i64::from(t) >= model.config.vocab) {
            return refuse("a prompt is empty or holds a token beyond the vocabulary");
        }
    }
    Ok(())
}

/// How far each sample may go, and what all may take.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Samples in flight.
    pub max_batch: usize,
    /// Answer tokens that each prompt leaves room for, one per prompt.
    pub room: Vec<usize>,
    /// Blocks of the longest sample, with one for a prompt's last block that others wait for.
    pub longest: usize,
    /// Blocks beyond which memory is of no use: all samples in flight at their longest, all prompts.
    pub most: usize,
}

impl Plan {
    /// The plan of `prompts` in a context of that many tokens.
    pub fn new(prompts: &[Prompt], limits: Limits, context: usize) -> Self {
        let room = |p: &Prompt| limits.max_new_tokens.min(context - p.tokens.len());
        let room: Vec<usize> = prompts.iter().map(room).collect();
        // The last token drawn is never read.
        let whole = |(p, r): (&Prompt, &usize)| blocks::needed(p.tokens.len() + r - 1) + 1;
        let longest = prompts.iter().zip(&room).map(whole).max().unwrap_or(1);
        let samples: usize = prompts.iter().map(|p| p.seeds.len()).sum();
        let held: usize = prompts.iter().map(|p| blocks::needed(p.tokens.len())).sum();
        let most = longest * limits.max_batch.min(samples.max(1)) + held;
        Plan { max_batch: limits.max_batch, room, longest, most }
    }
}

/// Keeps all samples in order.
struct Kept(Vec<Vec<Option<Sample>>>);

impl Kept {
    fn new(prompts: &[Prompt]) -> Self {
        Kept(prompts.iter().map(|p| p.seeds.iter().map(|_| None).collect()).collect())
    }

    fn samples(self) -> Vec<Vec<Sample>> {
        self.0.into_iter().map(|list| list.into_iter().flatten().collect()).collect()
    }
}

impl Listener for Kept {
    fn finished(&mut self, prompt: usize, index: usize, sample: Sample) -> Result<()> {
        self.0[prompt][index] = Some(sample);
        Ok(())
    }
}
