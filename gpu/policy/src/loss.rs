//! From a batch to log-probabilities and gradients, the vocabulary a chunk at a time.
//!
//! The logits of a batch would fill the memory: they are made chunk by chunk, each turned at once
//! into the gradient of its hidden states. A loss sees log-probabilities only, so its own gradient
//! is a number per token, and that of the logits is written out.

use tch::{Device, Tensor};

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::exact;
use crate::footprint;
use crate::fused::{self, Fused};
use crate::gradients::Gradients;
use crate::metrics::Clock;
use crate::model::Model;
use crate::train::{self, Tape};

/// Positions whose logits are made at once.
fn chunk(model: &Model) -> i64 {
    match model.device {
        Device::Cpu => ((1 << 22) / model.config.vocab).max(64),
        _ => footprint::rows_at_once(&model.config),
    }
}

/// What a chunk of `n` answer tokens looks like to a loss.
pub struct Scores<'a> {
    rows: &'a Found,
    /// float32 `[n]`: the log-probability of each answer token.
    pub chosen: &'a Tensor,
    /// int64 `[n]`: the answer tokens.
    pub targets: &'a Tensor,
    /// Where the chunk begins in the batch's answer tokens.
    pub start: i64,
}

/// The scores of a chunk.
enum Found {
    /// float32 `[n, vocab]`: log-softmax at the temperature.
    Whole(Tensor),
    /// bfloat16 logits `[n, vocab]`, and what our kernels found in them.
    Rows(Tensor, fused::Rows),
}

impl Scores<'_> {
    /// The chunk's part of `x`, a tensor over the batch's answer tokens.
    pub fn cut(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_narrow(0, self.start, self.targets.size()[0])?)
    }

    /// float32 `[n]`: the entropy of each prediction, in nats.
    pub fn entropy(&self) -> Result<Tensor> {
        let _guard = tch::no_grad_guard();
        match self.rows {
            Found::Rows(_, rows) => Ok(rows.entropies.shallow_clone()),
            Found::Whole(all) => {
                let terms = all.f_exp()?.f_mul_(all)?;
                Ok(terms.f_sum_dim_intlist([-1_i64].as_slice(), false, None)?.f_neg()?)
            }
        }
    }

    /// int64 `[n]`: the most probable tokens.
    pub fn best(&self) -> Result<Tensor> {
        match self.rows {
            Found::Rows(_, rows) => Ok(rows.best.shallow_clone()),
            Found::Whole(all) => Ok(all.f_argmax(1, false)?),
        }
    }
}

/// What a loss answers for a chunk.
pub struct Loss {
    /// `[]`: a differentiable function of [`Scores::chosen`].
    pub value: Tensor,
    /// `[n]`: the derivative of what is minimised by each token's entropy, if it has any.
    pub by_entropy: Option<Tensor>,
}

impl From<Tensor> for Loss {
    fn from(value: Tensor) -> Self {
        Loss { value, by_entropy: None }
    }
}

/// Calls `f(hidden states [n, hidden], scores)` chunk by chunk.
fn each_chunk(
    model: &Model,
    batch: &Batch,
    hidden: &Tensor,
    temperature: f64,
    mut f: impl FnMut(&Tensor, &Scores) -> Result<()>,
) -> Result<()> {
    let (total, size) = (batch.tokens as i64, chunk(model));
    let head = model.head()?;
    let mut start = 0;
    while start < total {
        let count = size.min(total - start);
        let part = hidden.f_narrow(0, start, count)?;
        let logits = model.linear(&part, &head, None)?;
        let targets = batch.targets.f_narrow(0, start, count)?;
        let rows = find(model, logits, &targets, temperature)?;
        let chosen = match &rows {
            Found::Rows(_, rows) => rows.chosen.shallow_clone(),
            Found::Whole(all) => {
                all.f_gather(1, &targets.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?
            }
        };
        f(&part, &Scores { rows: &rows, chosen: &chosen, targets: &targets, start })?;
        start += count;
    }
    Ok(())
}

/// The scores that `logits` `[n, vocab]` come to at a temperature.
fn find(model: &Model, logits: Tensor, targets: &Tensor, temperature: f64) -> Result<Found> {
    if let Some(fused) = fused(model)? {
        let rows = fused.score(&logits, targets, temperature)?;
        return Ok(Found::Rows(logits, rows));
    }
    if model.exact {
        return Ok(Found::Whole(exact::log_softmax(&logits, temperature)?));
    }
    // A copy of 16-bit logits, so that what follows can be done in place.
    let mut all = logits.f_to_kind(model.sum_kind())?;
    drop(logits);
    if temperature != 1.0 {
        let _ = all.f_div_scalar_(temperature)?;
    }
    let sums = all.f_logsumexp([-1], true)?;
    let _ = all.f_sub_(&sums)?;
    Ok(Found::Whole(all))
}

/// Our kernels, where they serve the model's vocabulary.
fn fused(model: &Model) -> Result<Option<Fused>> {
    match model.config.vocab % 8 {
        0 => fused::kernels(model.device, model.kind),
        _ => Ok(None),
    }
}

/// Looks at the scores of every answer token.
pub fn inspect(
    model: &Model,
    batch: &Batch,
    temperature: f64,
    f: impl FnMut(&Scores) -> Result<()>,
) -> Result<()> {
    let _guard = tch::no_grad_guard();
    let hidden = train::hidden(model, std::slice::from_ref(batch))?.remove(0);
    let mut f = f;
    each_chunk(model, batch, &hidden, temperature, |_, scores| f(scores))
}

fn collect(model: &Model, batch: &Batch, hidden: &Tensor, temperature: f64) -> Result<Tensor> {
    let mut parts = Vec::new();
    each_chunk(model, batch, hidden, temperature, |_, s| {
        parts.push(s.chosen.shallow_clone());
        Ok(())
    })?;
    Ok(Tensor::f_cat(&parts, 0)?)
}

/// Log-probability float32 `[n]` of every answer token.
pub fn logprobs(model: &Model, batch: &Batch, temperature: f64) -> Result<Tensor> {
    Ok(logprobs_all(model, std::slice::from_ref(batch), temperature)?.remove(0))
}

/// [`logprobs`] of several batches; weights in the host's memory are sent once for all of them.
pub fn logprobs_all(model: &Model, batches: &[Batch], temperature: f64) -> Result<Vec<Tensor>> {
    let _guard = tch::no_grad_guard();
    let hidden = train::hidden(model, batches)?;
    let one = |(h, b): (&Tensor, &Batch)| collect(model, b, h, temperature);
    hidden.iter().zip(batches).map(one).collect()
}

/// A batch on its way through the model and back.
pub struct Pass<'a> {
    model: &'a Model,
    batch: &'a Batch,
    temperature: f64,
    hidden: Tensor,
    tape: Tape,
    seed: u64,
}

impl<'a> Pass<'a> {
    /// Goes through the layers. What they keep for the way back stays below `memory` bytes if
    /// that is possible at all; `seed` draws the adapter's dropout.
    pub fn new(
        model: &'a Model,
        batch: &'a Batch,
        temperature: f64,
        memory: u64,
        seed: u64,
    ) -> Result<Self> {
        let keep = train::keep(model, batch.spans.tokens(), memory);
        let (hidden, tape) = dropping(model, seed, || train::record(model, batch, &keep))?;
        Ok(Pass { model, batch, temperature, hidden, tape, seed })
    }

    /// Log-probability float32 `[n]` of every answer token.
    pub fn logprobs(&self) -> Result<Tensor> {
        let _guard = tch::no_grad_guard();
        collect(self.model, self.batch, &self.hidden, self.temperature)
    }

    /// Adds the gradient of the sum of `loss` over the chunks to `grads`.
    ///
    /// # Errors
    /// libtorch's; gradients of the batch may then be half added, so discard them.
    pub fn backward(
        self,
        grads: &Gradients,
        clock: &mut Clock,
        mut loss: impl FnMut(&Scores) -> Result<Loss>,
    ) -> Result<()> {
        let (model, batch) = (self.model, self.batch);
        let (head, weight) = (model.head_index(), model.head()?);
        let by_hidden = Tensor::f_empty(self.hidden.size(), (model.kind, model.device))?;
        each_chunk(model, batch, &self.hidden, self.temperature, |part, scores| {
            let leaf = scores.chosen.f_detach()?.f_set_requires_grad(true)?;
            let found = loss(&Scores { chosen: &leaf, ..*scores })?;
            let by_chosen = Tensor::f_run_backward(&[found.value], &[leaf], false, false)?;
            let _guard = tch::no_grad_guard();
            let by_entropy = found.by_entropy.as_ref();
            let by_logits = by_logits(model, scores, self.temperature, &by_chosen[0], by_entropy)?;
            let count = part.size()[0];
            let _ = by_logits.f_mm_out(&by_hidden.f_narrow(0, scores.start, count)?, &weight)?;
            match &grads.base {
                Some(sink) => sink.add_product(head, &by_logits, part),
                None => Ok(()),
            }
        })?;
        clock.lap("head");
        dropping(model, self.seed, || train::backward(model, batch, self.tape, &by_hidden, grads))?;
        clock.lap("backward");
        Ok(())
    }
}

fn dropping<T>(model: &Model, seed: u64, f: impl FnOnce() -> T) -> T {
    match &model.adapter {
        Some(adapter) => adapter.dropping(seed, f),
        None => f(),
    }
}

/// The gradient of the logits `[n, vocab]`, given those of the chosen log-probabilities and of the
/// entropies: `(c (onehot - p) - e p (log p + entropy)) / temperature`.
fn by_logits(
    model: &Model,
    s: &Scores,
    temperature: f64,
    by_chosen: &Tensor,
    by_entropy: Option<&Tensor>,
) -> Result<Tensor> {
    let all = match s.rows {
        Found::Whole(all) => all,
        Found::Rows(logits, rows) => {
            let missing = || Error::Request("a chunk was scored by kernels that are gone".into());
            let by_entropy = by_entropy.map(Tensor::f_contiguous).transpose()?;
            let by = (&by_chosen.f_contiguous()?, by_entropy.as_ref());
            let fused = fused(model)?.ok_or_else(missing)?;
            fused.score_back(logits, (s.targets, rows), temperature, by)?;
            return Ok(logits.shallow_clone());
        }
    };
    let column = by_chosen.f_unsqueeze(1)?;
    let mut p = all.f_exp()?;
    let _ = match by_entropy {
        None => p.f_mul_(&column.f_neg()?)?,
        Some(e) => {
            let e = e.f_unsqueeze(1)?;
            let entropy = s.entropy()?.f_unsqueeze(1)?;
            let factor = all.f_add(&entropy)?.f_mul_(&e)?.f_add_(&column)?;
            p.f_mul_(&factor.f_neg()?)?
        }
    };
    let mut wide = p.f_scatter_add_(1, &s.targets.f_unsqueeze(1)?, &column)?;
    if temperature != 1.0 {
        let _ = wide.f_div_scalar_(temperature)?;
    }
    Ok(wide.f_to_kind(model.kind)?)
}
