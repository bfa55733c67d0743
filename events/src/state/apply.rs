//! One step of the fold for each event.

mod checkpoint;
mod exclude;
mod settings;
mod steps;

use self::checkpoint::{dropped, saved};
use self::exclude::exclude;
use self::steps::{scored, started, taken};
use super::{KernelEntry, ModuleEntry, OpenStep, Position, RunState, SetEntry};
use crate::config::RunConfig;
use crate::event::{Event, Validity};
use crate::ids::{KernelId, ModuleId, Role, Seq, StepRef};

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
        Event::ApisSampled { .. }
        | Event::ModuleProposed { .. }
        | Event::ModuleValidated { .. }
        | Event::KernelWritten { .. }
        | Event::KernelCompiled { .. }
        | Event::KernelMeasured { .. } => sample(state, seq, event)?,
        Event::GroupScored { group, step, scores } => scored(state, seq, group, step, &scores)?,
        Event::StepStarted { step, before, groups } => {
            started(state, seq, step, before, groups)?;
        }
        Event::StepTaken { step, before, after, update } => {
            taken(state, seq, step, (before, after), update.as_ref())?;
        }
        Event::CheckpointSaved { policy, files } => saved(state, policy, files)?,
        Event::CheckpointDropped { policy, files } => dropped(state, policy, &files)?,
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
            let next = Position::Between { done: round - 1 };
            require(state.position == next, "it is not this round's turn")?;
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

/// Sets, modules and kernels of the open step.
fn sample(state: &mut RunState, seq: Seq, event: Event) -> Outcome {
    match event {
        Event::ApisSampled { set, step, index, apis, .. } => {
            in_step(state, step)?;
            require(step.role == Role::Proposer, "API sets belong to Proposer phases")?;
            let entry = SetEntry { id: set, seq, apis, modules: Default::default() };
            require(state.open.sets.insert(index, entry).is_none(), "the set was drawn already")
        }
        Event::ModuleProposed { module, set, index, answer } => {
            let Some((place, entry)) = state.open.sets.iter_mut().find(|(_, s)| s.id == set) else {
                return refuse("its API set is not in the open step");
            };
            require(
                entry.modules.insert(index, module).is_none(),
                "this module was proposed already",
            )?;
            let record = ModuleEntry {
                set: *place,
                seq,
                source: answer.source,
                sample: answer.sample,
                validity: None,
            };
            state.excluded.join_module(module, answer.source);
            state.open.modules.insert(module, record);
            *state.totals.tokens.entry(Role::Proposer).or_default() += u64::from(answer.tokens);
            Ok(())
        }
        Event::ModuleValidated { module, validity, .. } => {
            let Some(entry) = state.open.modules.get_mut(&module) else {
                return refuse("the module is not in the open step");
            };
            require(entry.validity.is_none(), "the module was validated already")?;
            state.totals.modules.add(validity == Validity::Valid);
            entry.validity = Some((seq, validity));
            Ok(())
        }
        _ => kernel(state, seq, event),
    }
}

fn kernel(state: &mut RunState, seq: Seq, event: Event) -> Outcome {
    match event {
        Event::KernelWritten { kernel, module, step, index, answer } => {
            in_step(state, step)?;
            let known = match step.role {
                Role::Proposer => state
                    .open
                    .modules
                    .get(&module)
                    .is_some_and(|m| matches!(m.validity, Some((_, Validity::Valid)))),
                // The newest first: most tasks are of this round.
                Role::Coder => state.pool.iter().rev().any(|p| p.module == module),
            };
            require(known, "its module is not a valid one of the step")?;
            require(
                state.open.kernels.insert((module, index), kernel).is_none(),
                "this kernel was written already",
            )?;
            let record = KernelEntry {
                module,
                seq,
                source: answer.source,
                sample: answer.sample,
                compiled: None,
                measured: None,
            };
            state.excluded.join_kernel(kernel, module, answer.source);
            state.open.kernel.insert(kernel, record);
            *state.totals.tokens.entry(Role::Coder).or_default() += u64::from(answer.tokens);
            Ok(())
        }
        Event::KernelCompiled { kernel, outcome } => {
            let entry = known_kernel(state, kernel)?;
            require(entry.compiled.is_none(), "the kernel was compiled already")?;
            entry.compiled = Some((seq, outcome));
            Ok(())
        }
        Event::KernelMeasured { kernel, measurement } => {
            let entry = known_kernel(state, kernel)?;
            require(entry.compiled.is_some(), "the kernel was not compiled")?;
            require(entry.measured.is_none(), "the kernel was measured already")?;
            entry.measured = Some((seq, measurement));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn known_kernel(state: &mut RunState, kernel: KernelId) -> Result<&mut KernelEntry, Refusal> {
    state.open.kernel.get_mut(&kernel).ok_or(Refusal::Known("the kernel is not in the open step"))
}

impl RunState {
    /// Whether `module` is known to the open step or to the pool, with its code.
    pub fn module_source(&self, module: ModuleId) -> Option<crate::ids::BlobId> {
        let open = self.open.modules.get(&module).and_then(|m| m.source);
        open.or_else(|| self.pool.iter().find(|p| p.module == module).map(|p| p.source))
    }
}
