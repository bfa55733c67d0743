//! The index of an owned log in sled: where a record lies, and which records have a subject, a
//! name, a cause. It is filled when it is asked and never while appending; it can be thrown away.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `seq` | seq | segment's first seq, offset |
//! | `subject` | uuid, seq | |
//! | `name` | name, 0, seq | |
//! | `cause` | cause, seq | |
//! | default | `upto` | last indexed seq, hash of that record |
//!
//! All numbers are 8 bytes, big-endian, so that keys sort by seq.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use events::ids::Seq;
use events::log::LogError;
use sled::{Batch, Db, Tree};

use crate::disk;
use crate::lineage::{Item, View, record_at, walk};
use crate::seal;

/// Records between two writes of the index.
const BATCH: u64 = 8192;
const UPTO: &[u8] = b"upto";

/// Where a record lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment file; of an ancestor's, for a record from before the fork.
    pub path: PathBuf,
    /// Where its frame starts, in bytes.
    pub offset: u64,
}

/// Why the index cannot answer.
pub(crate) enum IndexError {
    /// sled's failure, or the folder's: build it again.
    Index(String),
    /// The log's own failure.
    Log(LogError),
}

impl From<sled::Error> for IndexError {
    fn from(error: sled::Error) -> Self {
        Self::Index(error.to_string())
    }
}

impl From<std::io::Error> for IndexError {
    fn from(error: std::io::Error) -> Self {
        Self::Index(error.to_string())
    }
}

impl From<LogError> for IndexError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

/// The index, where it is open.
#[derive(Debug, Default)]
pub(crate) struct IndexSlot {
    open: Option<(PathBuf, Index)>,
}

impl IndexSlot {
    /// Removes the index.
    pub fn discard(&mut self, dir: &Path) -> Result<(), std::io::Error> {
        self.open = None;
        seal::remove(dir)?;
        if dir.exists() { disk::remove_dir_all(dir) } else { Ok(()) }
    }

    /// Brings the index in `dir` up to the end of `views`, then asks it. What is damaged is built
    /// again once.
    pub fn ask<T>(
        &mut self,
        dir: &Path,
        views: &[View],
        question: &dyn Fn(&Index) -> Result<T, IndexError>,
    ) -> Result<T, IndexError> {
        match self.try_ask(dir, views, question) {
            Err(IndexError::Index(_)) => {
                self.open = None;
                seal::remove(dir)?;
                self.try_ask(dir, views, question)
            }
            answer => answer,
        }
    }

    fn try_ask<T>(
        &mut self,
        dir: &Path,
        views: &[View],
        question: &dyn Fn(&Index) -> Result<T, IndexError>,
    ) -> Result<T, IndexError> {
        if self.open.is_none() && !seal::holds(dir) && dir.exists() {
            disk::remove_dir_all(dir)?;
        }
        seal::remove(dir)?;
        let index = match self.open.take() {
            Some((_, index)) => index,
            None => Index::open(dir, views)?,
        };
        index.catch_up(views)?;
        let answer = question(&index)?;
        index.db.flush()?;
        self.open = Some((dir.to_owned(), index));
        seal::put(dir);
        Ok(answer)
    }
}

impl Drop for IndexSlot {
    /// sled writes while it closes, so the seal is put again.
    fn drop(&mut self) {
        if let Some((dir, index)) = self.open.take()
            && seal::remove(&dir).is_ok()
        {
            drop(index);
            seal::put(&dir);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Index {
    seq: Tree,
    subject: Tree,
    name: Tree,
    cause: Tree,
    db: Db,
}

impl Index {
    fn open(dir: &Path, views: &[View]) -> Result<Self, IndexError> {
        let config = sled::Config::new().path(dir).flush_every_ms(None).cache_capacity(64 << 20);
        let db = config.open()?;
        let (seq, subject) = (db.open_tree("seq")?, db.open_tree("subject")?);
        let (name, cause) = (db.open_tree("name")?, db.open_tree("cause")?);
        let index = Self { seq, subject, name, cause, db };
        let (upto, hash) = index.upto()?;
        let fits = match record_at(views, upto)? {
            Some((_, found)) => found.0 == hash,
            None => upto == 0,
        };
        if fits { Ok(index) } else { Err(IndexError::Index("it is of another log".into())) }
    }

    fn upto(&self) -> Result<(u64, [u8; 32]), IndexError> {
        let Some(value) = self.db.get(UPTO)? else { return Ok((0, [0; 32])) };
        let hash = value.get(8..).and_then(|h| h.try_into().ok());
        match (number(&value, 0), hash) {
            (Some(upto), Some(hash)) => Ok((upto, hash)),
            _ => Err(IndexError::Index("its position is damaged".into())),
        }
    }

    fn catch_up(&self, views: &[View]) -> Result<(), IndexError> {
        let (upto, _) = self.upto()?;
        let mut pending = Pending::default();
        let mut failed = None;
        walk(views, upto + 1, &mut |item| {
            pending.add(&item);
            let full = item.record.seq.0.is_multiple_of(BATCH);
            match if full { std::mem::take(&mut pending).write(self) } else { Ok(()) } {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => {
                    failed = Some(e);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or_else(|| pending.write(self), Err)
    }

    /// `(segment's first seq, offset)` of the record at `seq`.
    pub fn place(&self, seq: Seq) -> Result<Option<(u64, u64)>, IndexError> {
        let Some(value) = self.seq.get(seq.0.to_be_bytes())? else { return Ok(None) };
        Ok(number(&value, 0).zip(number(&value, 8)))
    }

    pub fn by_subject(&self, subject: uuid::Uuid) -> Result<Vec<Seq>, IndexError> {
        seqs(&self.subject, subject.as_bytes())
    }

    pub fn by_name(&self, name: &str) -> Result<Vec<Seq>, IndexError> {
        seqs(&self.name, &[name.as_bytes(), &[0]].concat())
    }

    pub fn by_cause(&self, cause: Seq) -> Result<Vec<Seq>, IndexError> {
        seqs(&self.cause, &cause.0.to_be_bytes())
    }
}

#[derive(Default)]
struct Pending {
    seq: Batch,
    subject: Batch,
    name: Batch,
    cause: Batch,
    upto: Option<Vec<u8>>,
}

impl Pending {
    fn add(&mut self, item: &Item<'_>) {
        let (record, key) = (&item.record, item.record.seq.0.to_be_bytes());
        let place = [item.segment.header.first.to_be_bytes(), item.offset.to_be_bytes()];
        self.seq.insert(&key, place.concat());
        if let Some(subject) = record.event.subject() {
            self.subject.insert([subject.as_bytes().as_slice(), &key].concat(), &[]);
        }
        self.name.insert([record.event.name().as_bytes(), &[0], &key].concat(), &[]);
        if let Some(cause) = record.cause {
            self.cause.insert([cause.0.to_be_bytes(), key].concat(), &[]);
        }
        self.upto = Some([key.as_slice(), &item.hash.0].concat());
    }

    /// The position goes last: what it covers is there.
    fn write(self, index: &Index) -> Result<(), IndexError> {
        let Some(upto) = self.upto else { return Ok(()) };
        index.seq.apply_batch(self.seq)?;
        index.subject.apply_batch(self.subject)?;
        index.name.apply_batch(self.name)?;
        index.cause.apply_batch(self.cause)?;
        index.db.insert(UPTO, upto)?;
        Ok(())
    }
}

/// The seqs at the ends of the keys that are `prefix` and a seq.
fn seqs(tree: &Tree, prefix: &[u8]) -> Result<Vec<Seq>, IndexError> {
    let mut found = Vec::new();
    for entry in tree.scan_prefix(prefix) {
        let (key, _) = entry?;
        if let Some(seq) = number(&key, prefix.len()).filter(|_| key.len() == prefix.len() + 8) {
            found.push(Seq(seq));
        }
    }
    Ok(found)
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
