//! Tests of the store from outside, on real files.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod archives;
mod backups;
mod blobs;
mod codec;
mod conforms;
mod damage;
mod disk_full;
mod forks;
mod gc;
mod golden;
mod index;
mod kept;
mod killed;
mod newer;
mod owner;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use events::event::{Actor, Event};
use events::event::{Draft, Recorded};
use events::ids::{BlobId, PolicyVersion, Role};
use events::ids::{RunId, Seq};
use events::log::Blobs;
use events::log::{Log, LogError};
use store::conformance::{draft, one_of_each};
use store::{FileLog, Home, OpenMode, Options};
use tempfile::TempDir;

/// A home with one run.
struct Place {
    _folder: TempDir,
    home: Home,
    run: RunId,
}

impl Place {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let home = Home::open(folder.path()).unwrap();
        let run = run(1);
        drop(home.create_run(run).unwrap());
        Self { _folder: folder, home, run }
    }

    /// Batches of 1, 2, 3, 8 (of different events) and 1: over several segments if `segment_bytes` is small.
    fn filled(segment_bytes: u64) -> Self {
        let place = Self::new();
        let log = place.open_with(segment_bytes);
        for size in 1..=3 {
            log.append((0..size).map(draft).collect()).unwrap();
        }
        log.append(one_of_each().split_off(2).into_iter().take(8).collect()).unwrap();
        log.append(vec![draft(9)]).unwrap();
        drop(log);
        place
    }

    fn dir(&self) -> PathBuf {
        self.home.run_dir(self.run)
    }

    fn head(&self) -> PathBuf {
        self.home.dir().join("heads").join(self.run.to_string())
    }

    fn own(&self) -> Result<FileLog, LogError> {
        FileLog::open(&self.dir(), OpenMode::Own)
    }

    fn read(&self) -> Result<FileLog, LogError> {
        FileLog::open(&self.dir(), OpenMode::ReadOnly)
    }

    fn open_with(&self, segment_bytes: u64) -> FileLog {
        FileLog::open_with(&self.dir(), OpenMode::Own, Options { segment_bytes }).unwrap()
    }

    fn segments(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir().join("log")).unwrap();
        let mut paths: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
        paths.sort();
        paths
    }

    fn verify(&self) -> Result<store::Report, LogError> {
        store::verify(&self.dir(), |_, _| ControlFlow::Continue(()))
    }
}

/// A family: run 1 with a blob of its own and many small segments, run 2 that branched from it in the
/// middle and names another, run 3 beside them. Returns the home's folder and the blobs by run.
fn family() -> (Place, Vec<BlobId>) {
    let place = Place::new();
    let blobs = place.home.blobs().unwrap();
    let ids: Vec<BlobId> = (1..=3u8)
        .map(|number| blobs.put(format!("blob of run {number}").repeat(50).as_bytes()).unwrap())
        .collect();
    let log = place.open_with(600);
    log.append(vec![naming(ids[0]), draft(1), draft(2)]).unwrap();
    for _ in 0..9 {
        log.append(drafts(0..4)).unwrap();
    }
    drop(log);
    let first = vec![naming(ids[1]), draft(3)];
    drop(place.home.fork_run(run(1), Seq(17), run(2), first).unwrap());
    let other = place.home.create_run(run(3)).unwrap();
    other.append(vec![naming(ids[2]), naming(ids[0])]).unwrap();
    (place, ids)
}

/// An event that names `blob`.
fn naming(blob: BlobId) -> Draft {
    let policy = PolicyVersion { role: Role::Coder, steps: 1 };
    let event = Event::CheckpointSaved { policy, files: vec![("model".into(), blob)] };
    Draft { cause: None, actor: Actor::Trainer, event }
}

/// Every file below `dir` with its content.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push((path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

fn run(number: u64) -> RunId {
    RunId::new(number, [3; 10])
}

fn all(log: &impl Log) -> Vec<Recorded> {
    log.read_after(Seq(0), usize::MAX).unwrap()
}

fn drafts(numbers: std::ops::Range<u32>) -> Vec<Draft> {
    numbers.map(draft).collect()
}

/// Inverts one byte.
fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0xff;
    fs::write(path, bytes).unwrap();
}
