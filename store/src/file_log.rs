//! The log of one run in files.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use events::event::{Draft, Recorded};
use events::ids::{Digest, Seq};
use events::log::{Log, LogError};

use crate::disk;
use crate::error::{damaged, io, refused};
use crate::fork::{Base, ancestors};
use crate::head::{Head, HeadFile, HeadState};
use crate::index::IndexSlot;
use crate::lineage::{View, record_at, walk};
use crate::lock::{OwnerLock, owner};
use crate::queue::Queue;
use crate::recover::{advance, open_view, torn_header};
use crate::segment;
use crate::writer::{Writer, cut};

/// What a log is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Appending and reading, by one process only. A torn tail is cut.
    Own,
    /// Reading, also while another process owns it. Changes nothing on disk.
    ReadOnly,
}

/// Settings of the machine, not of the run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A segment that would grow over this many bytes is sealed; a larger batch has its own.
    pub segment_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20 }
    }
}

/// An incomplete batch at the log's end. It was never acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub path: PathBuf,
    /// Its length after the cut, in bytes; 0 if it went altogether.
    pub offset: u64,
    /// How many bytes went.
    pub bytes: u64,
}

/// What opening found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryReport {
    /// What was cut off. Opened read-only: what is passed over.
    pub cut: Option<Cut>,
    /// How the head kept outside the log compared, before it was brought up to date.
    pub outside: HeadState,
}

/// The durable log of one run. Share it in an `Arc`.
#[derive(Debug)]
pub struct FileLog {
    pub(crate) dir: PathBuf,
    pub(crate) mode: OpenMode,
    base: Option<Base>,
    ancestors: Vec<View>,
    view: RwLock<View>,
    writer: Option<Mutex<Writer>>,
    queue: Queue,
    head_file: HeadFile,
    recovery: RecoveryReport,
    pub(crate) index: Mutex<IndexSlot>,
    /// Last, so that it is let go last.
    _lock: Option<OwnerLock>,
}

impl FileLog {
    /// Opens the run in `dir` (`<home>/runs/<run-id>`).
    ///
    /// Fails with `Owned` if another process has it, `Damaged` if stored bytes are not what was
    /// written or an acknowledged record is lost (nothing is changed then), `Newer`, or `Io`.
    pub fn open(dir: &Path, mode: OpenMode) -> Result<Self, LogError> {
        Self::open_with(dir, mode, Options::default())
    }

    /// [`FileLog::open`] with settings.
    pub fn open_with(dir: &Path, mode: OpenMode, options: Options) -> Result<Self, LogError> {
        let dir = dir.canonicalize().map_err(io("cannot open", dir))?;
        let lock = match mode {
            OpenMode::Own => Some(OwnerLock::take(&dir)?),
            OpenMode::ReadOnly => None,
        };
        Self::opened(dir, lock, options)
    }

    /// Opens the run in `dir` for who has its lock.
    pub(crate) fn open_owned(dir: &Path, lock: OwnerLock) -> Result<Self, LogError> {
        Self::opened(dir.to_owned(), Some(lock), Options::default())
    }

    fn opened(dir: PathBuf, lock: Option<OwnerLock>, options: Options) -> Result<Self, LogError> {
        let log = dir.join("log");
        let own = lock.is_some();
        let mode = if own { OpenMode::Own } else { OpenMode::ReadOnly };
        let base = Base::read(&dir)?;
        let runs = dir.parent().unwrap_or(&dir);
        let ancestors = base.as_ref().map_or(Ok(Vec::new()), |base| ancestors(runs, base))?;
        let before = base.map_or((0, Digest::default()), |base| (base.at.0, base.head));
        let head_file = HeadFile::of_run(&dir)?;
        let head = head_file.read()?;
        let view = open_view(&log, before, head, bound(&dir, mode, head))?;
        if base.is_some() && view.last == before.0 {
            let what = "a branch has lost all records of its own: restore them; one that was cut off \
                        while it was made had none, and its folder may be removed";
            return Err(damaged(&log, 0, before.0 + 1, what));
        }
        let outside = compare(&ancestors, &view, head, &head_file)?;
        let tail = leftover(&log, &view, head)?;
        let mut writer = None;
        if own {
            if view.last > before.0 || tail.is_some() {
                spoken_for(&head_file, view.last)?;
            }
            if let Some(tail) = &tail {
                cut_off(tail, &view)?;
            }
            sweep(&log)?;
            let opened = Writer::new(log, &view, head_file.open()?, options.segment_bytes)?;
            opened.write_head();
            head_file.sync(opened.head())?;
            writer = Some(Mutex::new(opened));
        }
        let recovery = RecoveryReport { cut: tail, outside };
        let (view, queue, index) = (RwLock::new(view), Queue::default(), Mutex::default());
        Ok(Self {
            dir,
            mode,
            base,
            ancestors,
            view,
            writer,
            queue,
            head_file,
            recovery,
            index,
            _lock: lock,
        })
    }

    /// Fails if the head file is gone, without which lost records do not show. For who is about to make
    /// something of the log that looks whole.
    pub fn require_head(&self) -> Result<(), LogError> {
        let view = self.own_view()?;
        if view.last > view.before { spoken_for(&self.head_file, view.last) } else { Ok(()) }
    }

    /// What opening found.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Where this run left its parent, if it is a fork.
    pub fn base(&self) -> Option<&Base> {
        self.base.as_ref()
    }

    /// The run's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The event at `seq`, if there is one.
    pub fn get(&self, seq: Seq) -> Result<Option<Recorded>, LogError> {
        Ok(record_at(&self.views()?, seq.0)?.map(|(record, _)| record))
    }

    /// Gives `each` every event from `from` on, with the hash of its stored bytes, until it breaks
    /// or the log ends. All checks are made: length, CRC, order, batches, chain.
    pub fn scan(
        &self,
        from: Seq,
        mut each: impl FnMut(&Recorded, Digest) -> ControlFlow<()>,
    ) -> Result<(), LogError> {
        self.scan_owned(from, |record, hash| each(&record, hash))
    }

    /// [`FileLog::scan`] for who keeps the events.
    pub fn scan_owned(
        &self,
        from: Seq,
        mut each: impl FnMut(Recorded, Digest) -> ControlFlow<()>,
    ) -> Result<(), LogError> {
        walk(&self.views()?, from.0.max(1), &mut |item| each(item.record, item.hash))
    }

    /// Everything that may be read now: the ancestors' part, then the run's own.
    pub(crate) fn views(&self) -> Result<Vec<View>, LogError> {
        let mut views = self.ancestors.clone();
        views.push(self.current()?);
        Ok(views)
    }

    /// The run's own part of that.
    pub(crate) fn own_view(&self) -> Result<View, LogError> {
        self.current()
    }

    fn current(&self) -> Result<View, LogError> {
        if self.mode == OpenMode::Own {
            return Ok(self.view.read().unwrap_or_else(PoisonError::into_inner).clone());
        }
        let head = self.head_file.read()?;
        let bound = bound(&self.dir, self.mode, head);
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = view.clone();
        advance(&mut next, &self.dir.join("log"), head, bound)?;
        *view = next;
        Ok(view.clone())
    }

    /// Whether an append failed in such a way that only opening the log again can tell what it left.
    #[cfg(test)]
    pub(crate) fn must_be_opened_again(&self) -> bool {
        self.writer().is_ok_and(|writer| writer.is_poisoned())
    }

    fn writer(&self) -> Result<MutexGuard<'_, Writer>, LogError> {
        let Some(writer) = &self.writer else {
            return Err(refused("cannot append to", &self.dir, "it is open for reading only"));
        };
        Ok(writer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Log for FileLog {
    fn append(&self, drafts: Vec<Draft>) -> Result<Vec<Recorded>, LogError> {
        if drafts.is_empty() || self.writer.is_none() {
            return self.writer().map(|_| Vec::new());
        }
        let done = self.queue.append(drafts, |drafts| {
            let mut writer = self.writer()?;
            let records = writer.append(drafts)?;
            writer.publish(&mut self.view.write().unwrap_or_else(PoisonError::into_inner));
            Ok(records)
        });
        let lost = || Err(refused("cannot append to", &self.dir, "whoever wrote it panicked"));
        done.unwrap_or_else(lost)
    }

    fn read_after(&self, seq: Seq, limit: usize) -> Result<Vec<Recorded>, LogError> {
        let mut records = Vec::new();
        if limit == 0 {
            return Ok(records);
        }
        walk(&self.views()?, seq.0.saturating_add(1), &mut |item| {
            records.push(item.record);
            if records.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(records)
    }

    /// A read-only log that cannot be read any more answers with what it saw last.
    fn head(&self) -> (Seq, Digest) {
        let known = || self.view.read().unwrap_or_else(PoisonError::into_inner).clone();
        let view = self.current().unwrap_or_else(|_| known());
        (Seq(view.last), view.hash)
    }
}

/// How far a reader may look. While an owner lives, a batch counts once the head file names it:
/// before that it may not be durable, or may be taken back.
fn bound(dir: &Path, mode: OpenMode, head: Option<Head>) -> u64 {
    match head {
        Some(head) if mode == OpenMode::ReadOnly && owner(dir).is_some() => head.seq,
        _ => u64::MAX,
    }
}

/// Fails if there is no file that could name record `last`.
fn spoken_for(head_file: &HeadFile, last: u64) -> Result<(), LogError> {
    if head_file.path().exists() {
        return Ok(());
    }
    let what = "the head kept outside the log is missing, so lost records would not \
                show: restore this file, or make it empty to accept the log as it is";
    Err(damaged(head_file.path(), 0, last, what))
}

fn compare(
    ancestors: &[View],
    view: &View,
    head: Option<Head>,
    file: &HeadFile,
) -> Result<HeadState, LogError> {
    let Some(head) = head else { return Ok(HeadState::Missing) };
    if head.seq == view.last {
        return Ok(HeadState::Matches);
    }
    let views = [ancestors, std::slice::from_ref(view)].concat();
    let found = record_at(&views, head.seq)?.map_or(Digest::default(), |(_, hash)| hash);
    if found != head.hash {
        let what = "the chain differs from the head kept outside the log";
        return Err(damaged(file.path(), 0, head.seq, what));
    }
    Ok(HeadState::Lags(Seq(head.seq)))
}

/// What lies after the last whole batch.
fn leftover(log: &Path, view: &View, head: Option<Head>) -> Result<Option<Cut>, LogError> {
    if let Some(first) = torn_header(log, &segment::list(log)?, head)? {
        let path = log.join(segment::name(first));
        let bytes = path.metadata().map_err(io("cannot read", &path))?.len();
        return Ok(Some(Cut { path, offset: 0, bytes }));
    }
    let Some(last) = view.segments.last() else { return Ok(None) };
    let bytes = last.len()?.saturating_sub(view.end);
    let path = last.path.clone();
    Ok((bytes > 0).then_some(Cut { path, offset: view.end, bytes }))
}

fn cut_off(tail: &Cut, view: &View) -> Result<(), LogError> {
    if view.segments.last().is_none_or(|last| last.path != tail.path) {
        disk::remove_file(&tail.path).map_err(io("cannot remove", &tail.path))?;
    }
    match view.segments.last() {
        Some(last) => cut(&last.path, &last.writable()?, view.end),
        None => Ok(()),
    }
}

/// Removes segments whose creation was cut off.
fn sweep(log: &Path) -> Result<(), LogError> {
    for entry in fs::read_dir(log).map_err(io("cannot list", log))? {
        let path = entry.map_err(io("cannot list", log))?.path();
        if path.extension().is_some_and(|e| e == "tmp") {
            disk::remove_file(&path).map_err(io("cannot remove", &path))?;
        }
    }
    segment::sync_dir(log)
}
