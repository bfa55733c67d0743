//! From a batch to log-probabilities and gradients, the vocabulary a chunk at a time.
//!
//! The logits of a large batch would fill the memory. They are made chunk by chunk, each
//! turned at once into the gradient of its hidden states; then one backward pass runs through
//! the layers.

use tch::{Device, Kind, Tensor};

use crate::batch::Batch;
use crate::error::Result;
use crate::model::Model;
use crate::optim::AdamW;

/// Positions whose logits are made at once.
fn chunk(model: &Model) -> i64 {
    let elements: i64 = if model.device == Device::Cpu { 1 << 22 } else { 1 << 28 };
    (elements / model.config.vocab).max(64)
}

/// What a chunk of `n` answer tokens looks like to a loss.
pub struct Scores<'a> {
    /// float32 `[n, vocab]`: log-softmax at the temperature.
    pub all: &'a Tensor,
    /// float32 `[n]`: the log-probability of each answer token.
    pub chosen: &'a Tensor,
    /// int64 `[n]`: the answer tokens.
    pub targets: &'a Tensor,
    /// Where the chunk begins in the batch's answer tokens.
    pub start: i64,
}

impl Scores<'_> {
    /// The chunk's part of `x`, a tensor over the batch's answer tokens.
    pub fn cut(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_narrow(0, self.start, self.targets.size()[0])?)
    }
}

fn places(model: &Model, batch: &Batch) -> Result<Tensor> {
    let hidden = model.hidden(&batch.ids)?.f_reshape([-1, model.config.hidden])?;
    Ok(hidden.f_index_select(0, &batch.places)?)
}

/// Calls `f(hidden states [n, hidden], scores)` chunk by chunk; the hidden states are leaves of
/// a graph of their own if `leaves`.
fn each_chunk(
    model: &Model,
    batch: &Batch,
    hidden: &Tensor,
    temperature: f64,
    leaves: bool,
    mut f: impl FnMut(&Tensor, &Scores) -> Result<()>,
) -> Result<()> {
    let (total, size) = (batch.tokens as i64, chunk(model));
    let mut start = 0;
    while start < total {
        let count = size.min(total - start);
        let part = hidden.f_narrow(0, start, count)?.f_set_requires_grad(leaves)?;
        let logits = model.logits(&part)?;
        let logits = if temperature == 1.0 { logits } else { logits.f_div_scalar(temperature)? };
        let all = logits.f_log_softmax(-1, Kind::Float)?;
        let targets = batch.targets.f_narrow(0, start, count)?;
        let chosen = all.f_gather(1, &targets.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?;
        f(&part, &Scores { all: &all, chosen: &chosen, targets: &targets, start })?;
        start += count;
    }
    Ok(())
}

/// Looks at the scores of every answer token without a graph.
pub fn inspect(
    model: &Model,
    batch: &Batch,
    temperature: f64,
    mut f: impl FnMut(&Scores) -> Result<()>,
) -> Result<()> {
    let _guard = tch::no_grad_guard();
    let hidden = places(model, batch)?;
    each_chunk(model, batch, &hidden, temperature, false, |_, scores| f(scores))
}

/// Log-probability float32 `[n]` of every answer token, without a graph.
pub fn logprobs(model: &Model, batch: &Batch, temperature: f64) -> Result<Tensor> {
    let mut parts = Vec::new();
    inspect(model, batch, temperature, |s| {
        parts.push(s.chosen.shallow_clone());
        Ok(())
    })?;
    Ok(Tensor::f_cat(&parts, 0)?)
}

/// Adds the gradient of the sum of `loss` over the chunks to `optim`'s.
///
/// # Errors
/// libtorch's; gradients of the batch may then be half added, so discard them.
pub fn backward(
    model: &Model,
    optim: &mut AdamW,
    batch: &Batch,
    temperature: f64,
    mut loss: impl FnMut(&Scores) -> Result<Tensor>,
) -> Result<()> {
    let hidden = places(model, batch)?;
    let head = model.head_index();
    let leaf = hidden.f_detach()?;
    let mut seeds = Vec::new();
    each_chunk(model, batch, &leaf, temperature, true, |part, scores| {
        let value = loss(scores)?;
        let inputs = [part, &model.params.views[head]];
        let mut grads = Tensor::f_run_backward(&[value], &inputs, false, false)?;
        optim.add(&model.params, head, &grads.remove(1))?;
        seeds.push(grads.remove(0));
        Ok(())
    })?;
    // The gradient of this sum with respect to the hidden states is exactly the seeds.
    let seed = Tensor::f_cat(&seeds, 0)?;
    let sum = hidden.f_mul(&seed)?.f_sum(Kind::Float)?;
    drop(seeds);
    let views = &model.params.views;
    let wanted: Vec<usize> = (0..views.len()).filter(|&i| model.config.tied || i != head).collect();
    let inputs: Vec<&Tensor> = wanted.iter().map(|&i| &views[i]).collect();
    let grads = Tensor::f_run_backward(&[sum], &inputs, false, false)?;
    for (i, grad) in wanted.into_iter().zip(grads) {
        optim.add(&model.params, i, &grad)?;
    }
    Ok(())
}
