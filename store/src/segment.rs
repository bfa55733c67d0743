//! One segment file, and the folder they lie in.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use events::ids::Seq;
use events::log::LogError;

use crate::disk;
use crate::error::{damaged, io};
use crate::frame::{HEADER, Header, VERSION};

/// Records between two entries of the sparse table.
const STRIDE: u64 = 128;

/// A segment that can be read.
#[derive(Debug)]
pub(crate) struct Segment {
    pub path: PathBuf,
    pub file: File,
    pub header: Header,
    /// `(seq, offset)` of some batch starts, rising; filled while reading and appending.
    table: Mutex<Vec<(u64, u64)>>,
}

/// `<first seq, 20 digits>.seg`.
pub(crate) fn name(first: u64) -> String {
    format!("{first:020}.seg")
}

/// First seqs of the segments in `dir`, rising. Foreign files are passed over.
pub(crate) fn list(dir: &Path) -> Result<Vec<u64>, LogError> {
    let mut firsts = Vec::new();
    for entry in fs::read_dir(dir).map_err(io("cannot list", dir))? {
        let entry = entry.map_err(io("cannot list", dir))?;
        let file_name = entry.file_name();
        let Some(stem) = file_name.to_str().and_then(|n| n.strip_suffix(".seg")) else { continue };
        if stem.len() == 20
            && let Ok(first) = stem.parse()
        {
            firsts.push(first);
        }
    }
    firsts.sort_unstable();
    Ok(firsts)
}

/// Takes back, durably, what a failed [`Segment::create`] left: were it to stay, records could be
/// appended before it.
pub(crate) fn discard(dir: &Path, first: u64) -> Result<(), std::io::Error> {
    let path = dir.join(name(first));
    for path in [path.with_extension("seg.tmp"), path] {
        match disk::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    disk::sync_dir(dir)
}

/// Makes the folder's entries durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), LogError> {
    disk::sync_dir(dir).map_err(io("cannot sync", dir))
}

impl Segment {
    /// Opens the segment that starts at `first` and checks its header.
    pub fn open(dir: &Path, first: u64) -> Result<Self, LogError> {
        let path = dir.join(name(first));
        let file = File::open(&path).map_err(io("cannot open", &path))?;
        let mut bytes = [0; HEADER];
        file.read_exact_at(&mut bytes, 0).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => damaged(&path, 0, first, "the segment's header is cut off"),
            _ => io("cannot read", &path)(e),
        })?;
        if let Some(found) = Header::newer(&bytes) {
            let [found, known] = [found, VERSION].map(|v| u16::try_from(v).unwrap_or(u16::MAX));
            return Err(LogError::Newer { seq: Seq(first), found, known });
        }
        let header =
            Header::decode(&bytes).map_err(|(at, what)| damaged(&path, at, first, what))?;
        if header.first != first {
            let what = format!("the header says {}, the file's name {first}", header.first);
            return Err(damaged(&path, 12, first, what));
        }
        Ok(Self::new(path, file, header))
    }

    /// Creates an empty segment durably: it appears with its whole header or not at all. After a
    /// failure [`discard`] must follow.
    pub fn create(dir: &Path, header: Header) -> Result<(Self, disk::File), std::io::Error> {
        let path = dir.join(name(header.first));
        let temporary = path.with_extension("seg.tmp");
        let mut file = disk::File::create(&temporary)?;
        file.write_all(&header.encode())?;
        file.sync_all()?;
        disk::rename(&temporary, &path)?;
        disk::sync_dir(dir)?;
        let writable = disk::File::open(&path)?;
        let file = File::open(&path)?;
        Ok((Self::new(path, file, header), writable))
    }

    fn new(path: PathBuf, file: File, header: Header) -> Self {
        Self { path, file, header, table: Mutex::new(vec![(header.first, HEADER as u64)]) }
    }

    /// A handle for writing.
    pub fn writable(&self) -> Result<disk::File, LogError> {
        disk::File::open(&self.path).map_err(io("cannot open", &self.path))
    }

    /// Length of the file in bytes, now.
    pub fn len(&self) -> Result<u64, LogError> {
        Ok(self.file.metadata().map_err(io("cannot read", &self.path))?.len())
    }

    /// A batch start at or before `seq`: its seq and offset.
    pub fn place_before(&self, seq: u64) -> (u64, u64) {
        let table = self.table();
        let after = table.partition_point(|(s, _)| *s <= seq);
        table[after.saturating_sub(1)]
    }

    /// Remembers that a batch starts with `seq` at `offset`, if that is worth an entry.
    pub fn remember(&self, seq: u64, offset: u64) {
        let mut table = self.table();
        if table.last().is_none_or(|(last, _)| seq >= last + STRIDE) {
            table.push((seq, offset));
        }
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Vec<(u64, u64)>> {
        self.table.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}
