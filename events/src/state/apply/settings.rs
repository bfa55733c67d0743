//! Settings that change, now or from a step on, and API sets that were asked for.

use super::{Outcome, Refusal, refuse, require};
use crate::config::RunConfig;
use crate::config::change::any_time;
use crate::ids::{Role, Seq, StepRef};
use crate::state::{OpenStep, Planned, Position, RunState};

/// Most changes, and most API sets, that may wait for their step.
const CHANGES: usize = 32;
const SETS: usize = 4096;

/// Another value of a setting. What an open step has drawn was drawn with the settings it has.
pub(super) fn change(state: &mut RunState, seq: Seq, key: &str, value: Option<&str>) -> Outcome {
    require(state.position != Position::Finished, "the run is over")?;
    let idle = state.open == OpenStep::default();
    require(idle || any_time(key), "a step is open: it goes on with the settings it has")?;
    let Some(config) = &state.config else { return refuse("the run has no config") };
    let config = with(config, key, value)?;
    fits(&config, &state.planned)?;
    state.config = Some(config);
    if !any_time(key) {
        state.settings = seq;
    }
    Ok(())
}

/// Another value from a step on.
pub(super) fn plan(
    state: &mut RunState,
    key: &str,
    value: Option<&String>,
    from: StepRef,
) -> Outcome {
    not_open(state, from)?;
    require(state.planned.len() < CHANGES, "too many changes wait for their step")?;
    let change = Planned { from, key: key.to_owned(), value: value.cloned() };
    let place = state.planned.partition_point(|other| other.from <= from);
    state.planned.insert(place, change);
    let Some(config) = &state.config else { return refuse("the run has no config") };
    fits(config, &state.planned)
}

/// API sets for a Proposer step, in place of those asked for before.
pub(super) fn propose(state: &mut RunState, step: StepRef, sets: &[Vec<String>]) -> Outcome {
    not_open(state, step)?;
    require(step.role == Role::Proposer, "API sets belong to Proposer phases")?;
    let others = state.proposed.iter().filter(|(other, _)| **other != step);
    let waiting: usize = others.map(|(_, sets)| sets.len()).sum();
    require(waiting + sets.len() <= SETS, "too many API sets wait for their step")?;
    state.proposed.insert(step, sets.to_vec());
    Ok(())
}

/// A step opened: what was planned for it acts, and what was asked for older ones is forgotten.
pub(super) fn opened(state: &mut RunState, seq: Seq, step: StepRef) -> Outcome {
    state.proposed.retain(|other, _| *other >= step);
    let due = state.planned.partition_point(|change| change.from <= step);
    for change in state.planned.drain(..due).collect::<Vec<_>>() {
        let Some(config) = &state.config else { return refuse("the run has no config") };
        state.config = Some(with(config, &change.key, change.value.as_deref())?);
        state.settings = seq;
    }
    Ok(())
}

fn not_open(state: &RunState, step: StepRef) -> Outcome {
    let next = state.next_step().ok_or(Refusal::Known("the run is over"))?;
    if step >= next {
        return Ok(());
    }
    Err(Refusal::Text(format!("{step} is open or over: the next is {next}")))
}

fn with(config: &RunConfig, key: &str, value: Option<&str>) -> Result<RunConfig, Refusal> {
    config.with(key, value).map_err(|e| Refusal::Text(e.to_string()))
}

/// Whether all of `planned` can act, one after the other.
fn fits(config: &RunConfig, planned: &[Planned]) -> Outcome {
    let mut config = config.clone();
    for change in planned {
        config = with(&config, &change.key, change.value.as_deref())?;
    }
    Ok(())
}
