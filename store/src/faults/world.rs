//! A home under faults, and what must be true of it.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use events::event::{Actor, Draft, Event, Recorded};
use events::ids::{BlobId, RunId, Seq};
use events::log::{Blobs, Log, LogError};
use tempfile::TempDir;

use super::Chance;
use crate::{FileLog, Home, OpenMode, Options, verify};

/// A folder on a disk in memory, where there is one: its syncs cost nothing, and what a loss of power
/// takes is the journal's to say.
pub(super) fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let at = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    TempDir::new_in(at).unwrap()
}

/// An event that is told apart by its number.
pub(super) fn draft(number: u32, bytes: usize) -> Draft {
    let event =
        Event::WorkFailed { work: number.to_string(), attempt: number, error: "x".repeat(bytes) };
    Draft { cause: None, actor: Actor::Trainer, event }
}

fn number(record: &Recorded) -> u32 {
    match record.event {
        Event::WorkFailed { attempt, .. } => attempt,
        ref other => panic!("{} was never appended", other.name()),
    }
}

pub(super) fn run(number: u64) -> RunId {
    RunId::new(number, [3; 10])
}

/// The numbers in a log, in order.
pub(super) fn numbers(log: &FileLog) -> Result<Vec<u32>, LogError> {
    let mut found = Vec::new();
    log.scan(Seq(1), |record, _| {
        found.push(number(record));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// What was said of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    /// Acknowledged, in order.
    pub kept: Vec<u32>,
    /// A batch whose end nobody knows: its writer died, or was told that only opening the log again
    /// can tell. It is in the log as a whole or not at all.
    pub doubt: Vec<u32>,
}

/// A home and what was said of it.
pub(super) struct World {
    pub folder: TempDir,
    pub runs: BTreeMap<RunId, Said>,
    /// What branches hold whose makers may have died before they were made.
    pub branches: BTreeMap<RunId, Vec<u32>>,
    pub blobs: Vec<(BlobId, Vec<u8>)>,
    pub next: u32,
    pub seed: u64,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let (runs, branches, blobs) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { folder: folder(), runs, branches, blobs, next: 1, seed }
    }

    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// An error that faults may cause; damage they never may.
    #[track_caller]
    pub fn excuse(&self, error: &LogError, met: bool) {
        let fair = matches!(error, LogError::Io { .. } | LogError::DiskFull { .. });
        assert!(fair && met, "seed {}: {error}", self.seed);
    }

    /// Compares a run with what was said of it, and takes over what was in doubt.
    #[track_caller]
    pub fn compare(&mut self, run: RunId, found: &[u32]) {
        let seed = self.seed;
        let said = said(&mut self.runs, &self.branches, run);
        let doubt = std::mem::take(&mut said.doubt);
        if found != said.kept {
            said.kept.extend(doubt);
            assert_eq!(found, said.kept, "seed {seed}: {run} is not what was acknowledged");
        }
    }

    /// Whether this may be a copy of a run: a beginning of what was acknowledged, or all with what is in
    /// doubt.
    #[track_caller]
    pub fn may_hold(&self, run: RunId, found: &[u32]) {
        let said = said(&mut self.runs.clone(), &self.branches, run).clone();
        let all = [said.kept.clone(), said.doubt].concat();
        assert!(said.kept.starts_with(found) || found == all, "seed {}: {found:?}", self.seed);
    }

    /// Everything that was acknowledged is there, once, whole and sound; nothing else is.
    pub fn check(&mut self) {
        let Ok(home) = Home::open(self.dir()) else { panic!("seed {}: no home", self.seed) };
        let there = home.runs().unwrap();
        for run in self.runs.keys() {
            assert!(there.contains(run), "seed {}: {run} is gone", self.seed);
        }
        for run in there {
            let report = verify(&home.run_dir(run), |_, _| ControlFlow::Continue(()));
            let report = report.unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
            let log = home.open_run(run, OpenMode::ReadOnly).unwrap();
            let found = numbers(&log).unwrap();
            assert_eq!(report.events, found.len() as u64);
            self.compare(run, &found);
        }
        let blobs = home.blobs().unwrap();
        for (id, content) in &self.blobs {
            let read = blobs.get(*id).unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
            assert_eq!(read, *content);
        }
    }

    /// A batch of new numbers.
    pub fn batch(&mut self, chance: &mut Chance) -> (Vec<Draft>, Vec<u32>) {
        let count = 1 + chance.below(4) as u32;
        let batch: Vec<u32> = (self.next..self.next + count).collect();
        self.next += count;
        (batch.iter().map(|n| draft(*n, chance.of(&[0, 3, 60, 700]))).collect(), batch)
    }

    /// Appends a batch of new numbers; false if this process cannot go on.
    pub fn append(&mut self, log: &FileLog, run: RunId, chance: &mut Chance) -> bool {
        let (drafts, batch) = self.batch(chance);
        let before = log.head();
        let said = self.runs.entry(run).or_default();
        match log.append(drafts) {
            Ok(records) => {
                assert_eq!(records.iter().map(number).collect::<Vec<_>>(), batch);
                said.kept.extend(batch);
                true
            }
            Err(error) => {
                let struck = super::struck();
                let over = struck.dead || log.must_be_opened_again();
                said.doubt = if over { batch } else { Vec::new() };
                self.excuse(&error, struck.met);
                assert_eq!(log.head(), before, "seed {}: nobody may see it", self.seed);
                !over
            }
        }
    }

    /// Who looks meanwhile sees a beginning of what was acknowledged.
    pub fn look(&self, run: RunId) {
        let dir = self.dir().join("runs").join(run.to_string());
        match FileLog::open(&dir, OpenMode::ReadOnly).and_then(|log| numbers(&log)) {
            Ok(seen) => assert!(
                self.runs[&run].kept.starts_with(&seen),
                "seed {}: {seen:?} was seen",
                self.seed
            ),
            Err(error) => self.excuse(&error, false),
        }
        let second = FileLog::open(&dir, OpenMode::Own);
        assert!(matches!(second, Err(LogError::Owned { .. })), "seed {}: two owners", self.seed);
    }

    /// The run opened by its owner, with what is there compared.
    pub fn own(
        &mut self,
        home: &Home,
        run: RunId,
        segment_bytes: u64,
    ) -> Result<FileLog, LogError> {
        let options = Options { segment_bytes };
        let log = FileLog::open_with(&home.run_dir(run), OpenMode::Own, options)?;
        let found = numbers(&log)?;
        self.compare(run, &found);
        Ok(log)
    }
}

/// What was said of a run, or what it holds if it is a branch whose maker died.
fn said<'a>(
    runs: &'a mut BTreeMap<RunId, Said>,
    branches: &BTreeMap<RunId, Vec<u32>>,
    run: RunId,
) -> &'a mut Said {
    let made = || branches.get(&run).cloned().unwrap_or_default();
    runs.entry(run).or_insert_with(|| Said { kept: made(), doubt: vec![] })
}

/// All files below `dir`, sorted.
pub(super) fn files(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}
