//! Branches of runs, and settings that change in the middle of one.
#![allow(clippy::print_stdout)]

use std::path::Path;

use anyhow::Result;
use events::ids::{Role, RunId};
use store::Home;

use super::run::launch;
use crate::branch::{At, Change};
use crate::daemon;
use crate::exit::{Exit, Usage};
use crate::runs::{home_to_read, pick};

/// `kernelzero restart`.
pub fn restart(dir: &Path, run: Option<RunId>, round: u32) -> Result<Exit> {
    let branch = branched(dir, run, At::Round(round), &[])?;
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
    let branch = branched(dir, run, at, changes)?;
    if only {
        return Ok(Exit::Ok);
    }
    launch(&Home::open(dir)?, &["--run".to_owned(), branch.to_string()], false)
}

fn branched(dir: &Path, run: Option<RunId>, at: At, changes: &[Change]) -> Result<RunId> {
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
