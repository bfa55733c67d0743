//! States kept beside long logs: who opens one folds only what came after.

use actors::bus::{Error, fold, fold_on};
use anyhow::Result;
use events::ids::Seq;
use events::log::Log;
use events::state::RunState;
use store::{FileLog, Kept};

/// Events after which a state is kept: about a tenth of a second of folding.
const WORTH: u64 = 100_000;

/// What `log` adds up to, from the state that is kept beside it where that can be used. What cannot be
/// used is said and folded anew.
///
/// # Errors
/// The log cannot be read, or an event cannot follow.
pub fn state_of(log: &FileLog) -> Result<RunState> {
    let why = match log.kept()? {
        Kept::Nothing => return Ok(fold(log)?),
        Kept::Unusable(why) => why,
        Kept::State(kept) => match fold_on(*kept, log) {
            Err(Error::Illegal(illegal)) => format!("the kept state is wrong: {illegal}"),
            folded => return Ok(folded?),
        },
    };
    eprintln!("{why}; all events are folded instead");
    Ok(fold(log)?)
}

/// Keeps `state` if it is far enough from what is kept. That it cannot is said and does no harm.
pub fn keep(log: &FileLog, state: &RunState) {
    let before = match log.kept() {
        Ok(Kept::State(kept)) => kept.last,
        _ => Seq(0),
    };
    if state.last.0.saturating_sub(before.0) < WORTH {
        return;
    }
    if let Err(error) = log.keep(state) {
        eprintln!("the state is not kept: {error}");
    }
}

/// Folds all events, and compares on the way with the state that is kept: whether it is the same, if
/// there is one that would be used.
///
/// # Errors
/// The log cannot be read, or an event cannot follow.
pub fn refold(log: &FileLog) -> Result<(RunState, Option<bool>)> {
    let Kept::State(kept) = log.kept()? else { return Ok((fold(log)?, None)) };
    let mut state = RunState::default();
    while state.last < kept.last {
        for recorded in log.read_after(state.last, 1024)? {
            state.apply_owned(recorded.seq, recorded.event)?;
            if state.last == kept.last {
                break;
            }
        }
    }
    let equal = state == *kept;
    Ok((fold_on(state, log)?, Some(equal)))
}
