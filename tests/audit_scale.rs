//! How fast a long log is audited: run with `--run-ignored only --no-capture`. The log is made by the
//! actors themselves, with an engine and a judge of hashes, and lies in files; blobs are in memory,
//! so that what is measured is the log and the decisions.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use actors::Shells;
use actors::shells::{Limits, drive};
use common::{HashEngine, HashEvidence, HashJudge, World, config};
use events::event::{Draft, Recorded};
use events::ids::{RunId, Seq};
use events::log::Log;
use events::rules::audit::Auditor;
use events::state::RunState;
use kernelzero::audit::{Since, audit_log};
use store::{FileLog, Home, OpenMode};
use tempfile::TempDir;

fn wanted() -> u64 {
    let text = std::env::var("KERNELZERO_EVENTS").unwrap_or_default();
    text.parse().unwrap_or(200_000)
}

/// A run with steps of 16 API sets of 8 modules.
fn run_of(rounds: i64) -> World {
    let sets = std::env::var("KERNELZERO_SETS").ok().and_then(|t| t.parse().ok()).unwrap_or(16i64);
    let mut config = config(7);
    config.proposer.policy.batch_prompts = sets.try_into().unwrap();
    config.proposer.policy.group_size = 8.try_into().unwrap();
    config.coder.policy.batch_prompts = sets.try_into().unwrap();
    config.coder.policy.group_size = 8.try_into().unwrap();
    config.rounds = rounds.try_into().unwrap();
    let world = World::new();
    world.start(&config);
    let engine = HashEngine { blobs: world.blobs.clone(), fails_every: 0, calls: 0 };
    let limits = Limits { samples: 4096, judges: 64 };
    let mut shells = Shells::new(Box::new(engine), Arc::new(HashJudge), limits);
    drive(&mut shells, &world.bus()).unwrap();
    world
}

/// A run of at least about so many events.
fn long_run(events: u64) -> World {
    let round = run_of(2).log.head().0.0 / 2;
    run_of(i64::try_from(events / round + 1).unwrap())
}

/// The same events in files.
fn in_files(world: &World, folder: &TempDir) -> FileLog {
    let home = Home::open(folder.path()).unwrap();
    let run = RunId::new(1, [3; 10]);
    let log = home.create_run(run).unwrap();
    let draft = |r: Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    let mut after = Seq(0);
    loop {
        let read = world.log.read_after(after, 1000).unwrap();
        let Some(last) = read.last() else { break };
        after = last.seq;
        log.append(read.into_iter().map(draft).collect()).unwrap();
    }
    drop(log);
    home.open_run(run, OpenMode::ReadOnly).unwrap()
}

/// Time that this thread had a processor: others may use the machine too.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

fn timed(what: &str, events: u64, act: impl FnOnce()) {
    let start = processor_seconds();
    act();
    let took = processor_seconds() - start;
    println!("{what}: {events} events in {took:.2} s, {:.0} events/s", events as f64 / took);
}

#[test]
#[ignore = "a measurement"]
fn events_a_second() {
    let start = Instant::now();
    let world = long_run(wanted());
    let folder = TempDir::new().unwrap();
    let log = in_files(&world, &folder);
    let events = log.head().0.0;
    println!("made {events} events in {:.1} s", start.elapsed().as_secs_f64());
    timed("chain", events, || log.scan(Seq(1), |_, _| ControlFlow::Continue(())).unwrap());
    let (mut bytes, mut names) = (0, BTreeSet::new());
    for entry in std::fs::read_dir(log.dir().join("log")).unwrap() {
        bytes += entry.unwrap().metadata().unwrap().len();
    }
    timed("chain and legality", events, || {
        let mut state = RunState::default();
        log.scan(Seq(1), |r, _| {
            state.apply(r.seq, &r.event).unwrap();
            names.insert(r.event.name());
            ControlFlow::Continue(())
        })
        .unwrap();
    });
    println!("{} bytes an event with its frame, {} kinds", bytes / events, names.len());
    timed("and every decision, on one thread", events, || {
        let (mut state, mut auditor) = (RunState::default(), Auditor::default());
        let evidence = HashEvidence(&world.blobs);
        log.scan(Seq(1), |r, _| {
            auditor.check(&state, r.seq, &r.event, &evidence).unwrap();
            state.apply(r.seq, &r.event).unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
    });
    let start = Instant::now();
    let evidence = HashEvidence(&world.blobs);
    let report = audit_log(&log, &evidence, Since::Start).unwrap();
    let took = start.elapsed().as_secs_f64();
    println!("audit, two threads: {:.0} events/s by the clock", events as f64 / took);
    assert_eq!((report.found, report.events), (0, events));
    for (name, kind) in &report.kinds {
        println!("{name:<18} {}", kind.events);
    }
}
