//! Measures the durable log: `make bench-log`. On the same records sled alone and SQLite (WAL, full
//! sync) are measured in the same run. Everything is on the disk of the folder that is given.

mod growth;
mod made;
mod peers;
mod replay;

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Events of the run that is replayed.
const LONG: u64 = 300_000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = PathBuf::from(arguments.first().context("give a folder for the logs")?);
    match arguments.get(1).map(String::as_str) {
        // Opening is measured in a process of its own, so that its memory is its own.
        Some("open") => return growth::open(&folder),
        Some("replay") => return replay::all(&folder),
        Some(other) => anyhow::bail!("`{other}`: there is no such part"),
        None => {}
    }
    let events = number("KERNELZERO_EVENTS", 10_000_000)?;
    std::fs::create_dir_all(&folder)?;
    machine(&folder)?;
    let mix = made::mix()?;
    peers::all(&folder, &mix)?;
    growth::flat(&folder, &mix, events)?;
    let (flat, long) = (folder.join("flat"), folder.join("long"));
    made::long(&long, events.min(LONG))?;
    replay::all(&long)?;
    growth::opening(&flat, &long)?;
    std::fs::remove_dir_all(&flat)?;
    Ok(std::fs::remove_dir_all(&long)?)
}

fn number(name: &str, default: u64) -> Result<u64> {
    std::env::var(name).map_or(Ok(default), |text| text.parse().with_context(|| name.to_owned()))
}

fn machine(folder: &Path) -> Result<()> {
    let info = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(" unknown");
    let cores = std::thread::available_parallelism()?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    println!("machine    {cores} cores{model}, load {}", load.split(' ').next().unwrap_or("?"));
    println!("disk       {}", folder.display());
    Ok(())
}

/// Time that this thread had a processor: others may use the machine too.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|t| t.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}
