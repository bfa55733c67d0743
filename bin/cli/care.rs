//! Looking after logs and blobs.
#![allow(clippy::print_stdout)]

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use events::ids::RunId;
use events::needed::Needed;
use serde_json::json;
use store::{Copied, HeadState, Home, OpenMode};

use super::{Which, inspect};
use crate::exit::{Exit, Usage};
use crate::runs::{home_to_read, pick};

/// `kernelzero log`, alone or with a second word.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct LogCommand {
    #[command(flatten)]
    list: inspect::LogArguments,
    #[command(subcommand)]
    care: Option<LogCare>,
}

#[derive(Debug, Subcommand)]
enum LogCare {
    /// Check chain, checksums, head and blobs of a run; nothing is written. Exit code 4: damage.
    Verify {
        #[command(flatten)]
        which: Which,
        /// All runs of the home.
        #[arg(long, conflicts_with = "run")]
        all: bool,
        /// One JSON object a run.
        #[arg(long)]
        json: bool,
    },
    /// Make the index of a run anew from its segments. Exit code 5: a daemon owns the run.
    Rebuild {
        #[command(flatten)]
        which: Which,
    },
}

/// `kernelzero gc`.
#[derive(Debug, Args)]
pub struct GcArguments {
    /// Only say what would go; takes no lock, so it may be asked beside a daemon.
    #[arg(long)]
    dry_run: bool,
    /// Keep what was written less than this many hours ago.
    #[arg(long, value_name = "HOURS", default_value_t = 1)]
    older_than: u64,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// `kernelzero log`.
pub fn log(home: &Path, command: &LogCommand) -> Result<Exit> {
    match &command.care {
        None => inspect::log(home, &command.list),
        Some(LogCare::Rebuild { which }) => rebuild(home, which.run),
        Some(LogCare::Verify { which, all, json }) => {
            home_to_read(home)?;
            let home = Home::existing(home)?;
            let runs = if *all { home.runs()? } else { vec![pick(&home, which.run)?] };
            let mut worst = Exit::Ok;
            for run in runs {
                if verify(&home, run, *json)? != Exit::Ok {
                    worst = Exit::Damaged;
                }
            }
            Ok(worst)
        }
    }
}

fn verify(home: &Home, run: RunId, as_json: bool) -> Result<Exit> {
    let mut named = Needed::default();
    let report = store::verify(&home.run_dir(run), |recorded, _| {
        named.see(&recorded.event);
        ControlFlow::Continue(())
    })?;
    let named = named.blobs();
    let wrong = home.blobs_to_read()?.verify_all(named.iter().copied());
    let outside = match report.outside {
        HeadState::Matches => "the head kept outside agrees".to_owned(),
        HeadState::Lags(seq) => format!("the head kept outside is at {seq} and agrees"),
        HeadState::Missing => "the head kept outside is missing".to_owned(),
    };
    if as_json {
        let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        let value = json!({
            "run": run, "events": report.events, "segments": report.segments,
            "bytes": report.bytes, "head": report.head.1, "outside": outside,
            "torn-bytes": report.torn_bytes, "blobs": named.len(), "wrong-blobs": wrong,
        });
        println!("{value:#}");
    } else {
        let (events, segments, bytes) = (report.events, report.segments, report.bytes);
        println!("run {run}: {events} events in {segments} segments, {bytes} bytes");
        println!("  head   {}: {outside}", report.head.1);
        if report.torn_bytes > 0 {
            println!("  end    {} bytes of a batch that was never acknowledged", report.torn_bytes);
        }
        println!("  blobs  {}, {} missing or damaged", named.len(), wrong.len());
        for error in wrong.iter().take(50) {
            println!("  {error}");
        }
    }
    let missing = report.outside == HeadState::Missing && report.events > 0;
    Ok(if wrong.is_empty() && !missing { Exit::Ok } else { Exit::Damaged })
}

fn rebuild(home: &Path, run: Option<RunId>) -> Result<Exit> {
    let home = home_to_read(home)?;
    let run = pick(&home, run)?;
    let log = home.open_run(run, OpenMode::Own)?;
    log.rebuild_index()?;
    println!("run {run}: the index was made anew from the segments");
    Ok(Exit::Ok)
}

/// `kernelzero gc`.
pub fn gc(home: &Path, arguments: &GcArguments) -> Result<Exit> {
    let home = home_to_read(home)?;
    let hours = arguments.older_than.saturating_mul(3600);
    let found = store::gc(&home, Duration::from_secs(hours), arguments.dry_run)?;
    if arguments.json {
        let part = |(blobs, bytes): (u64, u64)| json!({ "blobs": blobs, "bytes": bytes });
        let value = json!({
            "dry-run": arguments.dry_run, "kept": part(found.kept), "shared": found.shared,
            "young": part(found.young), "removed": part(found.removed), "names": found.names,
        });
        println!("{value:#}");
        return Ok(Exit::Ok);
    }
    let verb = if arguments.dry_run { "would go" } else { "removed" };
    for name in found.names.iter().filter(|_| arguments.dry_run) {
        println!("{name}");
    }
    println!(
        "kept     {} blobs, {} bytes; {} of several runs",
        found.kept.0, found.kept.1, found.shared
    );
    if found.young.0 > 0 {
        println!(
            "younger  {} blobs, {} bytes: named by no run, kept for now",
            found.young.0, found.young.1
        );
    }
    println!("{verb:<8} {} blobs, {} bytes", found.removed.0, found.removed.1);
    Ok(Exit::Ok)
}

/// `kernelzero backup`.
pub fn backup(home: &Path, to: &Path) -> Result<Exit> {
    said("copied", &store::backup(&home_to_read(home)?, to)?, to);
    Ok(Exit::Ok)
}

/// `kernelzero restore`.
pub fn restore(home: &Path, from: &Path) -> Result<Exit> {
    said("restored", &store::restore(from, home)?, home);
    Ok(Exit::Ok)
}

/// `kernelzero export`.
pub fn export(home: &Path, run: RunId, to: &Path) -> Result<Exit> {
    let home = home_to_read(home)?;
    said("exported", &store::export(&home, pick(&home, Some(run))?, to)?, to);
    Ok(Exit::Ok)
}

/// `kernelzero import`.
pub fn import(home: &Path, from: &Path) -> Result<Exit> {
    if !from.is_file() {
        return Err(Usage(format!("there is no archive {}", from.display())).into());
    }
    let home = Home::open(home)?;
    let found = store::import(&home, from)?;
    for ancestor in &found.ancestors {
        println!("run {ancestor}: imported, since the next one branched from it");
    }
    println!("run {}: imported, {} events, {} blobs", found.run, found.events, found.blobs);
    Ok(Exit::Ok)
}

fn said(verb: &str, copied: &Copied, to: &Path) {
    for (run, last) in &copied.runs {
        println!("run {run}: up to #{last}");
    }
    let (blobs, bytes) = (copied.blobs, copied.bytes);
    println!("{verb} to {}: {blobs} blobs, {bytes} bytes in all", to.display());
}
