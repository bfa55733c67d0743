//! Decides again what the log says was decided, and compares.

mod known;
mod samples;
mod steps;

use std::collections::BTreeSet;
use std::sync::Arc;

use self::known::Known;
use self::samples::{compiled, measured, proposed, sampled, validated, written};
use self::steps::{due, scored, stepped};
use crate::event::Event;
use crate::ids::{BlobId, Seq};
use crate::outcome::{Backend, Failure, SourceReport};
use crate::state::RunState;

/// What an audit needs beside the log.
pub trait Evidence {
    /// A blob's bytes, checked against its hash; the error says what is wrong with it.
    fn blob(&self, id: BlobId) -> Result<Arc<[u8]>, String>;
    /// Whether a blob is there and what was stored; the error says what is wrong with it.
    fn sound(&self, id: BlobId) -> Result<(), String> {
        self.blob(id).map(drop)
    }
    /// Whether a blob is there, whose content was worked out and has its hash.
    fn holds(&self, id: BlobId, _content: &[u8]) -> Result<(), String> {
        self.sound(id)
    }
    /// Version of the judge's static rules; what they say may differ between two of them.
    fn purity_policy(&self) -> u32;
    /// The judge's static reading of the module in a blob; pure. The error says what is wrong with it.
    fn module_source(
        &self,
        source: BlobId,
        tracked: &BTreeSet<String>,
    ) -> Result<SourceReport, String>;
    /// The judge's static rules for the kernel in a blob; pure. The outer error says what is wrong
    /// with the blob.
    fn kernel_source(&self, source: BlobId) -> Result<Result<Backend, Failure>, String>;
    /// Works out now, on any thread, what the check of `event` and of those after it will ask for. The
    /// answers must be the same whether or not this was called.
    fn ahead(&self, _event: &Event) {}
}

/// The text in a blob.
pub fn text(evidence: &dyn Evidence, id: BlobId) -> Result<String, String> {
    let bytes = evidence.blob(id)?;
    std::str::from_utf8(&bytes).map(str::to_owned).map_err(|e| format!("blob {id}: {e}"))
}

/// How a decision compares with what is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// It is the same.
    Agrees,
    /// It is not the same by the static rules of this program, but was made by others: it can be made
    /// again only by them. Everything else of it is the same.
    OtherRules,
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
type Decided = Result<Agreement, String>;

/// Checks one event alone; see [`Auditor`], which is faster for many.
pub fn check(
    state: &RunState,
    seq: Seq,
    event: &Event,
    evidence: &dyn Evidence,
) -> Result<Agreement, Finding> {
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
    ) -> Result<Agreement, Finding> {
        let outcome = decided(&mut self.known, state, event, evidence);
        let outcome = outcome.and_then(|how| blobs(event, evidence).map(|()| how));
        self.known.pass(event);
        outcome.map_err(|what| Finding { seq, event: event.name(), what })
    }
}

/// All blobs that an event names, but those of an answer, which were looked at to check the event, and
/// files of checkpoints: only who has seen the whole log knows which of them are still needed.
fn blobs(event: &Event, evidence: &dyn Evidence) -> Check {
    match event {
        Event::ModuleProposed { .. }
        | Event::KernelWritten { .. }
        | Event::CheckpointSaved { .. } => Ok(()),
        _ => event.blobs().into_iter().try_for_each(|id| evidence.sound(id)),
    }
}

fn decided(known: &mut Known, state: &RunState, event: &Event, evidence: &dyn Evidence) -> Decided {
    match event {
        Event::ModuleValidated { .. } => return validated(known, state, event, evidence),
        Event::KernelCompiled { .. } => return compiled(known, state, event, evidence),
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
        | Event::Noted { .. }
        | Event::PurityPolicyUsed { .. }
        | Event::SamplesExcluded { .. } => Ok(()),
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
        Event::KernelMeasured { .. } => measured(known, state, event),
        Event::GroupScored { .. } => scored(known, state, event),
        Event::StepStarted { .. } | Event::StepTaken { .. } => stepped(state, event),
    }
    .map(|()| Agreement::Agrees)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, recorded: &T, right: &T) -> Check {
    if recorded == right {
        return Ok(());
    }
    let cut = |text: String| text.chars().take(300).collect::<String>();
    let (recorded, right) = (cut(format!("{recorded:?}")), cut(format!("{right:?}")));
    Err(format!("{what} is recorded as {recorded}, the rules give {right}"))
}
