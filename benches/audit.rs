//! How fast a long log is audited, in events a second of one core's time: `make bench`, or
//! `cargo bench --bench audit`. `KERNELZERO_EVENTS` says about how many events, `KERNELZERO_TOKENS`
//! how long answers are.
//!
//! The actors themselves make the log, which lies in files, with an engine and a judge of hashes
//! (`audit/world.rs`): the real static rules, which parse each source, are not in the figures. Blobs
//! are in memory; the hash of each is checked whenever it is read.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "audit/world.rs"]
mod world;

use std::ops::ControlFlow;
use std::time::Instant;

use events::event::{Draft, Recorded};
use events::ids::{RunId, Seq};
use events::log::Log;
use events::rules::audit::Auditor;
use events::state::RunState;
use kernelzero::audit::{Since, audit_log};
use store::{FileLog, Home, MemoryLog, OpenMode};
use tempfile::TempDir;
use world::{Loaded, run_of};

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// The same events in files.
fn in_files(log: &MemoryLog, folder: &TempDir) -> FileLog {
    let home = Home::open(folder.path()).unwrap();
    let run = RunId::new(1, [3; 10]);
    let files = home.create_run(run).unwrap();
    let draft = |r: Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    let mut after = Seq(0);
    loop {
        let read = log.read_after(after, 1000).unwrap();
        let Some(last) = read.last() else { break };
        after = last.seq;
        files.append(read.into_iter().map(draft).collect()).unwrap();
    }
    drop(files);
    home.open_run(run, OpenMode::ReadOnly).unwrap()
}

/// Time that this thread had a processor: others may use the machine too.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// The best of three: whoever else uses the machine takes its caches.
fn timed(what: &str, events: u64, act: impl Fn()) {
    let once = || {
        let start = processor_seconds();
        act();
        processor_seconds() - start
    };
    let took = [once(), once(), once()].into_iter().fold(f64::INFINITY, f64::min);
    println!("{what}: {events} events in {took:.2} s, {:.0} events/s", events as f64 / took);
}

/// Bytes of the run's segments.
fn bytes(log: &FileLog) -> u64 {
    let entries = std::fs::read_dir(log.dir().join("log")).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

fn main() {
    let start = Instant::now();
    let tokens = setting("KERNELZERO_TOKENS", 2) as usize;
    let world = run_of(setting("KERNELZERO_EVENTS", 300_000), tokens);
    let folder = TempDir::new().unwrap();
    let log = in_files(&world.log, &folder);
    let events = log.head().0.0;
    println!("made {events} events in {:.1} s", start.elapsed().as_secs_f64());
    println!("{} bytes an event with its frame, answers of {tokens} tokens", bytes(&log) / events);
    timed("chain", events, || log.scan(Seq(1), |_, _| ControlFlow::Continue(())).unwrap());
    timed("chain and legality", events, || {
        let mut state = RunState::default();
        log.scan_owned(Seq(1), |r, _| {
            state.apply_owned(r.seq, r.event).unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
    });
    let evidence = Loaded::new(&world.blobs);
    timed("chain, legality and every decision, on one thread", events, || {
        let (mut state, mut auditor) = (RunState::default(), Auditor::default());
        log.scan_owned(Seq(1), |r, _| {
            auditor.check(&state, r.seq, &r.event, &evidence).unwrap();
            state.apply_owned(r.seq, r.event).unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
    });
    let start = Instant::now();
    let report = audit_log(&log, &evidence, Since::Start).unwrap();
    let took = start.elapsed().as_secs_f64();
    println!(
        "the command's audit, all threads, by the clock: {:.0} events/s",
        events as f64 / took
    );
    assert_eq!((report.found, report.events), (0, events));
    let mut kinds: Vec<(u64, &str)> = report.kinds.iter().map(|(n, k)| (k.events, *n)).collect();
    kinds.sort_by(|a, b| b.cmp(a));
    for (count, name) in kinds {
        println!("{name:<18} {count:>9}  {:.1} %", 100.0 * count as f64 / events as f64);
    }
}
