//! What a run came to, in a few lines.

use std::fmt::Write as _;

use events::ids::Role;
use events::state::{Planned, Position, RunState, Tally};
use serde_json::{Value, json};

use crate::shown;

/// Where the run stands, in words.
pub fn position(state: &RunState) -> String {
    let place = match state.position {
        Position::Empty => "empty".to_owned(),
        Position::Between { done } => format!("between rounds, {done} done"),
        Position::InRound { round, .. } => format!("round {round}, between phases"),
        Position::InPhase { step, .. } => step.to_string(),
        Position::Finished => "finished".to_owned(),
    };
    match &state.paused {
        Some(reason) => format!("{place}, paused: {reason}"),
        None => place,
    }
}

fn tally(tally: &Tally) -> Value {
    json!({ "right": tally.right, "all": tally.all, "share": tally.share() })
}

/// Everything that `status --json` and `/status` say.
pub fn status(state: &RunState) -> Value {
    let role = |role: Role| {
        json!({
            "steps": state.version(role).steps,
            "updates": tally(&state.totals.steps.get(&role).copied().unwrap_or_default()),
            "groups-with-signal": tally(&state.totals.groups.get(&role).copied().unwrap_or_default()),
            "tokens": state.totals.tokens.get(&role).copied().unwrap_or(0),
            "weights": state.weights.get(&role).map(|digest| digest.hex()),
        })
    };
    json!({
        "run": state.branch().map(|run| run.to_string()),
        "position": position(state),
        "finished": state.position == Position::Finished,
        "paused": state.paused,
        "events": state.last.0,
        "progress": progress(state),
        "modules-valid": tally(&state.totals.modules),
        "kernels-right": tally(&state.totals.kernels),
        "proposer": role(Role::Proposer),
        "coder": role(Role::Coder),
        "world-failures": state.totals.world_failures,
        "frozen": frozen(state),
        "planned": state.planned.iter().map(planned).collect::<Vec<_>>(),
    })
}

/// The policies that take no more gradient steps.
fn frozen(state: &RunState) -> Vec<Role> {
    [Role::Proposer, Role::Coder].into_iter().filter(|role| state.is_frozen(*role)).collect()
}

/// A change that waits for its step.
fn planned(change: &Planned) -> String {
    let value = change.value.as_deref().unwrap_or("(taken away)");
    format!("{} = {value} from {} on", change.key, change.from)
}

/// Share of all optimizer steps of the run that are over, from 0 to 1.
pub fn progress(state: &RunState) -> f64 {
    let Some(config) = &state.config else { return 0.0 };
    let per_round = u64::from(config.proposer.policy.steps_per_phase.get())
        + u64::from(config.coder.policy.steps_per_phase.get());
    let all = u64::from(config.rounds.get()) * per_round;
    let done: u64 = state.totals.steps.values().map(|t| t.all).sum();
    done as f64 / all as f64
}

fn percent(tally: &Tally) -> String {
    format!("{} of {} ({:.0} %)", tally.right, tally.all, 100.0 * tally.share())
}

/// The summary that ends `kernelzero run`.
pub fn text(state: &RunState) -> String {
    let mut out = String::new();
    let run = state.branch().map(|r| r.to_string()).unwrap_or_default();
    let _ = writeln!(out, "run {run}: {}, {} events", shown::line(&position(state)), state.last.0);
    let _ = writeln!(out, "  valid modules   {}", percent(&state.totals.modules));
    let _ = writeln!(out, "  right kernels   {}", percent(&state.totals.kernels));
    for role in [Role::Proposer, Role::Coder] {
        let groups = state.totals.groups.get(&role).copied().unwrap_or_default();
        let steps = state.totals.steps.get(&role).copied().unwrap_or_default();
        let weights = match state.weights.get(&role) {
            Some(digest) => format!("weights changed to {}", digest.short()),
            None => "weights unchanged".to_owned(),
        };
        let _ = writeln!(
            out,
            "  {role:<9}       {} groups with a signal, {} steps with an update, {weights}",
            percent(&groups),
            percent(&steps),
        );
    }
    for role in frozen(state) {
        let _ = writeln!(out, "  frozen          {role}");
    }
    for change in &state.planned {
        let _ = writeln!(out, "  planned         {}", shown::line(&planned(change)));
    }
    let _ = writeln!(out, "  world failures  {}", state.totals.world_failures);
    out
}
