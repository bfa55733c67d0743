//! `kernelzero audit`.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use events::ids::{Digest, Seq};
use serde_json::{Map, Value, json};

use super::Which;
use crate::audit::{Report, Since, audit as audit_run};
use crate::exit::Exit;

/// `kernelzero audit`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Hash of the last record, kept elsewhere.
    #[arg(long)]
    head: Option<Digest>,
    /// Compare decisions from this event on; chain and legality are checked from the first.
    #[arg(long, value_name = "SEQ", conflicts_with = "round")]
    since: Option<u64>,
    /// Compare decisions from the start of this round on.
    #[arg(long, value_name = "N")]
    round: Option<u32>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// `kernelzero audit`: 0 if everything agrees, 1 if something does not, 4 if the log is damaged.
pub fn audit(home: &Path, arguments: &Arguments) -> Result<Exit> {
    let since = match (arguments.since, arguments.round) {
        (Some(seq), _) => Since::Seq(Seq(seq)),
        (None, Some(round)) => Since::Round(round),
        (None, None) => Since::Start,
    };
    let start = Instant::now();
    let (run, report) = audit_run(home, arguments.which.run, since, arguments.head)?;
    let seconds = start.elapsed().as_secs_f64();
    if arguments.json {
        let value = json!({
            "run": run, "events": report.events, "head": report.head.1,
            "agrees": report.found == 0, "findings": report.findings, "found": report.found,
            "kinds": kinds(&report), "seconds": seconds,
        });
        println!("{value:#}");
    } else {
        print(&report);
        let verdict = match report.found {
            0 => "everything agrees".to_owned(),
            count => format!("{count} findings"),
        };
        let (events, head) = (report.events, report.head.1);
        println!("run {run}: {events} events in {seconds:.1} s, head {head}: {verdict}");
    }
    Ok(if report.found == 0 { Exit::Ok } else { Exit::No })
}

fn kinds(report: &Report) -> Value {
    let line = |(name, kind): (&&str, &crate::audit::Kind)| {
        let value = json!({
            "events": kind.events, "compared": kind.compared, "findings": kind.findings,
        });
        ((*name).to_owned(), value)
    };
    Value::Object(report.kinds.iter().map(line).collect::<Map<_, _>>())
}

fn print(report: &Report) {
    println!("{:<18} {:>10} {:>10} {:>10}", "event", "number", "compared", "findings");
    for (name, kind) in &report.kinds {
        println!("{name:<18} {:>10} {:>10} {:>10}", kind.events, kind.compared, kind.findings);
    }
    for finding in report.findings.iter().take(50) {
        println!("{finding}");
    }
}
