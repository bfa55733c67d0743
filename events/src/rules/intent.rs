//! What an intent comes to: the event that it makes, or why it cannot be.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::config::change::any_time;
use crate::event::{Actor, Event};
use crate::ids::{Role, Seq, StepRef};
use crate::intent::{At, Boundary, Intent};
use crate::rules::control::steps_in_phase;
use crate::state::RunState;

/// Longest note, and longest reason for a pause, in bytes.
pub const TEXT_MAX: usize = 4096;

/// Longest value of a setting, in bytes.
pub const VALUE_MAX: usize = 64 << 10;

/// What kind of refusal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// A line is not one of the protocol.
    BadLine,
    /// There is no such intent, or a part of it is not what it must be.
    BadIntent,
    /// There is no such setting, or it cannot have this value.
    BadSetting,
    /// An API set is not one that could be drawn.
    BadApis,
    /// The step that it names is open or over.
    Late,
    /// The run does not allow it where it stands.
    NotNow,
}

/// Why an intent is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{why}")]
pub struct Refused {
    /// The kind.
    pub code: Code,
    /// In words, with the fix.
    pub why: String,
}

fn refused<T>(code: Code, why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { code, why: why.into() })
}

/// The event that follows from an intent now. `apis`: all names of the run's API table. The event can
/// follow: it was tried on a copy of the state.
pub fn effect(
    state: &RunState,
    intent: &Intent,
    apis: &BTreeSet<String>,
) -> Result<Event, Refused> {
    // A note changes nothing, so it can follow anything.
    if let Intent::Note { text } = intent {
        return noted(text);
    }
    let Some(next) = state.next_step() else {
        return refused(Code::NotNow, "the run is over: only notes are taken");
    };
    let event = match intent {
        Intent::Freeze { policy, at_step } => {
            Event::SettingChanged { key: freeze_key(*policy), value: Some(at_step.to_string()) }
        }
        Intent::Thaw { policy } => Event::SettingChanged { key: freeze_key(*policy), value: None },
        Intent::Set { value: Some(value), .. } if value.len() > VALUE_MAX => {
            return refused(Code::BadIntent, format!("`value` is longer than {VALUE_MAX} bytes"));
        }
        Intent::Set { key, value, at: None } if any_time(key) => {
            Event::SettingChanged { key: key.clone(), value: value.clone() }
        }
        Intent::Set { key, value, at } => {
            let from = to_come(state, boundary(next, at.unwrap_or(At::Next(Boundary::Step))));
            Event::SettingPlanned { key: key.clone(), value: value.clone(), from }
        }
        Intent::Pause { reason } if reason.len() > TEXT_MAX => {
            return refused(Code::BadIntent, format!("`reason` is longer than {TEXT_MAX} bytes"));
        }
        Intent::Pause { reason } if reason.trim().is_empty() => {
            return refused(Code::BadIntent, "`reason` is empty: say why the run is to stop");
        }
        Intent::Pause { reason } => Event::RunPaused { reason: reason.clone() },
        Intent::Note { text } => noted(text)?,
        Intent::Apis { step, sets } => {
            let drawn = next.role == Role::Proposer && next.step < steps_in_phase(state, next.role);
            let usual = if drawn { next } else { boundary(next, At::Next(Boundary::Round)) };
            let step = step.unwrap_or(usual);
            if step < next {
                let why = format!("{step} is open or over: the next is {next}");
                return refused(Code::Late, why);
            }
            check_sets(state, sets, apis).or_else(|why| refused(Code::BadApis, why))?;
            Event::ApisProposed { step, sets: sets.clone() }
        }
    };
    match state.clone().apply(Seq(state.last.0 + 1), &event) {
        Ok(()) => Ok(event),
        Err(illegal) => {
            let setting = matches!(intent, Intent::Set { .. });
            refused(if setting { Code::BadSetting } else { Code::NotNow }, illegal.why)
        }
    }
}

fn noted(text: &str) -> Result<Event, Refused> {
    if text.len() > TEXT_MAX {
        return refused(Code::BadIntent, format!("`text` is longer than {TEXT_MAX} bytes"));
    }
    Ok(Event::Noted { text: text.to_owned() })
}

/// The setting that freezes a policy.
pub fn freeze_key(policy: Role) -> String {
    format!("{policy}.policy.freeze-at-step")
}

/// The step that `at` means while `next` is the first that has not opened. One that is late means
/// `next`.
fn boundary(next: StepRef, at: At) -> StepRef {
    let (round, role, step) = (next.round, next.role, next.step);
    let start = |round, role| StepRef { round, role, step: 0 };
    match at {
        At::From(named) => named.max(next),
        At::Next(Boundary::Step) => next,
        // Nothing of this phase has opened: it is the next one.
        At::Next(Boundary::Phase) if step == 0 => next,
        At::Next(Boundary::Round) if step == 0 && role == Role::Proposer => next,
        At::Next(Boundary::Phase) if role == Role::Proposer => start(round, Role::Coder),
        At::Next(Boundary::Phase | Boundary::Round) => start(round + 1, Role::Proposer),
    }
}

/// The first step at or after `step` that will be there, as phases are long now: after a phase's last step
/// it is the first of the next phase.
pub fn to_come(state: &RunState, step: StepRef) -> StepRef {
    let StepRef { round, role, step: index } = step;
    match role {
        _ if index < steps_in_phase(state, role) => step,
        Role::Proposer => StepRef { round, role: Role::Coder, step: 0 },
        Role::Coder => StepRef { round: round + 1, role: Role::Proposer, step: 0 },
    }
}

/// Whether these could be the API sets of one step: as many and as large as drawn ones, of known APIs.
pub fn check_sets(
    state: &RunState,
    sets: &[Vec<String>],
    apis: &BTreeSet<String>,
) -> Result<(), String> {
    let config = state.config.as_ref().ok_or("the run has no config")?;
    let most = config.proposer.policy.batch_prompts.get() as usize;
    if sets.is_empty() || sets.len() > most {
        return Err(format!("there are {} sets: give 1 to {most}", sets.len()));
    }
    let sizes = config.sampler.apis_min.get() as usize..=config.sampler.apis_max.get() as usize;
    for (index, set) in sets.iter().enumerate() {
        if !sizes.contains(&set.len()) {
            let (low, high) = (sizes.start(), sizes.end());
            return Err(format!("set {index} has {} APIs: give {low} to {high}", set.len()));
        }
        if let Some(unknown) = set.iter().find(|api| !apis.contains(*api)) {
            return Err(format!("set {index}: {unknown} is not in the run's API table"));
        }
        if set.iter().collect::<BTreeSet<_>>().len() < set.len() {
            return Err(format!("set {index} names an API twice"));
        }
    }
    Ok(())
}

/// Whether an event may be by this actor: an attached one can only do what intents come to.
pub fn may(actor: Actor, event: &Event) -> Result<(), String> {
    let of_attached = matches!(
        event,
        Event::ActorAttached { .. }
            | Event::ActorDetached { .. }
            | Event::IntentRefused { .. }
            | Event::SettingChanged { .. }
            | Event::SettingPlanned { .. }
            | Event::RunPaused { .. }
            | Event::ApisProposed { .. }
            | Event::Noted { .. }
    );
    match actor {
        Actor::Attached(name) if !of_attached => {
            Err(format!("{name} is attached and cannot have done this"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{EXAMPLE, RunConfig};
    use crate::state::Position;

    fn state(position: Position) -> RunState {
        let config = Some(RunConfig::parse(EXAMPLE).unwrap());
        RunState { config, position, last: Seq(9), ..RunState::default() }
    }

    fn step(round: u32, role: Role, step: u32) -> StepRef {
        StepRef { round, role, step }
    }

    #[test]
    fn boundaries_are_those_of_the_steps_to_come() {
        let (at, from) = (At::Next, |s| At::From(s));
        let open = |s| Position::InPhase { step: s, since: Seq(3) };
        let (proposer, coder) = (Role::Proposer, Role::Coder);
        for (position, at, wanted) in [
            (open(step(1, proposer, 4)), at(Boundary::Step), step(1, proposer, 5)),
            (open(step(1, proposer, 4)), at(Boundary::Phase), step(1, coder, 0)),
            // The phase has no further step.
            (open(step(1, proposer, 19)), at(Boundary::Step), step(1, coder, 0)),
            (open(step(1, coder, 19)), at(Boundary::Step), step(2, proposer, 0)),
            (open(step(1, proposer, 4)), at(Boundary::Round), step(2, proposer, 0)),
            (open(step(1, coder, 0)), at(Boundary::Phase), step(2, proposer, 0)),
            (open(step(1, coder, 0)), from(step(1, coder, 0)), step(1, coder, 1)),
            (open(step(1, coder, 0)), from(step(3, coder, 7)), step(3, coder, 7)),
            (Position::Between { done: 2 }, at(Boundary::Round), step(3, proposer, 0)),
            (
                Position::InRound { round: 2, next: Some(coder) },
                at(Boundary::Phase),
                step(2, coder, 0),
            ),
            (Position::InRound { round: 2, next: None }, at(Boundary::Step), step(3, proposer, 0)),
        ] {
            let (key, value) = ("coder.beta".to_owned(), Some("0.5".to_owned()));
            let intent = Intent::Set { key, value, at: Some(at) };
            let event = effect(&state(position), &intent, &BTreeSet::new()).unwrap();
            let Event::SettingPlanned { from, .. } = event else { panic!("{event:?}") };
            assert_eq!(from, wanted, "{position:?} {at:?}");
        }
    }

    #[test]
    fn changes_that_wait_must_fit_each_other_and_are_not_too_many() {
        let mut state = state(Position::Between { done: 0 });
        let set = |key: &str, value: &str| Intent::Set {
            key: key.to_owned(),
            value: Some(value.to_owned()),
            at: None,
        };
        let mut take = |intent: &Intent| {
            let event = effect(&state, intent, &BTreeSet::new())?;
            state.apply(Seq(state.last.0 + 1), &event).unwrap();
            Ok::<(), Refused>(())
        };
        take(&set("sampler.apis-max", "2")).unwrap();
        let refused = take(&set("sampler.apis-min", "3")).unwrap_err();
        assert_eq!(refused.code, Code::BadSetting);
        assert!(refused.why.contains("above sampler.apis-max"), "{refused}");
        for _ in 1..32 {
            take(&set("coder.beta", "0.5")).unwrap();
        }
        assert!(take(&set("coder.beta", "0.5")).unwrap_err().why.contains("too many"));
        let long = "x".repeat(VALUE_MAX + 1);
        assert_eq!(take(&set("coder.beta", &long)).unwrap_err().code, Code::BadIntent);
    }

    #[test]
    fn when_the_run_is_over_only_notes_are_taken() {
        let over = state(Position::Finished);
        let take = |intent| effect(&over, &intent, &BTreeSet::new());
        assert!(take(Intent::Note { text: "well".into() }).is_ok());
        let long = "x".repeat(TEXT_MAX + 1);
        assert_eq!(take(Intent::Note { text: long }).unwrap_err().code, Code::BadIntent);
        let thaw = take(Intent::Thaw { policy: Role::Coder });
        assert_eq!(thaw.unwrap_err().code, Code::NotNow);
        let pause = take(Intent::Pause { reason: "late".into() });
        assert_eq!(pause.unwrap_err().code, Code::NotNow);
    }
}
