//! Copies of a whole home, made while others write to it. A copy is a home itself.

use std::ops::ControlFlow;
use std::path::Path;

use events::ids::RunId;
use events::log::LogError;

use super::References;
use super::snapshot::Snapshot;
use super::stage::{Stage, beside, require_free};
use crate::error::refused;
use crate::home::Home;
use crate::verify::verify;

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Runs with their last records.
    pub runs: Vec<(RunId, u64)>,
    /// Blobs that they name.
    pub blobs: u64,
    /// Bytes of logs and blobs as they are stored.
    pub bytes: u64,
}

/// Where the judge's service keeps a home of its own.
const SERVICE: &str = "service";

/// Copies all runs of `home`, each as it is acknowledged at one moment, with the blobs that they
/// name, to the new folder `to`; the home of the judge's service in it too. Owners go on meanwhile.
/// Everything is checked: chains, hashes.
///
/// On any failure, a full disk included, `to` does not appear; where only its name could not be made
/// durable it is there, whole.
pub fn backup(home: &Home, to: &Path) -> Result<Copied, LogError> {
    require_free(to)?;
    let stage = Stage::create(beside(to)?)?;
    let mut copied = Copied::default();
    copy(home, &stage.home, &mut copied)?;
    let service = home.dir().join(SERVICE);
    if service.join("runs").is_dir() {
        let into = Home::open(stage.dir.join(SERVICE))?;
        copy(&Home::existing(&service)?, &into, &mut copied)?;
    }
    stage.publish(to)?;
    Ok(copied)
}

fn copy(home: &Home, into: &Home, copied: &mut Copied) -> Result<(), LogError> {
    // Held to the end, so that no `gc` comes in between.
    let from = home.blobs_to_read()?;
    let blobs = into.blobs()?;
    let mut needed = References::default();
    let runs = home.runs()?;
    for run in &runs {
        let snapshot = Snapshot::take(home, *run, &mut needed)?;
        copied.bytes += snapshot.write(into.dir())?;
        copied.runs.push((*run, snapshot.head.0.0));
    }
    for blob in needed.blobs() {
        copied.bytes += from.copy_to(blob, &blobs)?;
        copied.blobs += 1;
    }
    for run in runs {
        verify(&into.run_dir(run), |_, _| ControlFlow::Break(()))?;
    }
    Ok(())
}

/// Makes the home `to` from a backup. Refused if `to` holds anything: nothing is overwritten.
pub fn restore(from: &Path, to: &Path) -> Result<Copied, LogError> {
    if !from.join("runs").is_dir() || !from.join("heads").is_dir() {
        return Err(refused("cannot restore from", from, "this is no backup: it holds no runs"));
    }
    backup(&Home::existing(from)?, to)
}
