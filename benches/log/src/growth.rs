//! What becomes of a log that grows: the cost of appending, and the time to open it.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use events::event::Draft;
use events::ids::RunId;
use events::log::Log;
use store::{Home, Kept, OpenMode};

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
        let (mut took, mut slowest) = (0.0, 0.0f64);
        let half = window / 2;
        while done < window {
            let batch: Vec<Draft> = source.by_ref().take(usize::try_from(BATCH)?).collect();
            let begun = Instant::now();
            log.append(batch)?;
            let seconds = begun.elapsed().as_secs_f64();
            done += BATCH;
            if done > half {
                took += seconds;
                slowest = slowest.max(seconds);
            }
        }
        let rate = half as f64 / took;
        let slowest = slowest * 1000.0;
        println!("           {rate:>10.0} events/s  up to {window:>9} events, slowest batch {slowest:.0} ms");
        window *= 10;
    }
    drop(log);
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Opens the long log in a process of its own, with and without the state that is kept.
pub fn opening(long: &Path) -> Result<()> {
    println!("opening    by its owner, in a process of its own, ready for the next append");
    for part in ["open", "open-without"] {
        let status = Command::new(std::env::current_exe()?).arg(long).arg(part).status()?;
        anyhow::ensure!(status.success(), "{part} failed");
    }
    Ok(())
}

/// Opens, folds, and says what it took.
pub fn open(long: &Path, with: bool) -> Result<()> {
    let begun = Instant::now();
    let log = Home::existing(long)?.open_run(RunId::new(1, [3; 10]), OpenMode::Own)?;
    let state = match log.kept()? {
        Kept::State(kept) if with => actors::bus::fold_on(*kept, &log)?,
        _ if with => anyhow::bail!("there is no kept state"),
        _ => actors::bus::fold(&log)?,
    };
    let took = begun.elapsed().as_secs_f64();
    anyhow::ensure!(state.last == log.head().0, "not all of it was folded");
    let size = std::fs::metadata(log.dir().join("state")).context("the kept state")?.len();
    let events = state.last;
    let how = if with { format!("a kept state of {} MB", size / 1_000_000) } else { "none".into() };
    let memory = peak_megabytes()?;
    println!("           {took:>8.2} s, {memory} MB at most: {events} events, {how}");
    Ok(())
}
