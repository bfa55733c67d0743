//! What becomes of a log that grows: the cost of appending, and the time to open it.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use events::event::Draft;
use events::ids::RunId;
use events::log::Log;
use events::state::RunState;
use store::{Home, Kept, OpenMode};

use crate::processor_seconds;
use crate::replay::peak_megabytes;

const BATCH: u64 = 1000;

/// Appends `events` events in batches and prints the rate around each power of ten.
pub fn flat(folder: &Path, mix: &[Draft], events: u64) -> Result<()> {
    let folder = folder.join("flat");
    let log = Home::open(&folder)?.create_run(RunId::new(1, [0; 10]))?;
    println!("growth     one producer, durable batches of {BATCH}");
    let mut source = mix.iter().cycle().cloned();
    let (mut window, mut done) = (10_000, 0);
    while window <= events {
        // The second half of each window, so that each has something before it.
        let (mut took, mut busy, mut slowest) = (0.0, 0.0, 0.0f64);
        let half = window / 2;
        while done < window {
            let batch: Vec<Draft> = source.by_ref().take(usize::try_from(BATCH)?).collect();
            let (begun, worked) = (Instant::now(), processor_seconds());
            log.append(batch)?;
            let seconds = begun.elapsed().as_secs_f64();
            done += BATCH;
            if done > half {
                took += seconds;
                busy += processor_seconds() - worked;
                slowest = slowest.max(seconds);
            }
        }
        let rate = half as f64 / took;
        let (slowest, busy) = (slowest * 1000.0, busy * 1e9 / half as f64);
        println!(
            "           {rate:>10.0} events/s, {busy:.0} ns of processor time each, up to {window:>9} \
             events; slowest batch {slowest:.0} ms"
        );
        window *= 10;
    }
    Ok(())
}

/// Opens the log that has grown, with a kept state, in a process of its own. The state is that of the
/// long run: how large a state is depends on the config (tasks that are kept) and a little on steps.
pub fn opening(flat: &Path, long: &Path) -> Result<()> {
    let of = |home: &Path, run| Home::existing(home)?.open_run(run, OpenMode::Own);
    let folded = actors::bus::fold(&of(long, RunId::new(1, [3; 10]))?)?;
    let log = of(flat, RunId::new(1, [0; 10]))?;
    log.keep(&RunState { last: log.head().0, ..folded })?;
    drop(log);
    println!("opening    by its owner, in a process of its own, ready for the next append");
    let status = Command::new(std::env::current_exe()?).arg(flat).arg("open").status()?;
    anyhow::ensure!(status.success(), "it could not be opened");
    Ok(())
}

/// Opens and says what it took.
pub fn open(flat: &Path) -> Result<()> {
    let begun = Instant::now();
    let log = Home::existing(flat)?.open_run(RunId::new(1, [0; 10]), OpenMode::Own)?;
    let Kept::State(kept) = log.kept()? else { anyhow::bail!("there is no kept state") };
    let state = actors::bus::fold_on(*kept, &log)?;
    let took = begun.elapsed().as_secs_f64();
    anyhow::ensure!(state.last == log.head().0, "not all of it was folded");
    let size = std::fs::metadata(log.dir().join("state")).context("the kept state")?.len();
    let (events, memory) = (state.last, peak_megabytes()?);
    println!(
        "           {took:>8.2} s, {memory} MB at most: {events} events, a state of {} kB",
        size / 1000
    );
    Ok(())
}
