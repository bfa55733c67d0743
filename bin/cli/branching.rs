//! Branches of runs, and settings that change in the middle of one.
#![allow(clippy::print_stdout)]

use std::path::Path;

use anyhow::Result;
use clap::Args;
use events::event::Event;
use events::ids::{Role, RunId};
use store::Home;

use super::Which;
use super::run::launch;
use super::taint::Wrong;
use crate::branch::{At, Change, event};
use crate::daemon;
use crate::exit::{Exit, Usage};
use crate::rescore::Record;
use crate::runs::{home_to_read, pick};

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
    let branch = crate::branch::fork(dir, Some(parent), at, changes, format!("branch at {at}"))?;
    if daemon::about(&home.run_dir(parent)).is_some() {
        println!("run {parent} goes on beside it: `stop --run {parent}` ends its daemon");
    }
    println!("branch {branch}");
    Ok(branch)
}

/// `kernelzero set`, `freeze` and `thaw`. Not while a daemon has the run: its actors may just be
/// deciding by the settings that would change.
pub fn set(dir: &Path, run: Option<RunId>, changes: &[Change]) -> Result<Exit> {
    let home = home_to_read(dir)?;
    let run = pick(&home, run)?;
    if daemon::about(&home.run_dir(run)).is_some() {
        let text = format!(
            "run {run} has a daemon: `kernelzero stop --run {run}`, change it, then `run --run {run}`"
        );
        return Err(Usage(text).into());
    }
    crate::branch::change_run(&home, run, changes)?;
    for (key, value) in changes {
        println!("run {run}: {key} = {}", value.as_deref().unwrap_or("(taken away)"));
    }
    Ok(Exit::Ok)
}

/// The setting that freezes a policy.
pub fn freezing(role: Role, at: Option<u32>) -> Change {
    let name = match role {
        Role::Proposer => "proposer",
        Role::Coder => "coder",
    };
    (format!("{name}.policy.freeze-at-step"), at.map(|at| at.to_string()))
}
