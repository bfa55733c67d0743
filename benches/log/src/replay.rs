//! Reading a log back on one core, with every check.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result};
use events::ids::{RunId, Seq};
use events::log::Log;
use events::state::RunState;
use store::{Home, OpenMode};

use crate::processor_seconds;

/// Most events that are read: memory holds nothing of them, so more would only take longer.
const MOST: u64 = 2_000_000;

/// The chain alone, and the fold.
pub fn all(folder: &Path) -> Result<()> {
    let home = Home::existing(folder)?;
    let log = home.open_run(RunId::new(1, [3; 10]), OpenMode::ReadOnly)?;
    let events = log.head().0.0.min(MOST);
    println!("replay     the first {events} events, one core, processor time");
    let timed = |what: &str, act: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        act()?; // Into the page cache.
        let begun = processor_seconds();
        act()?;
        let took = processor_seconds() - begun;
        println!("           {:>10.0} events/s  {what}", events as f64 / took);
        Ok(())
    };
    timed("length, CRC, BLAKE3 chain, order, decoded", &mut || {
        Ok(log.scan(Seq(1), |record, _| match record.seq.0 {
            last if last >= events => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })?)
    })?;
    timed("and folded", &mut || {
        let (mut state, mut illegal) = (RunState::default(), None);
        log.scan_owned(Seq(1), |record, _| {
            let seq = record.seq.0;
            illegal = state.apply_owned(record.seq, record.event).err();
            match seq {
                last if last >= events || illegal.is_some() => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        })?;
        illegal.map_or(Ok(()), |illegal| Err(illegal.into()))
    })?;
    Ok(())
}

/// The most memory that this process ever had, in MB.
pub fn peak_megabytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes / 1000)
}
