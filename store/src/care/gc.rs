//! Removing blobs that no event of any run names.

use std::fs;
use std::path::Path;
use std::time::Duration;

use events::ids::{BlobId, Digest};
use events::log::LogError;

use super::References;
use super::stage::sweep;
use crate::blob_lock::BlobLock;
use crate::disk;
use crate::error::io;
use crate::home::Home;
use crate::lock::owner;
use crate::segment::sync_dir;

/// What a collection found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Blobs that some run names, and their bytes as stored.
    pub kept: (u64, u64),
    /// Blobs that no run names but that are too new to go, and their bytes.
    pub young: (u64, u64),
    /// Blobs that were removed (in a dry run: that would be), and their bytes.
    pub removed: (u64, u64),
    /// Their names, sorted.
    pub names: Vec<BlobId>,
    /// Blobs that more than one run names.
    pub shared: u64,
}

/// Removes the blobs of `home` that no event of any run names and that are older than `age`.
///
/// A blob is stored before the event that names it, so nobody else may have the blobs open: refused
/// as `Owned` or `InUse` otherwise. Who opens them meanwhile waits. Refused too if a log is damaged. Killed in
/// the middle, some blobs are gone and some are not; both are fine. A dry run takes no lock. What killed
/// imports have left goes too.
pub fn gc(home: &Home, age: Duration, dry_run: bool) -> Result<Collected, LogError> {
    let dir = home.dir().join("blobs");
    let mut owners = Vec::new();
    for run in home.runs()? {
        let dir = home.run_dir(run);
        owners.extend(owner(&dir).map(|pid| (dir, pid)));
    }
    // An owner has the blobs open too; named here since a lock does not tell who has it.
    if let (Some((dir, pid)), false) = (owners.first(), dry_run) {
        return Err(LogError::Owned { path: dir.display().to_string(), owner: pid.to_string() });
    }
    let lock = if dry_run { None } else { Some(BlobLock::alone(&dir)?) };
    if let Some(None) = lock {
        let by = "a command that reads or writes blobs, such as a backup";
        return Err(LogError::InUse { path: dir.display().to_string(), by });
    }
    if !dry_run {
        sweep(home.dir())?;
    }
    let named = References::of_home(home)?;
    let mut collected = Collected::default();
    for shard in shards(&dir)? {
        let removed = collected.names.len();
        collect(&shard, &named, age, dry_run, &mut collected)?;
        if collected.names.len() > removed && !dry_run {
            sync_dir(&shard)?;
        }
    }
    collected.names.sort_unstable();
    collected.shared = named.blobs().filter(|blob| named.count(*blob) > 1).count() as u64;
    Ok(collected)
}

fn shards(dir: &Path) -> Result<Vec<std::path::PathBuf>, LogError> {
    let mut shards = Vec::new();
    for entry in fs::read_dir(dir).map_err(io("cannot list", dir))? {
        let entry = entry.map_err(io("cannot list", dir))?;
        let hex = entry.file_name().to_str().is_some_and(|n| n.len() == 2 && n != "..");
        if hex && entry.path().is_dir() {
            shards.push(entry.path());
        }
    }
    shards.sort();
    Ok(shards)
}

fn collect(
    shard: &Path,
    named: &References,
    age: Duration,
    dry_run: bool,
    collected: &mut Collected,
) -> Result<(), LogError> {
    for entry in fs::read_dir(shard).map_err(io("cannot list", shard))? {
        let path = entry.map_err(io("cannot list", shard))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // What is no blob is not this program's to remove.
        let Ok(id) = name.parse::<Digest>() else { continue };
        let about = path.metadata().map_err(io("cannot read", &path))?;
        let written = about.modified().map_err(io("cannot read", &path))?;
        let old = disk::now().duration_since(written).is_ok_and(|since| since >= age);
        let count = |(blobs, bytes): &mut (u64, u64)| {
            *blobs += 1;
            *bytes += about.len();
        };
        if named.count(id) > 0 {
            count(&mut collected.kept);
        } else if !old {
            count(&mut collected.young);
        } else {
            if !dry_run {
                disk::remove_file(&path).map_err(io("cannot remove", &path))?;
            }
            count(&mut collected.removed);
            collected.names.push(id);
        }
    }
    Ok(())
}
