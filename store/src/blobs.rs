//! Blobs in files: `<dir>/ab/<64 hexadecimal digits>`, written to `<dir>/tmp` first.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use events::ids::{BlobId, Digest};
use events::log::{Blobs, LogError};

use crate::blob_file::{self, BIG, Failed, ReadError, Temporary};
use crate::blob_lock::BlobLock;
use crate::disk;
use crate::error::io;
use crate::segment::sync_dir;

/// Large data by hash, shared by all runs of a home and by all processes that use it.
#[derive(Clone, Debug)]
pub struct BlobDir {
    dir: PathBuf,
    /// As long as anyone holds this, no blob goes away.
    _users: Option<Arc<BlobLock>>,
}

impl BlobDir {
    /// Opens the folder, making it where needed, and removes what dead writers left.
    pub fn open(dir: &Path) -> Result<Self, LogError> {
        let temporary = dir.join("tmp");
        disk::create_dir_all(&temporary).map_err(io("cannot create", &temporary))?;
        blob_file::sweep(&temporary).map_err(io("cannot sweep", &temporary))?;
        Ok(Self { dir: dir.to_owned(), _users: Some(Arc::new(BlobLock::shared(dir)?)) })
    }

    /// Opens the folder for looking only. Nothing is made; where the lock cannot be taken (it was
    /// never made, or may not be opened) a `gc` meanwhile makes blobs go away under the reader.
    pub(crate) fn read_only(dir: &Path) -> Result<Self, LogError> {
        let lock = BlobLock::if_there(dir).map(Arc::new);
        Ok(Self { dir: dir.to_owned(), _users: lock })
    }

    /// Where the blob lies, or would. Its bytes are not the content: see [`BlobDir::export_to`].
    pub fn path(&self, id: BlobId) -> PathBuf {
        let hex = id.hex();
        self.dir.join(&hex[..2]).join(hex)
    }

    /// Stores the content of a file durably. A large one never is in memory as a whole.
    pub fn put_file(&self, path: &Path) -> Result<BlobId, LogError> {
        let reading = io("cannot read", path);
        let mut from = File::open(path).map_err(&reading)?;
        if from.metadata().map_err(&reading)?.len() < BIG {
            return self.put(&fs::read(path).map_err(&reading)?);
        }
        let mut temporary = self.temporary()?;
        let id = blob_file::write_stream(&mut temporary.file, &mut from)
            .map_err(io("cannot import", path))?;
        if !self.is_sound(id) {
            self.keep(temporary, id)?;
        }
        self.sync_shard(id)?;
        Ok(id)
    }

    /// Writes the content of a blob to `path`, durably, checked, whole or not at all.
    pub fn export_to(&self, id: BlobId, path: &Path) -> Result<(), LogError> {
        let writing = io("cannot write", path);
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let mut temporary = Temporary::create(dir).map_err(&writing)?;
        blob_file::read(&self.path(id), id, &mut temporary.file)
            .map_err(|e| self.read_error(id, e, path))?;
        temporary.keep(path).map_err(&writing)?;
        sync_dir(dir)
    }

    /// Reads each blob and returns what is wrong: missing, damaged or unreadable ones.
    pub fn verify_all(&self, ids: impl IntoIterator<Item = BlobId>) -> Vec<LogError> {
        let wrong = ids.into_iter().filter_map(|id| {
            let path = self.path(id);
            let read = blob_file::read(&path, id, &mut std::io::sink());
            read.err().map(|e| self.read_error(id, e, &path))
        });
        wrong.collect()
    }

    /// Stores a blob from its stored form, checked. Not durable by itself.
    pub(crate) fn put_stored(&self, id: BlobId, from: &mut dyn Read) -> Result<u64, LogError> {
        let path = self.path(id);
        let mut temporary = self.temporary()?;
        blob_file::copy(from, &mut temporary.file).map_err(|failed| match failed {
            Failed::Reading(e) => io("cannot read", &path)(e),
            Failed::Writing(e) => io("cannot write", &path)(e),
        })?;
        blob_file::read(temporary.path(), id, &mut std::io::sink())
            .map_err(|e| self.read_error(id, e, &path))?;
        let bytes = temporary.file.inner().metadata().map_err(io("cannot read", &path))?.len();
        self.make_shard(id)?;
        temporary.name(&path).map_err(io("cannot write", &path))?;
        Ok(bytes)
    }

    /// Copies a blob to another folder, checked. Not durable by itself.
    pub(crate) fn copy_to(&self, id: BlobId, other: &Self) -> Result<u64, LogError> {
        let path = self.path(id);
        let mut from = File::open(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => self.read_error(id, ReadError::Missing, &path),
            _ => io("cannot read", &path)(e),
        })?;
        other.put_stored(id, &mut from).map_err(|e| match e {
            // What the copy is, the blob was.
            LogError::Blob { .. } => self.read_error(id, ReadError::Damaged, &path),
            other => other,
        })
    }

    /// Moves a checked, durable file here as the blob `id`, unless that is there and sound.
    pub(crate) fn adopt(&self, file: &Path, id: BlobId) -> Result<(), LogError> {
        if self.is_sound(id) {
            return Ok(());
        }
        self.make_shard(id)?;
        let path = self.path(id);
        disk::rename(file, &path).map_err(io("cannot write", &path))
    }

    /// Makes the names of all blobs durable.
    pub(crate) fn sync(&self) -> Result<(), LogError> {
        for entry in fs::read_dir(&self.dir).map_err(io("cannot list", &self.dir))? {
            let path = entry.map_err(io("cannot list", &self.dir))?.path();
            if path.is_dir() {
                sync_dir(&path)?;
            }
        }
        sync_dir(&self.dir)
    }

    fn is_sound(&self, id: BlobId) -> bool {
        blob_file::read(&self.path(id), id, &mut std::io::sink()).is_ok()
    }

    fn temporary(&self) -> Result<Temporary, LogError> {
        let dir = self.dir.join("tmp");
        Temporary::create(&dir).map_err(io("cannot write in", &dir))
    }

    fn keep(&self, temporary: Temporary, id: BlobId) -> Result<(), LogError> {
        let path = self.path(id);
        self.make_shard(id)?;
        temporary.keep(&path).map_err(io("cannot write", &path))
    }

    fn make_shard(&self, id: BlobId) -> Result<(), LogError> {
        let shard = self.shard(id);
        match disk::create_dir(&shard) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(io("cannot create", &shard)(e)),
            _ => Ok(()),
        }
    }

    fn shard(&self, id: BlobId) -> PathBuf {
        self.dir.join(&id.hex()[..2])
    }

    /// Makes the blob's name durable, also one that another writer gave it just now.
    fn sync_shard(&self, id: BlobId) -> Result<(), LogError> {
        sync_dir(&self.shard(id))?;
        sync_dir(&self.dir)
    }

    fn read_error(&self, id: BlobId, error: ReadError, to: &Path) -> LogError {
        let path = self.path(id);
        let blob = |what| LogError::Blob { id, what, path: path.display().to_string() };
        match error {
            ReadError::Missing => blob("is missing"),
            ReadError::Damaged => blob("is damaged"),
            ReadError::Reading(e) => io("cannot read", &path)(e),
            ReadError::Writing(e) => io("cannot write", to)(e),
        }
    }
}

impl Blobs for BlobDir {
    /// A stored blob that is damaged is replaced.
    fn put(&self, bytes: &[u8]) -> Result<BlobId, LogError> {
        let id = Digest::of(bytes);
        if !self.is_sound(id) {
            let mut temporary = self.temporary()?;
            let failed = |e: Error| io("cannot write", &self.path(id))(e);
            blob_file::write(&mut temporary.file, bytes).map_err(failed)?;
            self.keep(temporary, id)?;
        }
        self.sync_shard(id)?;
        Ok(id)
    }

    fn get(&self, id: BlobId) -> Result<Vec<u8>, LogError> {
        let path = self.path(id);
        let mut bytes = Vec::new();
        blob_file::read(&path, id, &mut bytes).map_err(|e| self.read_error(id, e, &path))?;
        Ok(bytes)
    }

    fn has(&self, id: BlobId) -> bool {
        self.path(id).exists()
    }
}
