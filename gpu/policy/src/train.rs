//! Through all layers over packed tokens, forward and back.

use tch::Tensor;

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::footprint;
use crate::gradients::{Gradients, add_rows, vjp};
use crate::layer::{Context, Keep, Saved};
use crate::model::Model;

/// What the forward pass of one batch keeps for its backward pass.
pub(crate) struct Tape {
    saved: Vec<Saved>,
    /// The residual stream after the last layer, where an answer token is predicted `[n, hidden]`.
    picked: Tensor,
}

/// How much each layer keeps of `tokens` packed tokens, so that all together stay within `budget`
/// bytes if that is possible at all.
pub fn keep(model: &Model, tokens: i64, budget: u64) -> Vec<Keep> {
    let layers = model.config.layers as usize;
    let bytes = footprint::kept(&model.config, model.kind, tokens);
    let spare = budget.saturating_sub(bytes[0] * layers as u64);
    let [middle, whole] = footprint::layers_kept(bytes, layers, spare);
    // The last layers keep most: theirs is used and freed first.
    (0..layers)
        .map(|l| match layers - 1 - l {
            from_end if from_end < whole => Keep::All,
            from_end if from_end < middle => Keep::Attention,
            _ => Keep::Input,
        })
        .collect()
}

/// Refuses a model whose matrices are not those that would be trained.
fn check(model: &Model) -> Result<()> {
    match model.adapter.as_ref().is_some_and(|a| a.merged()) {
        true => Err(Error::Request("the adapter is merged: unmerge it to train".into())),
        false => Ok(()),
    }
}

/// Normed hidden states `[n, hidden]` where each answer token is predicted, and what the backward
/// pass needs; `keep` says how much of each layer.
pub(crate) fn record(model: &Model, batch: &Batch, keep: &[Keep]) -> Result<(Tensor, Tape)> {
    check(model)?;
    let _guard = tch::no_grad_guard();
    let turn = model.rope.rows(&batch.positions.f_unsqueeze(0)?)?;
    let context = Context::new(model, &turn, &batch.spans)?;
    let mut x = model.embedded(&batch.ids)?;
    let mut saved = Vec::with_capacity(keep.len());
    for (l, &keep) in keep.iter().enumerate() {
        let (y, kept) = context.forward(l, x, keep)?;
        saved.push(kept);
        x = y;
    }
    let picked = x.f_index_select(0, &batch.places)?;
    Ok((model.normed(&picked, &model.norm)?, Tape { saved, picked }))
}

/// The hidden states of [`record`] for several batches, nothing kept. Layers are the outer loop: a
/// model whose weights live in the host's memory sends each layer once for all batches.
pub(crate) fn hidden(model: &Model, batches: &[Batch]) -> Result<Vec<Tensor>> {
    let _guard = tch::no_grad_guard();
    let turn = |b: &Batch| model.rope.rows(&b.positions.f_unsqueeze(0)?);
    let turns = batches.iter().map(turn).collect::<Result<Vec<_>>>()?;
    let mut streams = batches.iter().map(|b| model.embedded(&b.ids)).collect::<Result<Vec<_>>>()?;
    for l in 0..model.config.layers as usize {
        let layer = model.layer(l)?;
        for ((stream, turn), batch) in streams.iter_mut().zip(&turns).zip(batches) {
            let context = Context::new(model, turn, &batch.spans)?;
            let x = std::mem::replace(stream, Tensor::new());
            *stream = context.through(l, &layer, x)?;
        }
    }
    let pick =
        |(x, b): (Tensor, &Batch)| model.normed(&x.f_index_select(0, &b.places)?, &model.norm);
    streams.into_iter().zip(batches).map(pick).collect()
}

/// Adds to `grads` what the gradient `[n, hidden]` of [`record`]'s hidden states comes to.
pub(crate) fn backward(
    model: &Model,
    batch: &Batch,
    tape: Tape,
    grad: &Tensor,
    grads: &Gradients,
) -> Result<()> {
    let _guard = tch::no_grad_guard();
    let c = &model.config;
    let found = vjp(&[&tape.picked, &model.norm], grad, |leaves| {
        Ok(leaves[0].f_internal_fused_rms_norm([c.hidden], Some(&leaves[1]), c.norm_eps)?.0)
    })?;
    if let Some(sink) = &grads.base {
        sink.add(model.norm_index(), &found[1])?;
    }
    let shape = [batch.spans.tokens(), c.hidden];
    let mut dy = Tensor::f_zeros(shape, (model.kind, model.device))?;
    add_rows(&dy, &batch.places, &found[0])?;
    drop(found);
    let turn = model.rope.rows(&batch.positions.f_unsqueeze(0)?)?;
    let context = Context::new(model, &turn, &batch.spans)?;
    for (l, saved) in tape.saved.into_iter().enumerate().rev() {
        dy = context.backward(l, saved, dy, grads)?;
    }
    match &grads.base {
        Some(sink) => sink.add_rows(0, &batch.ids, &dy),
        None => Ok(()),
    }
}
