//! `kernelzero rescore`: a run's scores by other rules, as a table of what changes.
#![allow(clippy::print_stdout)]

use std::path::Path;

use anyhow::Result;
use clap::Args;
use events::ids::{Role, StepRef};
use events::rules::rescore::{Flips, Row};
use serde_json::{Value, json};

use super::Which;
use crate::exit::Exit;
use crate::rescore::Record;

/// `kernelzero rescore`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// A rule to change, such as `judge.profile=paper`, `coder.beta=0.2`, `judge.tolerance=1e-3` or
    /// `judge.purity=current`; may be given more than once. Without it the run's own rules are applied again.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Also print steps in which nothing changes.
    #[arg(long)]
    all: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// `kernelzero rescore`.
pub fn rescore(home: &Path, arguments: &Arguments) -> Result<Exit> {
    let record = Record::open(home, arguments.which.run)?;
    let rows = record.rescore(record.rules(&arguments.set)?)?;
    let changed = rows.iter().filter(|row| row.changes()).count();
    if arguments.json {
        let value = json!({
            "run": record.run, "set": arguments.set, "changed-steps": changed,
            "proposer": total(&rows, Role::Proposer).map(|row| figures(&row)),
            "coder": total(&rows, Role::Coder).map(|row| figures(&row)),
            "steps": rows.iter().map(step).collect::<Vec<_>>(),
        });
        println!("{value:#}");
        return Ok(Exit::Ok);
    }
    if changed == 0 && !arguments.all {
        let count = rows.len();
        println!("run {}: nothing changes in {count} steps by {}", record.run, said(arguments));
        return Ok(Exit::Ok);
    }
    println!("run {}: {changed} of {} steps change by {}", record.run, rows.len(), said(arguments));
    println!(
        "{:<26} {:<22} {:<22} {:<16} {:<10} {:<12} batch",
        "step", "valid modules", "right kernels", "mean reward", "advantages", "signal"
    );
    for row in rows.iter().filter(|row| arguments.all || row.changes()) {
        println!("{}", line(&row.step.to_string(), row));
    }
    for role in [Role::Proposer, Role::Coder] {
        if let Some(row) = total(&rows, role) {
            println!("{}", line(&format!("all {role} steps"), &row));
        }
    }
    println!(
        "before→after (+ now right, − no longer, ~ otherwise, ? never measured); samples as they were drawn"
    );
    Ok(Exit::Ok)
}

fn said(arguments: &Arguments) -> String {
    if arguments.set.is_empty() { "its own rules".to_owned() } else { arguments.set.join(" ") }
}

/// Sums over the steps of one policy; batches are lists of groups and are counted only.
fn total(rows: &[Row], role: Role) -> Option<Row> {
    let mut of_role = rows.iter().filter(|row| row.step.role == role);
    let mut sum = of_role.next()?.clone();
    for row in of_role {
        sum.add(row);
        sum.batch.before += row.batch.before;
        sum.batch.entered.extend(&row.batch.entered);
        sum.batch.left.extend(&row.batch.left);
        sum.batch.unknown += row.batch.unknown;
        sum.batch.not_drawn += row.batch.not_drawn;
        sum.batch.selection_unknown |= row.batch.selection_unknown;
    }
    Some(sum)
}

fn flips(flips: &Flips) -> String {
    if flips.all == 0 {
        return "-".to_owned();
    }
    let mut text = format!("{}→{} of {}", flips.before, flips.after, flips.all);
    let counts =
        [('+', flips.gained), ('−', flips.lost), ('~', flips.otherwise), ('?', flips.unknown)];
    for (sign, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!(" {sign}{count}"));
    }
    text
}

fn line(name: &str, row: &Row) -> String {
    let mean = |mean: Option<f64>| mean.map_or("-".to_owned(), |mean| format!("{mean:.3}"));
    let (before, after) = row.rewards.means();
    let reward = match row.rewards.unknown {
        0 => format!("{}→{}", mean(before), mean(after)),
        unknown => format!("{}→ ?{unknown}", mean(before)),
    };
    let advantages = match (row.rewards.advantages_changed, row.rewards.advantages_unknown) {
        (0, 0) => "-".to_owned(),
        (changed, 0) => format!("~{changed}"),
        (0, unknown) => format!("?{unknown}"),
        (changed, unknown) => format!("~{changed} ?{unknown}"),
    };
    let signal = &row.signal;
    let mut with_signal = format!("{}→{} of {}", signal.before, signal.after, signal.all);
    if signal.unknown > 0 {
        with_signal.push_str(&format!(" ?{}", signal.unknown));
    }
    let batch = &row.batch;
    let mut members = format!("{} +{} −{}", batch.before, batch.entered.len(), batch.left.len());
    if batch.unknown + batch.not_drawn > 0 {
        members.push_str(&format!(" ?{}", batch.unknown + batch.not_drawn));
    }
    if batch.selection_unknown {
        members.push_str(" (which modules: unknown)");
    }
    let (modules, kernels) = (flips(&row.modules), flips(&row.kernels));
    format!(
        "{name:<26} {modules:<22} {kernels:<22} {reward:<16} {advantages:<10} {with_signal:<12} {members}"
    )
}

fn figures(row: &Row) -> Value {
    let (before, after) = row.rewards.means();
    json!({
        "modules": row.modules, "kernels": row.kernels, "rewards": row.rewards,
        "mean-reward": { "before": before, "after": after },
        "signal": row.signal, "batch": row.batch, "changes": row.changes(),
    })
}

fn step(row: &Row) -> Value {
    let StepRef { round, role, step } = row.step;
    let mut value = figures(row);
    value["step"] = json!({ "round": round, "role": role, "step": step });
    value
}
