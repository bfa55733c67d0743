//! Beginnings and ends, scores and gradient steps.

use super::super::{control, score};
use super::known::Known;
use super::{Check, same};
use crate::event::Event;
use crate::state::RunState;

pub(super) fn due(state: &RunState, event: &Event) -> Check {
    same("what follows", &Some(event), &control::next(state).as_ref())
}

pub(super) fn scored(known: &mut Known, state: &RunState, event: &Event) -> Check {
    let Event::GroupScored { group, step, scores } = event else { return Ok(()) };
    let right = known.group(state, *group).ok_or("the group is not complete")?;
    same("the step", step, &right.step)?;
    same("the scores", scores, &right.scores)
}

pub(super) fn stepped(state: &RunState, event: &Event) -> Check {
    match event {
        Event::StepStarted { step, before, groups } => {
            let right = score::step_to_start(state).ok_or("the batch is not complete")?;
            same("the step", &(*step, *before), &(right.step, right.before))?;
            same("the batch", groups, &right.groups)
        }
        Event::StepTaken { step, before, after, update } => {
            let right = score::step_to_take(state).ok_or("no step was started")?;
            same("the step", &(*step, *before), &(right.step, right.before))?;
            let Some(update) = update else { return Ok(()) };
            let saved =
                state.checkpoints.get(after).ok_or("its checkpoint was not saved before")?;
            let trainer = state.config.as_ref().map(|config| &config.trainer);
            let named = trainer.ok_or("the run has no config")?.weights_file();
            let file = saved.files.iter().find(|(name, _)| name == named);
            same("the weights", &Some(update.weights), &file.map(|(_, id)| *id))
        }
        _ => Ok(()),
    }
}
