//! Branches of runs, and settings that change in the middle of one.
#![allow(clippy::print_stdout)]

use std::path::Path;

use actors::attached::Outcome;
use anyhow::Result;
use clap::Args;
use events::event::Event;
use events::ids::RunId;
use events::intent::Intent;
use events::rules::intent::freeze_key;
use store::Home;

use super::Which;
use super::run::launch;
use super::taint::Wrong;
use crate::attach::client::Connection;
use crate::branch::{At, Change, event};
use crate::daemon;
use crate::exit::{Exit, Usage};
use crate::rescore::Record;
use crate::runs::{home_to_read, pick};
use crate::shown;

/// `kernelzero restart`.
#[derive(Debug, Args)]
pub struct Restart {
    #[command(flatten)]
    which: Which,
    /// The round to do again.
    #[arg(long, required_unless_present = "from_clean", conflicts_with = "from_clean")]
    round: Option<u32>,
    /// Go on from the last checkpoint that nothing tainted has fed, without what is tainted; say what is
    /// wrong as `taint` does.
    #[arg(long)]
    from_clean: bool,
    #[command(flatten)]
    wrong: Wrong,
    /// Make the branch and do not start it.
    #[arg(long)]
    only: bool,
}

/// `kernelzero restart`.
pub fn restart(dir: &Path, arguments: &Restart) -> Result<Exit> {
    let run = arguments.which.run;
    let branch = match arguments.round {
        Some(round) if arguments.wrong.is_empty() => branched(dir, run, At::Round(round), &[])?,
        Some(_) => {
            let text =
                "what is wrong is excluded with --from-clean; --round does a round again as it is";
            return Err(Usage(text.to_owned()).into());
        }
        None => {
            let record = Record::open(dir, run)?;
            let found = arguments.wrong.trace(&record)?;
            let Some((at, excluded)) = record.clean(&found, arguments.wrong.words())? else {
                let text = format!("no gradient step of run {} was fed: all is clean", record.run);
                return Err(Usage(text).into());
            };
            let (modules, kernels) = (found.modules.len(), found.kernels.len());
            println!("excluded: {modules} modules and {kernels} kernels, and what has their code");
            branched(dir, Some(record.run), At::Event(at), &[excluded])?
        }
    };
    if arguments.only {
        return Ok(Exit::Ok);
    }
    launch(&Home::open(dir)?, &["--run".to_owned(), branch.to_string()], false)
}

/// `kernelzero fork`.
pub fn fork(
    dir: &Path,
    run: Option<RunId>,
    at: At,
    changes: &[Change],
    only: bool,
) -> Result<Exit> {
    let changes: Vec<Event> = changes.iter().map(event).collect();
    let branch = branched(dir, run, at, &changes)?;
    if only {
        return Ok(Exit::Ok);
    }
    launch(&Home::open(dir)?, &["--run".to_owned(), branch.to_string()], false)
}

fn branched(dir: &Path, run: Option<RunId>, at: At, changes: &[Event]) -> Result<RunId> {
    let home = home_to_read(dir)?;
    let parent = pick(&home, run)?;
    let reason = format!("branch at {at}");
    let (branch, changes) = crate::branch::fork(dir, Some(parent), at, changes, reason)?;
    if daemon::about(&home.run_dir(parent)).is_some() {
        println!("run {parent} goes on beside it: `stop --run {parent}` ends its daemon");
    }
    println!("branch {branch}");
    for change in changes.iter().filter(|change| !matches!(change, Event::SamplesExcluded { .. })) {
        tell(branch, change);
    }
    Ok(branch)
}

/// `kernelzero set`, `freeze` and `thaw`: on a stopped run in its log, on a running one through its
/// daemon, which alone may write there.
pub fn set(dir: &Path, run: Option<RunId>, intents: &[Intent]) -> Result<Exit> {
    let home = home_to_read(dir)?;
    let run = pick(&home, run)?;
    let run_dir = home.run_dir(run);
    if daemon::about(&run_dir).is_none() {
        let changes: Vec<Change> = intents.iter().filter_map(change_of).collect();
        for event in crate::branch::change_run(&home, run, &changes)? {
            tell(run, &event);
        }
        return Ok(Exit::Ok);
    }
    let mut daemon = Connection::operator(&run_dir)?;
    for intent in intents {
        match daemon.ask(intent)? {
            Outcome::Accepted(recorded) => tell(run, &recorded.event),
            Outcome::Refused(refused) => return Err(Usage(refused.why).into()),
            Outcome::Value(value) => anyhow::bail!("the daemon answers an intent with {value}"),
        }
    }
    Ok(Exit::Ok)
}

/// The setting that an intent changes.
fn change_of(intent: &Intent) -> Option<Change> {
    match intent {
        Intent::Freeze { policy, at_step } => {
            Some((freeze_key(*policy), Some(at_step.to_string())))
        }
        Intent::Thaw { policy } => Some((freeze_key(*policy), None)),
        Intent::Set { key, value, .. } => Some((key.clone(), value.clone())),
        Intent::Pause { .. } | Intent::Note { .. } | Intent::Apis { .. } => None,
    }
}

fn tell(run: RunId, event: &Event) {
    let value_of =
        |value: &Option<String>| value.as_deref().map_or("(taken away)".to_owned(), shown::line);
    match event {
        Event::SettingChanged { key, value } => println!("run {run}: {key} = {}", value_of(value)),
        Event::SettingPlanned { key, value, from } => {
            println!("run {run}: {key} = {} from {from} on", value_of(value));
        }
        other => println!("run {run}: {}", other.name()),
    }
}
