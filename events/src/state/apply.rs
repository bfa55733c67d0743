//! One step of the fold for each event.

mod checkpoint;
mod exclude;
mod samples;
mod settings;
mod steps;

use self::checkpoint::{dropped, saved};
use self::exclude::exclude;
use self::samples::{compiled, measured, proposed, sampled, validated, written};
use self::steps::{scored, started, taken};
use super::{OpenStep, Position, RunState};
use crate::config::RunConfig;
use crate::event::Event;
use crate::ids::{ModuleId, Role, Seq, StepRef};

type Outcome = Result<(), Refusal>;

/// Why an event cannot follow.
pub(super) enum Refusal {
    Known(&'static str),
    Text(String),
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> String {
        match refusal {
            Refusal::Known(text) => text.to_owned(),
            Refusal::Text(text) => text,
        }
    }
}

fn refuse(why: &'static str) -> Outcome {
    Err(Refusal::Known(why))
}

fn require(holds: bool, why: &'static str) -> Outcome {
    if holds { Ok(()) } else { refuse(why) }
}

pub(super) fn apply(state: &mut RunState, seq: Seq, event: Event) -> Outcome {
    if seq.0 != state.last.0 + 1 {
        return Err(Refusal::Text(format!("the last one was {}", state.last)));
    }
    let first = matches!(event, Event::RunStarted { .. });
    require(first == (state.position == Position::Empty), "RunStarted is first, and only first")?;
    match event {
        Event::RunStarted { .. }
        | Event::RunForked { .. }
        | Event::RoundStarted { .. }
        | Event::PhaseStarted { .. }
        | Event::PhaseFinished { .. }
        | Event::RoundFinished { .. }
        | Event::RunFinished => course(state, seq, event)?,
        Event::ApisSampled { set, step, index, apis, .. } => {
            sampled(state, seq, (set, step, index), apis)?;
        }
        Event::ModuleProposed { module, set, index, answer } => {
            proposed(state, seq, (module, set, index), &answer)?;
        }
        Event::ModuleValidated { module, validity, .. } => {
            validated(state, seq, module, validity)?;
        }
        Event::KernelWritten { kernel, module, step, index, answer } => {
            written(state, seq, (kernel, module, step, index), &answer)?;
        }
        Event::KernelCompiled { kernel, outcome } => compiled(state, seq, kernel, outcome)?,
        Event::KernelMeasured { kernel, measurement } => {
            measured(state, seq, kernel, measurement)?;
        }
        Event::GroupScored { group, step, scores } => scored(state, seq, group, step, &scores)?,
        Event::StepStarted { step, before, groups } => {
            started(state, seq, step, before, groups)?;
        }
        Event::StepTaken { step, before, after, update } => {
            taken(state, seq, step, (before, after), update.as_ref())?;
        }
        Event::CheckpointSaved { policy, files } => saved(state, policy, files)?,
        Event::CheckpointDropped { policy, files } => dropped(state, policy, &files)?,
        Event::WorkFailed { .. }
        | Event::RunPaused { .. }
        | Event::RunResumed
        | Event::SettingChanged { .. }
        | Event::SettingPlanned { .. }
        | Event::ApisProposed { .. }
        | Event::PurityPolicyUsed { .. }
        | Event::SamplesExcluded { .. } => beside(state, seq, event)?,
        Event::ActorAttached { .. }
        | Event::ActorDetached { .. }
        | Event::IntentRefused { .. }
        | Event::Noted { .. } => {}
        Event::ServiceStarted { .. }
        | Event::JobSubmitted { .. }
        | Event::JobJudged { .. }
        | Event::JobFailed { .. }
        | Event::JobCancelled { .. } => {
            refuse("jobs belong in a log of the judge's service, not in a run")?;
        }
    }
    state.last = seq;
    Ok(())
}

/// Failures, pauses, and what people and attached actors change.
fn beside(state: &mut RunState, seq: Seq, event: Event) -> Outcome {
    match event {
        Event::WorkFailed { work, attempt, .. } => {
            let count = state.failures.entry(work).or_default();
            require(attempt == *count + 1, "the attempt is not the next one")?;
            *count = attempt;
            state.totals.world_failures += 1;
        }
        Event::RunPaused { reason } => {
            require(state.paused.is_none(), "it is paused already")?;
            state.paused = Some(reason);
        }
        Event::RunResumed => {
            require(state.paused.take().is_some(), "it is not paused")?;
            state.failures.clear();
        }
        Event::SettingChanged { key, value } => {
            settings::change(state, seq, &key, value.as_deref())?;
        }
        Event::SettingPlanned { key, value, from } => {
            settings::plan(state, &key, value.as_ref(), from)?;
        }
        Event::ApisProposed { step, sets } => settings::propose(state, step, &sets)?,
        Event::PurityPolicyUsed { version } => {
            require(state.position != Position::Finished, "the run is over")?;
            state.purity_policy = Some(version);
        }
        Event::SamplesExcluded { modules, kernels, sources, .. } => {
            exclude(state, modules, kernels, sources)?;
        }
        _ => {}
    }
    Ok(())
}

/// Beginning and end of runs, rounds and phases.
fn course(state: &mut RunState, seq: Seq, event: Event) -> Outcome {
    match event {
        Event::RunStarted { run, config, api_table, policies, .. } => {
            let config = RunConfig::parse(&config).map_err(|e| Refusal::Text(e.to_string()))?;
            state.config = Some(config);
            state.lineage = vec![run];
            state.api_table = Some(api_table);
            state.initial = policies;
            state.position = Position::Between { done: 0 };
        }
        Event::RunForked { run, parent, .. } => {
            require(state.branch() == Some(parent), "the parent is another run")?;
            state.lineage.push(run);
            state.paused = None;
        }
        Event::RoundStarted { round } => {
            let turn = round.checked_sub(1).map(|done| Position::Between { done });
            require(turn == Some(state.position), "it is not this round's turn")?;
            state.position = Position::InRound { round, next: Some(Role::Proposer) };
        }
        Event::PhaseStarted { round, role } => {
            let turn = Position::InRound { round, next: Some(role) };
            require(state.position == turn, "it is not this phase's turn")?;
            let step = StepRef { round, role, step: 0 };
            state.position = Position::InPhase { step, since: seq };
            settings::opened(state, seq, step)?;
        }
        Event::PhaseFinished { round, role } => {
            let Position::InPhase { step, .. } = state.position else {
                return refuse("no phase is open");
            };
            require((step.round, step.role) == (round, role), "another phase is open")?;
            require(state.open == OpenStep::default(), "a step is open")?;
            state.phase_ends.insert(state.version(role));
            let next = (role == Role::Proposer).then_some(Role::Coder);
            state.position = Position::InRound { round, next };
        }
        Event::RoundFinished { round } => {
            let over = Position::InRound { round, next: None };
            require(state.position == over, "its phases are not over")?;
            state.tallies_before = std::mem::take(&mut state.tallies);
            state.position = Position::Between { done: round };
        }
        Event::RunFinished => {
            require(matches!(state.position, Position::Between { .. }), "a round is open")?;
            state.position = Position::Finished;
        }
        _ => {}
    }
    Ok(())
}

fn in_step(state: &RunState, step: StepRef) -> Outcome {
    match state.position {
        Position::InPhase { step: open, .. } if open == step => {
            require(state.open.started.is_none(), "the step's batch is closed")
        }
        Position::InPhase { step: open, .. } => {
            Err(Refusal::Text(format!("{step} is not open, {open} is")))
        }
        _ => refuse("no phase is open"),
    }
}

fn open_role(state: &RunState) -> Option<StepRef> {
    match state.position {
        Position::InPhase { step, .. } => Some(step),
        _ => None,
    }
}

impl RunState {
    /// Whether `module` is known to the open step or to the pool, with its code.
    pub fn module_source(&self, module: ModuleId) -> Option<crate::ids::BlobId> {
        let open = self.open.modules.get(&module).and_then(|m| m.source);
        open.or_else(|| self.pool.iter().find(|p| p.module == module).map(|p| p.source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_follow_each_other_from_the_first() {
        let after = |done| RunState { position: Position::Between { done }, ..RunState::default() };
        for (done, round) in [(0, 0), (0, 2), (1, 1), (u32::MAX, 0)] {
            let refused = after(done).apply(Seq(1), &Event::RoundStarted { round }).unwrap_err();
            assert_eq!(refused.why, "it is not this round's turn", "{round} after {done}");
        }
        after(0).apply(Seq(1), &Event::RoundStarted { round: 1 }).unwrap();
    }
}
