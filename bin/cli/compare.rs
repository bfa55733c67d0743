//! `kernelzero compare`: runs beside each other.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use events::ids::RunId;
use serde_json::{Value, json};

use crate::compare::{Comparison, Course, Difference, Figure, compare, drawing};
use crate::exit::Exit;
use crate::runs::{home_to_read, log_to_read, pick};

/// `kernelzero compare`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Two runs or more; each is compared with the first.
    #[arg(required = true, num_args = 2..)]
    runs: Vec<RunId>,
    /// Also print each step.
    #[arg(long)]
    steps: bool,
    /// Also draw the differences into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// `kernelzero compare`.
pub fn run(dir: &Path, arguments: &Arguments) -> Result<Exit> {
    let home = home_to_read(dir)?;
    let read = |run: &RunId| -> Result<Course> {
        Course::read(&log_to_read(&home, pick(&home, Some(*run))?)?)
    };
    let courses = arguments.runs.iter().map(read).collect::<Result<Vec<_>>>()?;
    let first = &courses[0];
    let found: Vec<Comparison> = courses[1..].iter().map(|other| compare(first, other)).collect();
    if let Some(path) = &arguments.svg {
        let names: Vec<String> = arguments.runs.iter().map(ToString::to_string).collect();
        std::fs::write(path, drawing(&names, &found))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let others = arguments.runs[1..].iter().zip(&found);
    if arguments.json {
        let of = |(run, comparison): (&RunId, &Comparison)| {
            let mut value = json!({
                "run": run, "parts-at": comparison.parts_at, "shared-steps": comparison.shared_steps,
                "alone": comparison.alone, "differences": comparison.differences,
            });
            value["steps"] = steps(comparison);
            value
        };
        let value = json!({
            "first": arguments.runs[0], "others": others.map(of).collect::<Vec<_>>(),
            "interval": "Student's t, 95 %, paired by step, steps taken as independent",
        });
        println!("{value:#}");
        return Ok(Exit::Ok);
    }
    for (run, comparison) in others {
        print(&arguments.runs[0], run, comparison, arguments.steps);
    }
    Ok(Exit::Ok)
}

fn steps(comparison: &Comparison) -> Value {
    let of = |(step, a, b): &(_, _, _)| json!({ "step": step, "first": a, "other": b });
    Value::Array(comparison.steps.iter().map(of).collect())
}

fn print(first: &RunId, other: &RunId, comparison: &Comparison, by_step: bool) {
    let (alone, also_alone) = comparison.alone;
    println!("{first} and {other}");
    match comparison.parts_at {
        None => println!("  are one run"),
        Some(at) if at.0 == 1 => println!("  share nothing"),
        Some(at) => {
            println!("  part at {at}: {} steps before are the same", comparison.shared_steps)
        }
    }
    println!(
        "  {} steps of both are compared; {alone} of the first and {also_alone} of the other stand alone",
        comparison.steps.len()
    );
    println!(
        "  {:<20} {:>10} {:>10} {:>10}  {:<24} {:>5}  −   0   +",
        "figure", "first", "other", "difference", "95 % of the mean", "steps"
    );
    for (figure, d) in &comparison.differences {
        let interval = match d.interval {
            Some((low, high)) => format!("{low:+.4} to {high:+.4}"),
            None => "-".to_owned(),
        };
        println!(
            "  {:<20} {:>10.4} {:>10.4} {:>+10.4}  {interval:<24} {:>5}  {}",
            figure.name(),
            d.means.0,
            d.means.1,
            d.mean,
            d.pairs,
            strip(d)
        );
    }
    println!("  interval: Student's t, paired by step, steps taken as independent; * leaves out 0");
    if by_step {
        by_steps(comparison);
    }
}

/// The interval on a line with zero in its middle.
fn strip(d: &Difference) -> String {
    const HALF: i32 = 10;
    let (low, high) = d.interval.unwrap_or((d.mean, d.mean));
    let far = low.abs().max(high.abs()).max(d.mean.abs());
    let place =
        |value: f64| if far > 0.0 { (f64::from(HALF) * value / far).round() as i32 } else { 0 };
    let cell = |at: i32| match at {
        at if at == place(d.mean) => 'o',
        at if (place(low)..=place(high)).contains(&at) => '=',
        0 => '|',
        _ => ' ',
    };
    let line: String = (-HALF..=HALF).map(cell).collect();
    if d.is_clear() { line + " *" } else { line }
}

fn by_steps(comparison: &Comparison) {
    for (step, a, b) in &comparison.steps {
        let both = |figure: Figure| {
            let (a, b) = (a.get(&figure)?, b.get(&figure)?);
            Some(format!("{} {a:.3}→{b:.3}", figure.name()))
        };
        let figures: Vec<String> = Figure::ALL.into_iter().filter_map(both).collect();
        println!("  {:<26} {}", step.to_string(), figures.join(", "));
    }
}
