//! The judge's private folder, named by its owner so that a dead owner's remains can be swept.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A folder `keck-PID-START-N`, removed on drop.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a folder below `parent`, after removing those of processes that are gone.
    pub fn new(parent: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Scratch { path: parent.to_owned(), source };
        fs::create_dir_all(parent).map_err(failed)?;
        sweep(parent);
        let pid = std::process::id();
        let start = start_time(pid).unwrap_or(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("keck-{pid}-{start}-{number}"));
        fs::create_dir(&path).map_err(failed)?;
        Ok(Self { path })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now is swept by the next judge.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of owners that no longer run.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some((pid, start)) = owner(&name.to_string_lossy()) else { continue };
        if start_time(pid) != Some(start) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The process id and start time in a folder's name.
fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix("keck-")?.split('-');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// When a process started, in clock ticks since boot: tells it from a later one of the same id.
fn start_time(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name is in brackets and may hold spaces; fields count from its end.
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_only_the_dead() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join("keck-4194999-17-0");
        let other = parent.path().join("notes");
        fs::create_dir(&dead).unwrap();
        fs::create_dir(&other).unwrap();
        let first = Scratch::new(parent.path()).unwrap();
        let second = Scratch::new(parent.path()).unwrap();
        assert!(!dead.exists() && other.exists());
        assert!(first.path().exists() && second.path().exists());
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
    }
}
