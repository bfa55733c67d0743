//! `kernelzero audit --effects`: what was done again, for people and as JSON.
#![allow(clippy::print_stdout)]

use std::path::Path;

use actors::ports::Engine;
use anyhow::Result;
use events::ids::RunId;
use serde_json::{Value, json};
use store::BlobDir;

use super::judging::standalone;
use crate::audit::Since;
use crate::effects::{Count, Effects, Kind, Outcome, Sampling, World, effects};
use crate::engine::ChildEngine;
use crate::exit::Exit;
use crate::host::HostConfig;
use crate::runs::{home_to_read, log_to_read};
use crate::shown;

/// Does a sample of a run's effects again, with this machine's judge and engine. The run is only read.
pub fn redo(
    dir: &Path,
    host: &HostConfig,
    run: RunId,
    (count, seed): (usize, u64),
    since: Since,
) -> Result<Effects> {
    let home = home_to_read(dir)?;
    let log = log_to_read(&home, run)?;
    let blobs = home.blobs_to_read()?;
    let judge = standalone(host)?;
    let scratch = keck::Scratch::new(&std::env::temp_dir())?;
    let folder = scratch.path().join("steps");
    let into = BlobDir::open(&folder.join("blobs"))?;
    let mut world = World {
        blobs: &blobs,
        judge: &judge,
        device: judge.device().to_owned(),
        engine: Box::new(|| {
            let engine = ChildEngine::new(host, blobs.clone(), &folder)?.storing_in(into.clone());
            Ok(Box::new(engine) as Box<dyn Engine>)
        }),
    };
    effects(&log, Sampling { count, seed, since }, &mut world)
}

/// 1 if something differs, 3 if nothing does but the world failed at something.
pub fn exit(effects: &Effects) -> Exit {
    match effects.total() {
        Count { differ: 1.., .. } => Exit::No,
        Count { failed: 1.., .. } => Exit::World,
        _ => Exit::Ok,
    }
}

/// One JSON object.
pub fn value(found: &Effects) -> Value {
    let total = found.total();
    let unknown = total.not_redoable + total.failed > 0 || total.sampled == 0;
    let agrees = (total.differ > 0 || !unknown).then_some(total.differ == 0);
    let mut value = json!(found);
    value["agrees"] = json!(agrees);
    value
}

/// A table by kind, then what is not an agreement.
pub fn print(found: &Effects) {
    println!(
        "{:<12} {:>8} {:>8} {:>8} {:>8} {:>14} {:>8}",
        "effect", "number", "sampled", "agree", "differ", "not redoable", "failed"
    );
    for (kind, count) in &found.counts {
        println!(
            "{:<12} {:>8} {:>8} {:>8} {:>8} {:>14} {:>8}",
            name(*kind),
            count.all,
            count.sampled,
            count.agree,
            count.differ,
            count.not_redoable,
            count.failed
        );
    }
    for one in &found.redone {
        let (word, why) = match &one.outcome {
            Outcome::Agrees => continue,
            Outcome::Differs(why) => ("differs", why),
            Outcome::NotRedoable(why) => ("cannot be done again", why),
            Outcome::Failed(why) => ("the world failed", why),
        };
        println!("{} {}: {word}: {}", one.seq, name(one.kind), shown::line(why));
    }
    measurements(found);
    for one in &found.redone {
        if let Some(weights) = &one.weights {
            println!("{} step: weights {weights}", one.seq);
        }
    }
}

fn measurements(found: &Effects) {
    let flipped: Vec<_> = found.flips.iter().filter(|(_, (flips, _))| *flips > 0).collect();
    let made: u64 = found.flips.values().map(|(_, made)| made).sum();
    let same = found.redone.iter().filter(|one| one.same_values).count();
    println!(
        "verdicts flipped in {} of {} tasks; values the same to the bit in {same} of {made} measurements",
        flipped.len(),
        found.flips.len()
    );
    for (task, (flips, made)) in flipped {
        println!("  {task}: {flips} of {made} verdicts flipped");
    }
    let ratios = |of: fn(&crate::effects::Ratios) -> f64| {
        let mut all: Vec<f64> =
            found.redone.iter().filter_map(|one| one.ratios.as_ref().map(of)).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    for (who, all) in
        [("kernels", ratios(|r| r.candidate)), ("references", ratios(|r| r.reference))]
    {
        if let (Some(low), Some(high)) = (all.first(), all.last()) {
            let middle = all[all.len() / 2];
            println!(
                "times of {} {who} now over recorded: median {middle:.3}, from {low:.3} to {high:.3}",
                all.len()
            );
        }
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Build => "build",
        Kind::Measurement => "measurement",
        Kind::Step => "step",
    }
}
