//! Prints what the log does here: appends per second one by one and in batches, and events per
//! second when all are read back, checked. `cargo run --release -p store --example throughput
//! [FOLDER]`; the folder decides which disk is measured.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "it prints its result")]

use std::ops::ControlFlow;
use std::time::Instant;

use events::event::Draft;
use events::ids::{RunId, Seq};
use events::log::{Log, LogError};
use store::conformance::one_of_each;
use store::{FileLog, Home};

fn drafts(count: usize) -> Vec<Draft> {
    one_of_each().into_iter().cycle().skip(4).take(count).collect()
}

fn append(log: &FileLog, what: &str, batches: usize, size: usize) -> Result<(), LogError> {
    let work: Vec<_> = (0..batches).map(|_| drafts(size)).collect();
    let start = Instant::now();
    for batch in work {
        log.append(batch)?;
    }
    rate(what, batches * size, start);
    Ok(())
}

fn rate(what: &str, events: usize, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what:<28} {:>9.0} events/s  ({events} in {seconds:.2} s)", events as f64 / seconds);
}

fn main() -> Result<(), LogError> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let home = std::path::Path::new(&folder).join(format!("throughput-{}", std::process::id()));
    let log = Home::open(&home)?.create_run(RunId::new(1, [0; 10]))?;
    append(&log, "append, one by one", 500, 1)?;
    append(&log, "append, batches of 32", 300, 32)?;
    append(&log, "append, batches of 1000", 400, 1000)?;
    let total = usize::try_from(log.head().0.0).unwrap_or(0);
    let bytes = store::verify(log.dir(), |_, _| ControlFlow::Break(()))?.bytes;
    println!("{:<28} {:>9.0} bytes an event", "size", bytes as f64 / total as f64);
    let start = Instant::now();
    log.scan(Seq(1), |_, _| ControlFlow::Continue(()))?;
    rate("scan, all checks", total, start);
    let start = Instant::now();
    let mut after = Seq(0);
    while let Some(last) = log.read_after(after, 1000)?.last() {
        after = last.seq;
    }
    rate("read_after by 1000", total, start);
    let start = Instant::now();
    log.index_now()?;
    rate("index from nothing", total, start);
    drop(log);
    let _ = std::fs::remove_dir_all(home);
    Ok(())
}
