//! Which beginning or end is due.

use super::retention;
use crate::event::Event;
use crate::ids::{Role, StepRef};
use crate::state::{OpenStep, Position, RunState};

/// The round, phase or run event that must follow now, or the checkpoint that must go before, if any.
pub fn next(state: &RunState) -> Option<Event> {
    let config = state.config.as_ref()?;
    if state.paused.is_some() {
        return None;
    }
    let dropped = || retention::due(state);
    match state.position {
        Position::Empty | Position::Finished => None,
        _ if dropped().is_some() => dropped(),
        Position::Between { done } if done < config.rounds.get() => {
            Some(Event::RoundStarted { round: done + 1 })
        }
        Position::Between { .. } => Some(Event::RunFinished),
        Position::InRound { round, next: Some(role) } => Some(Event::PhaseStarted { round, role }),
        Position::InRound { round, next: None } => Some(Event::RoundFinished { round }),
        Position::InPhase { step, .. } => {
            let over = step.step >= steps_in_phase(state, step.role);
            (over && state.open == OpenStep::default())
                .then_some(Event::PhaseFinished { round: step.round, role: step.role })
        }
    }
}

/// Optimizer steps in each phase of `role`.
pub fn steps_in_phase(state: &RunState, role: Role) -> u32 {
    state.config.as_ref().map_or(0, |config| config.policy(role).steps_per_phase.get())
}

/// The step that samples are wanted for: open, not yet over, its batch not yet closed. None while a
/// checkpoint must go, so that the order of events does not depend on who is quicker.
pub fn sampling_step(state: &RunState) -> Option<(StepRef, crate::ids::Seq)> {
    let (step, since) = state.open_step()?;
    let wanted = step.step < steps_in_phase(state, step.role) && state.open.started.is_none();
    (wanted && retention::due(state).is_none()).then_some((step, since))
}
