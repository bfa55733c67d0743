//! `kernelzero audit`.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use events::ids::{Digest, Seq};
use serde_json::{Map, Value, json};

use super::{Which, effects};
use crate::audit::{Report, Since, audit as audit_run};
use crate::exit::Exit;
use crate::host::HostConfig;
use crate::shown;

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
    /// Also do so many builds, measurements and gradient steps each again and compare; all, if there
    /// are fewer. Exit code 1 if something differs, 3 if the world failed at something.
    #[arg(long, value_name = "N")]
    effects: Option<usize>,
    /// Which ones: the same seed takes the same ones.
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "effects")]
    effects_seed: u64,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// `kernelzero audit`: 0 if everything agrees, 1 if something does not, 4 if the log is damaged.
pub fn audit(home: &Path, host: &HostConfig, arguments: &Arguments) -> Result<Exit> {
    let since = match (arguments.since, arguments.round) {
        (Some(seq), _) => Since::Seq(Seq(seq)),
        (None, Some(round)) => Since::Round(round),
        (None, None) => Since::Start,
    };
    let start = Instant::now();
    let (run, report) = audit_run(home, arguments.which.run, since, arguments.head)?;
    let seconds = start.elapsed().as_secs_f64();
    let again = arguments
        .effects
        .map(|count| effects::redo(home, host, run, (count, arguments.effects_seed), since));
    let again = again.transpose()?;
    if arguments.json {
        let mut value = json!({
            "run": run, "events": report.events, "head": report.head.1,
            "agrees": agrees(&report), "findings": report.findings, "found": report.found,
            "kinds": kinds(&report), "seconds": seconds, "purity_policy": rules(&report),
        });
        if let Some(again) = &again {
            value["effects"] = effects::value(again);
        }
        println!("{value:#}");
    } else {
        print(&report);
        let verdict = match (report.found, report.rules.undecided()) {
            (0, 0) => "everything agrees".to_owned(),
            (0, other) => format!("nothing disagrees, {other} decisions cannot be made again"),
            (count, _) => format!("{count} findings"),
        };
        let (events, head) = (report.events, report.head.1);
        println!("run {run}: {events} events in {seconds:.1} s, head {head}: {verdict}");
        if let Some(again) = &again {
            effects::print(again);
        }
    }
    Ok(match (report.found, &again) {
        (0, Some(again)) => effects::exit(again),
        (0, None) => Exit::Ok,
        (1.., _) => Exit::No,
    })
}

/// True, false, or null where nothing disagrees but something could not be made again.
fn agrees(report: &Report) -> Option<bool> {
    (report.found > 0 || report.rules.undecided() == 0).then_some(report.found == 0)
}

fn rules(report: &Report) -> Value {
    let other = |(version, (all, other)): (&Option<u32>, &(u64, u64))| json!({ "version": version, "decisions": all, "cannot_be_made_again": other });
    let others: Vec<Value> = report.rules.others.iter().map(other).collect();
    json!({ "this_program": report.rules.purity_policy, "others": others })
}

fn kinds(report: &Report) -> Value {
    let line = |(name, kind): (&&str, &crate::audit::Kind)| {
        let value = json!({
            "events": kind.events, "compared": kind.compared, "findings": kind.findings,
            "other_rules": kind.other_rules,
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
    for (version, (all, other)) in &report.rules.others {
        let known =
            version.map_or("of a version that was not recorded".to_owned(), |v| v.to_string());
        println!(
            "{all} decisions by purity policy {known}, this program has {}: {other} of them come out \
             otherwise now and cannot be made again",
            report.rules.purity_policy
        );
    }
    for finding in report.findings.iter().take(50) {
        println!("{}", shown::line(finding));
    }
}
