//! Scores groups and takes gradient steps.

use std::sync::PoisonError;

use events::event::{Actor, Event};
use events::ids::{PolicyVersion, Role, Seq};
use events::rules::score::{self, Batch, Complete, OpenBatch};
use events::sample::Sample;
use events::state::RunState;

use super::writing::SharedEngine;
use super::{Failed, Shell, caused, initial_weights, weights_in_use};
use crate::desk::Desk;
use crate::ports::{TrainJob, WorldFailed};

/// Scores groups, starts steps and takes them.
pub(super) struct Trainer {
    engine: SharedEngine,
}

impl Trainer {
    pub(super) fn new(engine: SharedEngine) -> Self {
        Self { engine }
    }

    fn take(&mut self, desk: &Desk<'_>, batch: &OpenBatch) -> Result<(), Failed> {
        let role = batch.step.role;
        if batch.samples.is_empty() {
            let event = Event::StepTaken {
                step: batch.step,
                before: batch.before,
                after: batch.before,
                update: None,
            };
            desk.append(Actor::Trainer, vec![caused(batch.cause, event)])?;
            return Ok(());
        }
        let mut samples = Vec::with_capacity(batch.samples.len());
        for (advantage, blob) in &batch.samples {
            let sample: Sample = serde_json::from_slice(&desk.blobs().get(*blob)?)
                .map_err(|e| WorldFailed(format!("sample {blob} cannot be read: {e}")))?;
            samples.push((*advantage, sample));
        }
        let job = desk.ask(|state| job(state, role, samples))??;
        let trained = self.engine.lock().unwrap_or_else(PoisonError::into_inner).train(&job)?;
        let after = PolicyVersion { role, steps: batch.before.steps + 1 };
        tracing::info!(step = %batch.step, loss = trained.update.loss, "step taken");
        let taken = Event::StepTaken {
            step: batch.step,
            before: batch.before,
            after,
            update: Some(trained.update),
        };
        // The checkpoint comes first: weights in use always have one, wherever the log ends.
        let saved = desk.ask(|state| state.checkpoints.get(&after).map(|c| c.files.clone()))?;
        let mut events = Vec::new();
        match saved {
            None => {
                let saved = Event::CheckpointSaved { policy: after, files: trained.files };
                events.push(caused(batch.cause, saved));
            }
            Some(files) if files == trained.files => {}
            Some(_) => {
                let text = format!(
                    "the step to {after} taken again gave other weights: branch with \
                                    `kernelzero restart --round {}`",
                    batch.step.round
                );
                return Err(WorldFailed(text).into());
            }
        }
        events.push(caused(batch.cause, taken));
        desk.append(Actor::Trainer, events)?;
        Ok(())
    }
}

/// The gradient step that `role` is to take on `samples`: from the weights in use, with the settings of
/// now.
pub fn job(
    state: &RunState,
    role: Role,
    samples: Vec<(f64, Sample)>,
) -> Result<TrainJob, WorldFailed> {
    let config =
        state.config.as_ref().ok_or_else(|| WorldFailed("the run has no config".into()))?;
    let policy = config.policy(role);
    Ok(TrainJob {
        weights: weights_in_use(state, role)?,
        reference: initial_weights(state, role)?,
        samples,
        learning_rate: policy.learning_rate.get(),
        weight_decay: policy.weight_decay.get(),
        grad_clip: policy.grad_clip.get(),
        kl_coefficient: policy.kl_coefficient.get(),
        clip_ratio: policy.clip_ratio.get(),
        micro_tokens: config.trainer.micro_tokens.get(),
        old_logprobs: config.trainer.old_logprobs,
        variant: config.trainer.objective,
    })
}

/// Scores of all groups that are complete.
fn scores(state: &RunState) -> Vec<(Option<Seq>, Event)> {
    let scored = |group: Complete| {
        let Complete { group, step, scores, cause } = group;
        caused(cause, Event::GroupScored { group, step, scores })
    };
    score::groups_to_score(state).into_iter().map(scored).collect()
}

/// The batch of the open step, if it is complete. Whether the policy is frozen is asked at this moment.
fn batch(state: &RunState) -> Vec<(Option<Seq>, Event)> {
    let started = |batch: Batch| {
        let Batch { step, before, groups, cause } = batch;
        caused(cause, Event::StepStarted { step, before, groups })
    };
    score::step_to_start(state).map(started).into_iter().collect()
}

impl Shell for Trainer {
    fn actor(&self) -> Actor {
        Actor::Trainer
    }

    fn work(&mut self, desk: &Desk<'_>) -> Result<bool, Failed> {
        if !desk.decide(Actor::Trainer, scores)?.is_empty()
            || !desk.decide(Actor::Trainer, batch)?.is_empty()
        {
            return Ok(true);
        }
        match desk.ask(score::step_to_take)? {
            Some(batch) => self.take(desk, &batch).map(|()| true),
            None => Ok(false),
        }
    }
}
