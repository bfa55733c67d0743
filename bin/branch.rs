//! Branches of runs, and settings that change in the middle of one.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use actors::Bus;
use anyhow::Result;
use events::config::change::any_time;
use events::event::{Actor, Draft, Event};
use events::ids::{Digest, Role, RunId, Seq};
use events::log::{Blobs, Log};
use events::rules::intent::to_come;
use events::state::{Checkpoint, OpenStep, RunState};
use store::{BlobDir, FileLog, Home, OpenMode};

use crate::exit::Usage;
use crate::kept;
use crate::runs::{home_to_read, new_run_id, pick};

/// A key of the config and its new value; none takes away a setting that need not be there.
pub type Change = (String, Option<String>);

/// Where a branch leaves its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Before the first event of a round.
    Round(u32),
    /// After the event with this number.
    Event(Seq),
    /// After a policy's own optimizer step with this number, from 1.
    Step(Role, u32),
    /// The same of the only policy that took so many steps.
    OnlyStep(u32),
}

impl std::str::FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text}: give the number of an event, round:N, proposer:N or coder:N (its Nth step), or \
                 step:N where only one policy took so many"
            )
        };
        let number = |text: &str| text.parse().ok().filter(|n| *n > 0).ok_or_else(wrong);
        match text.split_once(':') {
            None => {
                text.parse().ok().filter(|n| *n > 0).map(|n| Self::Event(Seq(n))).ok_or_else(wrong)
            }
            Some(("round", n)) => Ok(Self::Round(number(n)?)),
            Some(("step", n)) => Ok(Self::OnlyStep(number(n)?)),
            Some(("proposer", n)) => Ok(Self::Step(Role::Proposer, number(n)?)),
            Some(("coder", n)) => Ok(Self::Step(Role::Coder, number(n)?)),
            Some(_) => Err(wrong()),
        }
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Round(round) => write!(f, "round:{round}"),
            Self::Event(seq) => write!(f, "{}", seq.0),
            Self::OnlyStep(step) => write!(f, "step:{step}"),
            Self::Step(Role::Proposer, step) => write!(f, "proposer:{step}"),
            Self::Step(Role::Coder, step) => write!(f, "coder:{step}"),
        }
    }
}

impl At {
    /// `step:N` with its policy; an error where both took so many steps, or neither.
    fn named(self, log: &FileLog) -> Result<Self> {
        let Self::OnlyStep(step) = self else { return Ok(self) };
        let end = kept::state_of(log)?;
        let took = |role: &Role| end.version(*role).steps >= step;
        match [Role::Proposer, Role::Coder].into_iter().filter(took).collect::<Vec<_>>()[..] {
            [role] => Ok(Self::Step(role, step)),
            [] => Err(Usage(format!("step:{step}: neither policy took so many steps")).into()),
            _ => {
                let text = format!(
                    "step:{step}: both policies took so many steps: say proposer:{step} or coder:{step}"
                );
                Err(Usage(text).into())
            }
        }
    }

    /// Whether the branch goes on after this event.
    fn is_after(self, seq: Seq, event: &Event) -> bool {
        match (self, event) {
            (Self::Event(at), _) => seq == at,
            (Self::Step(role, steps), Event::StepTaken { after, update: Some(_), .. }) => {
                after.role == role && after.steps == steps
            }
            _ => false,
        }
    }

    fn is_before(self, event: &Event) -> bool {
        matches!((self, event), (Self::Round(at), Event::RoundStarted { round }) if *round == at)
    }
}

/// Branches a run and begins the branch with `changes`, of which settings are planned where a step is
/// open. The parent is not touched, and what both share is not copied. Returns the branch, and what the
/// changes came to.
pub fn fork(
    dir: &Path,
    named: Option<RunId>,
    at: At,
    changes: &[Event],
    reason: String,
) -> Result<(RunId, Vec<Event>)> {
    let home = home_to_read(dir)?;
    let parent = pick(&home, named)?;
    let log = home.open_run(parent, OpenMode::ReadOnly)?;
    log.require_head()?;
    let at = at.named(&log)?;
    let (state, parent_head) = left(&log, at)?.ok_or_else(|| {
        let last = log.head().0;
        Usage(format!("run {parent} has no {at}; its last event is {last}: see `kernelzero log`"))
    })?;
    let seq = state.last;
    let changes: Vec<Event> = changes.iter().map(|event| in_time(&state, event.clone())).collect();
    check(&state, &changes)?;
    // A place before a branch's own beginning is its parent's, so the new branch leaves that.
    let parent = state.branch().unwrap_or(parent);
    let log = home.open_run(parent, OpenMode::ReadOnly)?;
    let blobs = home.blobs()?;
    let dropped = gone(&log, &state, &blobs)?;
    drop(log);
    let run = new_run_id()?;
    let forked = Event::RunForked { run, parent, parent_head, reason };
    let mut branch = state;
    let mut drafts = Vec::new();
    let events = std::iter::once(&forked).chain(&dropped).chain(&changes);
    for (at, event) in (seq.0 + 1..).zip(events) {
        branch.apply(Seq(at), event)?;
        drafts.push(Draft { cause: Some(seq), actor: Actor::RunControl, event: event.clone() });
    }
    home.fork_run(parent, seq, run, drafts)?;
    Ok((run, changes))
}

/// Changes settings of a run that no daemon has: all of them, or none with the reason. Returns what was
/// recorded. What a step has drawn keeps its settings: while one is open, changes act from the next on.
pub fn change_run(home: &Home, run: RunId, changes: &[Change]) -> Result<Vec<Event>> {
    let log = home.open_run(run, OpenMode::Own)?;
    let last = log.head().0;
    let before = kept::state_of(&log)?;
    let mut state = before.clone();
    let mut events = Vec::new();
    for (seq, change) in (last.0 + 1..).zip(changes) {
        let event = in_time(&state, event(change));
        state.apply(Seq(seq), &event).map_err(|illegal| Usage(illegal.why))?;
        events.push(event);
    }
    let bus = Bus::at(before, Arc::new(log), Arc::new(home.blobs()?));
    bus.append(Actor::RunControl, events.iter().map(|e| (Some(last), e.clone())).collect())?;
    Ok(events)
}

/// What records a change.
pub fn event((key, value): &Change) -> Event {
    Event::SettingChanged { key: key.clone(), value: value.clone() }
}

/// A change, from the next step on if one is open at `state`: what that has drawn keeps its settings.
fn in_time(state: &RunState, change: Event) -> Event {
    match (state.next_step(), change) {
        (Some(next), Event::SettingChanged { key, value })
            if state.open != OpenStep::default() && !any_time(&key) =>
        {
            Event::SettingPlanned { key, value, from: to_come(state, next) }
        }
        (_, change) => change,
    }
}

/// What a branch at `state` drops, since the run that it left has dropped it meanwhile and it was
/// collected. Fails if the weights in use are among it, or if something is gone that was never dropped.
fn gone(log: &FileLog, state: &RunState, blobs: &BlobDir) -> Result<Vec<Event>> {
    let lacks = |checkpoint: &&Checkpoint| {
        checkpoint.files.iter().any(|(_, blob)| !Blobs::has(blobs, *blob))
    };
    let lacking: Vec<&Checkpoint> = state.checkpoints.values().filter(lacks).collect();
    if lacking.is_empty() {
        return Ok(Vec::new());
    }
    let now = kept::state_of(log)?;
    let kept = |c: &&Checkpoint| now.checkpoints.contains_key(&c.policy);
    for (_, blob) in lacking.iter().filter(|c| kept(c)).flat_map(|c| &c.files) {
        if !Blobs::has(blobs, *blob) {
            Blobs::get(blobs, *blob)?;
        }
    }
    let in_use = |c: &&&Checkpoint| c.policy.steps >= state.version(c.policy.role).steps;
    if let Some(lost) = lacking.iter().find(in_use) {
        let kept: Vec<String> = now.checkpoints.keys().map(|policy| policy.to_string()).collect();
        let text = format!(
            "the weights of {} are in use there and were dropped (trainer.keep-last); branch at \
             `round:N`, or after the last step of one that is kept: {}",
            lost.policy,
            kept.join(", ")
        );
        return Err(Usage(text).into());
    }
    let files = |c: &Checkpoint| c.files.iter().map(|(name, _)| name.clone()).collect();
    let drop = |c: &Checkpoint| Event::CheckpointDropped { policy: c.policy, files: files(c) };
    Ok(lacking.into_iter().map(drop).collect())
}

/// The fold up to where a branch leaves, and the hash of the last record there; `None` if there is no
/// such place.
fn left(log: &FileLog, at: At) -> Result<Option<(RunState, Digest)>> {
    let mut state = RunState::default();
    let (mut head, mut broken) = (None, None);
    log.scan_owned(Seq(1), |recorded, hash| {
        if at.is_before(&recorded.event) {
            head = Some(recorded.previous);
            return ControlFlow::Break(());
        }
        head = at.is_after(recorded.seq, &recorded.event).then_some(hash);
        broken = state.apply_owned(recorded.seq, recorded.event).err();
        match (&broken, head) {
            (None, None) => ControlFlow::Continue(()),
            (Some(_), _) | (_, Some(_)) => ControlFlow::Break(()),
        }
    })?;
    match broken {
        Some(illegal) => Err(illegal.into()),
        None => Ok(head.map(|head| (state, head))),
    }
}

/// Fails if a change cannot be made at `state`: before anything is made.
fn check(state: &RunState, changes: &[Event]) -> Result<()> {
    let mut changed = state.clone();
    for (seq, change) in (state.last.0 + 1..).zip(changes) {
        changed.apply(Seq(seq), change).map_err(|illegal| Usage(illegal.why))?;
    }
    Ok(())
}

/// `KEY=VALUE`, or `KEY=` to take a setting away that need not be there.
pub fn change(text: &str) -> Result<Change, String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text}: give KEY=VALUE, as in judge.profile=paper"))?;
    let value = Some(value.trim()).filter(|value| !value.is_empty());
    Ok((key.trim().to_owned(), value.map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_written() {
        for text in ["17", "round:2", "proposer:40", "coder:1", "step:3"] {
            assert_eq!(text.parse::<At>().unwrap().to_string(), text);
        }
        for text in ["", "0", "step:x", "epoch:4", "round:x", "proposer:0", "-1"] {
            assert!(text.parse::<At>().unwrap_err().contains("proposer:N"), "{text}");
        }
    }

    #[test]
    fn changes_are_read() {
        assert_eq!(change("a.b = 3"), Ok(("a.b".into(), Some("3".into()))));
        assert_eq!(change("a="), Ok(("a".into(), None)));
        assert!(change("a").unwrap_err().contains("KEY=VALUE"));
    }
}
