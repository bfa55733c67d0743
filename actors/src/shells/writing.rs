//! The two models at work: Proposer and CoderPolicy.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use events::event::{Actor, Answer, Event};
use events::ids::{Role, Seq};
use events::rules::extract::Extractor;
use events::rules::{prompt, work};
use events::state::RunState;

use super::{Failed, Limits, Shell, caused, text, weights_in_use};
use crate::desk::Desk;
use crate::ports::{Drawn, Engine, GenerateJob, Prompt, WorldFailed};

/// The engine, shared by those who draw and who train.
pub(super) type SharedEngine = Arc<Mutex<Box<dyn Engine>>>;

/// Draws the samples that a step lacks from one model.
pub(super) struct Writer {
    role: Role,
    engine: SharedEngine,
    limits: Limits,
}

/// Makes the event of one answer.
type Record = Box<dyn Fn(Answer) -> Event>;

/// One prompt, and for each of its samples the seed and the event to make of it.
struct Ask {
    prompt: String,
    cause: Seq,
    samples: Vec<(u64, Record)>,
}

impl Writer {
    pub(super) fn new(role: Role, engine: SharedEngine, limits: Limits) -> Self {
        Self { role, engine, limits }
    }

    fn asks(&self, desk: &Desk<'_>) -> Result<Vec<Ask>, Failed> {
        match self.role {
            Role::Proposer => desk.ask(proposals).map_err(Failed::Bus),
            Role::Coder => {
                let (orders, template) = desk.ask(|state| {
                    let template = state.config.as_ref().map(|c| c.coder.policy.prompt.clone());
                    (work::kernels_to_write(state), template.unwrap_or_default())
                })?;
                let ask = |order| kernel_ask(desk, &template, order);
                // Only as many prompts as one job needs: reading all sources would be wasted.
                orders.into_iter().take(self.limits.samples).map(ask).collect()
            }
        }
    }

    /// Appends what was drawn.
    fn record(
        &self,
        desk: &Desk<'_>,
        batch: &[Ask],
        job: &GenerateJob,
        extractor: Extractor,
        drawn: &Drawn,
    ) -> Result<(), Failed> {
        let place = batch
            .get(drawn.prompt)
            .and_then(|ask| Some((ask.cause, ask.samples.get(drawn.index)?)));
        let Some((cause, (seed, record))) = place else {
            let text = "the engine gave a sample that was not asked for";
            return Err(WorldFailed(text.to_owned()).into());
        };
        let code = extractor.code(&drawn.sample.text, self.role);
        let event = record(answer(desk, job, *seed, drawn, code)?);
        desk.append(self.actor(), vec![caused(cause, event)])
    }
}

fn proposals(state: &RunState) -> Vec<Ask> {
    let Some(config) = &state.config else { return Vec::new() };
    let ask = |order: work::ProposalOrder| Ask {
        prompt: prompt::for_apis(&config.proposer.policy.prompt, &order.apis),
        cause: order.cause,
        samples: order
            .missing
            .into_iter()
            .map(|(index, module, seed)| {
                let set = order.set;
                let record: Record =
                    Box::new(move |answer| Event::ModuleProposed { module, set, index, answer });
                (seed, record)
            })
            .collect(),
    };
    work::proposals_to_write(state).into_iter().map(ask).collect()
}

fn kernel_ask(desk: &Desk<'_>, template: &str, order: work::KernelOrder) -> Result<Ask, Failed> {
    let source = text(desk, order.source)?;
    let (module, step) = (order.module, order.step);
    let samples = order.missing.into_iter().map(|(index, kernel, seed)| {
        let record: Record =
            Box::new(move |answer| Event::KernelWritten { kernel, module, step, index, answer });
        (seed, record)
    });
    Ok(Ask {
        prompt: prompt::for_module(template, &source),
        cause: order.cause,
        samples: samples.collect(),
    })
}

/// The first prompts that together have at most `limit` samples, but at least one sample.
fn first_batch(asks: Vec<Ask>, limit: usize) -> Vec<Ask> {
    let mut left = limit.max(1);
    let mut batch = Vec::new();
    for mut ask in asks {
        if left == 0 {
            break;
        }
        ask.samples.truncate(left);
        left -= ask.samples.len();
        batch.push(ask);
    }
    batch
}

fn job(state: &RunState, role: Role, batch: &[Ask]) -> Result<GenerateJob, WorldFailed> {
    let config = state.config.as_ref().map(|config| config.policy(role));
    let config = config.ok_or_else(|| WorldFailed("the run has no config".into()))?;
    let prompt = |ask: &Ask| Prompt {
        text: ask.prompt.clone(),
        seeds: ask.samples.iter().map(|(seed, _)| *seed).collect(),
    };
    Ok(GenerateJob {
        weights: weights_in_use(state, role)?,
        prompts: batch.iter().map(prompt).collect(),
        sampling: config.sampling(),
        max_prompt_tokens: config.max_prompt_tokens.get(),
        max_output_tokens: config.max_output_tokens.get(),
    })
}

fn extractor(state: &RunState) -> Extractor {
    state.config.as_ref().map(|config| config.extractor).unwrap_or_default()
}

/// Stores the sample and its code, and names them.
fn answer(
    desk: &Desk<'_>,
    job: &GenerateJob,
    seed: u64,
    drawn: &Drawn,
    code: Option<String>,
) -> Result<Answer, Failed> {
    let bytes = serde_json::to_vec(&drawn.sample)
        .map_err(|e| Failed::World(WorldFailed(format!("a sample cannot be written: {e}"))))?;
    let source = match code {
        Some(code) => Some(desk.blobs().put(code.as_bytes())?),
        None => None,
    };
    Ok(Answer {
        seed,
        policy: job.weights.policy,
        sample: desk.blobs().put(&bytes)?,
        source,
        tokens: u32::try_from(drawn.sample.tokens.len()).unwrap_or(u32::MAX),
        finish: drawn.finish,
    })
}

impl Shell for Writer {
    fn actor(&self) -> Actor {
        match self.role {
            Role::Proposer => Actor::Proposer,
            Role::Coder => Actor::CoderPolicy,
        }
    }

    fn work(&mut self, desk: &Desk<'_>) -> Result<bool, Failed> {
        let batch = first_batch(self.asks(desk)?, self.limits.samples);
        if batch.is_empty() {
            return Ok(false);
        }
        let job = desk.ask(|state| job(state, self.role, &batch))??;
        let extractor = desk.ask(extractor)?;
        let mut missing: usize = batch.iter().map(|ask| ask.samples.len()).sum();
        let mut recorded = Ok(());
        let mut each = |drawn: Drawn| {
            missing = missing.saturating_sub(1);
            recorded = self.record(desk, &batch, &job, extractor, &drawn);
            if recorded.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = engine.generate(&job, &mut each);
        drop(engine);
        recorded?;
        ended?;
        if missing > 0 {
            return Err(WorldFailed(format!("the engine left out {missing} samples")).into());
        }
        Ok(true)
    }
}
