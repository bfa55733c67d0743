//! The folder that holds all runs, their blobs and their heads.

use std::fs;
use std::path::{Path, PathBuf};

use events::ids::{RunId, Seq};
use events::log::LogError;

use crate::blobs::BlobDir;
use crate::disk;
use crate::error::{io, refused};
use crate::file_log::{FileLog, OpenMode};
use crate::fork::{Base, ancestors};
use crate::frame::HEADER;
use crate::lineage::record_at;
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
        self.create(run, None)?;
        self.open_run(run, OpenMode::Own)
    }

    /// Opens a run; see [`FileLog::open`].
    pub fn open_run(&self, run: RunId, mode: OpenMode) -> Result<FileLog, LogError> {
        FileLog::open(&self.run_dir(run), mode)
    }

    /// Makes the run `new`, which shares the records of `parent` up to `at`, and owns it. Nothing
    /// of the parent is written; the shared records are read from its files from then on.
    pub fn fork_run(&self, parent: RunId, at: Seq, new: RunId) -> Result<FileLog, LogError> {
        let dir = self.run_dir(parent);
        let log = FileLog::open(&dir, OpenMode::ReadOnly)?;
        let Some((_, head)) = record_at(&log.views()?, at.0)? else {
            return Err(refused("cannot fork", &dir, format!("it has no record {at}")));
        };
        let base = Base { parent, at, head };
        ancestors(&self.dir.join("runs"), &base)?;
        self.create(new, Some(&base))?;
        self.open_run(new, OpenMode::Own)
    }

    /// Removes a run that was made a moment ago and in which nothing was recorded.
    pub fn discard(&self, run: RunId) -> Result<(), LogError> {
        let dir = self.run_dir(run);
        if begun(&dir.join("log"))? {
            return Err(refused("cannot discard", &dir, "it has records"));
        }
        disk::remove_dir_all(&dir).map_err(io("cannot remove", &dir))?;
        sync_dir(&self.dir.join("runs"))
    }

    /// The blobs of all runs.
    pub fn blobs(&self) -> Result<BlobDir, LogError> {
        BlobDir::open(&self.dir.join("blobs"))
    }

    /// The same for looking only: nothing is made or swept.
    pub fn blobs_to_read(&self) -> Result<BlobDir, LogError> {
        BlobDir::read_only(&self.dir.join("blobs"))
    }

    /// A run appears with everything it needs or not at all.
    fn create(&self, run: RunId, base: Option<&Base>) -> Result<(), LogError> {
        let dir = self.run_dir(run);
        let already = || refused("cannot create", &dir, "there is a run with this id");
        let head = self.dir.join("heads").join(run.to_string());
        if dir.exists() || head.exists() {
            return Err(already());
        }
        let temporary = self.dir.join("runs").join(format!("new-{run}"));
        if temporary.exists() {
            disk::remove_dir_all(&temporary).map_err(io("cannot remove", &temporary))?;
        }
        let log = temporary.join("log");
        disk::create_dir_all(&log).map_err(io("cannot create", &log))?;
        if let Some(base) = base {
            base.write(&temporary)?;
        }
        sync_dir(&temporary)?;
        disk::rename(&temporary, &dir).map_err(|e| match e.kind() {
            std::io::ErrorKind::DirectoryNotEmpty => already(),
            _ => io("cannot create", &dir)(e),
        })?;
        sync_dir(&self.dir.join("runs"))
    }
}

/// Whether any segment in this folder has more than its header.
fn begun(log: &Path) -> Result<bool, LogError> {
    for entry in fs::read_dir(log).map_err(io("cannot list", log))? {
        let entry = entry.map_err(io("cannot list", log))?;
        if entry.metadata().map_err(io("cannot look at", log))?.len() > HEADER as u64 {
            return Ok(true);
        }
    }
    Ok(false)
}
