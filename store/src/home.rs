//! The folder that holds all runs, their blobs and their heads.

use std::fs;
use std::path::{Path, PathBuf};

use events::event::Draft;
use events::ids::{RunId, Seq};
use events::log::LogError;

use crate::blobs::BlobDir;
use crate::disk;
use crate::error::{io, refused};
use crate::file_log::{FileLog, OpenMode};
use crate::fork::{Base, ancestors};
use crate::lineage::record_at;
use crate::making::make;
use crate::segment::sync_dir;

/// `<home>/{runs,blobs,heads}`.
#[derive(Clone, Debug)]
pub struct Home {
    dir: PathBuf,
}

impl Home {
    /// Opens the home in `dir`, making what is missing.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, LogError> {
        let dir = dir.as_ref();
        for part in ["runs", "blobs", "heads"] {
            let part = dir.join(part);
            disk::create_dir_all(&part).map_err(io("cannot create", &part))?;
        }
        sync_dir(dir)?;
        Ok(Self { dir: dir.canonicalize().map_err(io("cannot open", dir))? })
    }

    /// A home that is there already, with nothing made.
    pub fn existing(dir: &Path) -> Result<Self, LogError> {
        Ok(Self { dir: dir.canonicalize().map_err(io("cannot open", dir))? })
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All runs, oldest first.
    pub fn runs(&self) -> Result<Vec<RunId>, LogError> {
        let dir = self.dir.join("runs");
        let mut runs = Vec::new();
        for entry in fs::read_dir(&dir).map_err(io("cannot list", &dir))? {
            let name = entry.map_err(io("cannot list", &dir))?.file_name();
            runs.extend(name.to_str().and_then(|name| name.parse::<RunId>().ok()));
        }
        runs.sort_unstable();
        Ok(runs)
    }

    /// The folder of a run, whether it is there or not.
    pub fn run_dir(&self, run: RunId) -> PathBuf {
        self.dir.join("runs").join(run.to_string())
    }

    /// Makes an empty run and owns it. Refused if it is there.
    pub fn create_run(&self, run: RunId) -> Result<FileLog, LogError> {
        let lock = make(&self.dir, run, None)?;
        FileLog::open_owned(&self.run_dir(run), lock)
    }

    /// Opens a run; see [`FileLog::open`].
    pub fn open_run(&self, run: RunId, mode: OpenMode) -> Result<FileLog, LogError> {
        FileLog::open(&self.run_dir(run), mode)
    }

    /// Makes the run `new`, which shares the records of `parent` up to `at` and goes on with `first`, and
    /// owns it: whole or not at all, whatever happens meanwhile. Nothing of the parent is written; the
    /// shared records are read from its files from then on. Refused without a first record.
    pub fn fork_run(
        &self,
        parent: RunId,
        at: Seq,
        new: RunId,
        first: Vec<Draft>,
    ) -> Result<FileLog, LogError> {
        let dir = self.run_dir(parent);
        if first.is_empty() {
            return Err(refused("cannot fork", &dir, "a branch begins with a record of its own"));
        }
        let log = FileLog::open(&dir, OpenMode::ReadOnly)?;
        let Some((_, head)) = record_at(&log.views()?, at.0)? else {
            return Err(refused("cannot fork", &dir, format!("it has no record {at}")));
        };
        let base = Base { parent, at, head };
        ancestors(&self.dir.join("runs"), &base)?;
        let lock = make(&self.dir, new, Some((&base, first)))?;
        FileLog::open_owned(&self.run_dir(new), lock)
    }

    /// The blobs of all runs.
    pub fn blobs(&self) -> Result<BlobDir, LogError> {
        BlobDir::open(&self.dir.join("blobs"))
    }

    /// The same for looking only: nothing is made or swept.
    pub fn blobs_to_read(&self) -> Result<BlobDir, LogError> {
        BlobDir::read_only(&self.dir.join("blobs"))
    }
}
