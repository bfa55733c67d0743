//! Decides again what the log says was decided, and compares.

mod known;
mod samples;
mod steps;

use std::collections::BTreeSet;

use self::known::Known;
pub(super) use self::samples::text;
use self::samples::{compiled, measured, proposed, sampled, validated, written};
use self::steps::{due, scored, stepped};
use crate::event::Event;
use crate::ids::{BlobId, Seq};
use crate::outcome::{Backend, Failure, SourceReport};
use crate::state::RunState;

/// What an audit needs beside the log.
pub trait Evidence {
    /// A blob's bytes, checked against its hash; the error says what is wrong with it.
    fn blob(&self, id: BlobId) -> Result<Vec<u8>, String>;
    /// Whether a blob is there and what was stored; the error says what is wrong with it.
    fn sound(&self, id: BlobId) -> Result<(), String> {
        self.blob(id).map(drop)
    }
    /// The judge's static reading of a module; pure.
    fn module_source(&self, source: &str, tracked: &BTreeSet<String>) -> SourceReport;
    /// The judge's static rules for a kernel; pure.
    fn kernel_source(&self, source: &str) -> Result<Backend, Failure>;
}

/// Something does not agree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seq} {event}: {what}")]
pub struct Finding {
    /// Where.
    pub seq: Seq,
    /// Which event.
    pub event: &'static str,
    /// What is recorded and what is right.
    pub what: String,
}

type Check = Result<(), String>;

/// Checks one event alone; see [`Auditor`], which is faster for many.
pub fn check(
    state: &RunState,
    seq: Seq,
    event: &Event,
    evidence: &dyn Evidence,
) -> Result<(), Finding> {
    Auditor::default().check(state, seq, event, evidence)
}

/// Checks the events of one log in order. From its first event on it must be given every one, since
/// it remembers of the open step what does not change from event to event.
#[derive(Default)]
pub struct Auditor {
    known: Known,
}

impl Auditor {
    /// Checks that what `event` decides is what the rules decide from `state`, the fold of
    /// everything before it. Effects (what a model wrote, what a kernel did) are taken as recorded.
    pub fn check(
        &mut self,
        state: &RunState,
        seq: Seq,
        event: &Event,
        evidence: &dyn Evidence,
    ) -> Result<(), Finding> {
        let outcome = decided(&mut self.known, state, event, evidence);
        let outcome = outcome.and_then(|()| blobs(event, evidence));
        self.known.pass(event);
        outcome.map_err(|what| Finding { seq, event: event.name(), what })
    }
}

/// All blobs that an event names, but the sample: it was read to check the event.
fn blobs(event: &Event, evidence: &dyn Evidence) -> Check {
    match event {
        Event::ModuleProposed { answer, .. } | Event::KernelWritten { answer, .. } => {
            answer.source.map_or(Ok(()), |id| evidence.sound(id))
        }
        _ => event.blobs().into_iter().try_for_each(|id| evidence.sound(id)),
    }
}

fn decided(known: &mut Known, state: &RunState, event: &Event, evidence: &dyn Evidence) -> Check {
    match event {
        Event::RunStarted { .. }
        | Event::RunForked { .. }
        | Event::WorkFailed { .. }
        | Event::RunPaused { .. }
        | Event::RunResumed
        | Event::CheckpointSaved { .. }
        | Event::CheckpointDropped { .. }
        | Event::SettingChanged { .. }
        | Event::SettingPlanned { .. }
        | Event::ActorAttached { .. }
        | Event::ActorDetached { .. }
        | Event::IntentRefused { .. }
        | Event::Noted { .. } => Ok(()),
        Event::ApisProposed { sets, .. } => proposed(known, state, sets, evidence),
        Event::RoundStarted { .. }
        | Event::PhaseStarted { .. }
        | Event::PhaseFinished { .. }
        | Event::RoundFinished { .. }
        | Event::RunFinished => due(state, event),
        Event::ServiceStarted { .. }
        | Event::JobSubmitted { .. }
        | Event::JobJudged { .. }
        | Event::JobFailed { .. }
        | Event::JobCancelled { .. } => Err("jobs belong in a log of the judge's service".into()),
        Event::ApisSampled { .. } => sampled(known, state, event, evidence),
        Event::ModuleProposed { .. } | Event::KernelWritten { .. } => {
            written(known, state, event, evidence)
        }
        Event::ModuleValidated { .. } => validated(known, state, event, evidence),
        Event::KernelCompiled { .. } => compiled(known, state, event, evidence),
        Event::KernelMeasured { .. } => measured(known, state, event),
        Event::GroupScored { .. } => scored(known, state, event),
        Event::StepStarted { .. } | Event::StepTaken { .. } => stepped(state, event),
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, recorded: &T, right: &T) -> Check {
    if recorded == right {
        return Ok(());
    }
    let cut = |text: String| text.chars().take(300).collect::<String>();
    let (recorded, right) = (cut(format!("{recorded:?}")), cut(format!("{right:?}")));
    Err(format!("{what} is recorded as {recorded}, the rules give {right}"))
}
