//! Log and blobs without a disk, for tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use events::event::{Draft, Recorded, SCHEMA};
use events::ids::{BlobId, Digest, Seq};
use events::log::{Blobs, Log, LogError};

use crate::codec;
use crate::error::refused;

/// A log that lives as long as its value. Its times are counts, so equal appends are equal logs.
#[derive(Debug, Default)]
pub struct MemoryLog {
    records: Mutex<(Vec<Recorded>, Digest)>,
}

impl MemoryLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    fn records(&self) -> MutexGuard<'_, (Vec<Recorded>, Digest)> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for MemoryLog {
    fn append(&self, drafts: Vec<Draft>) -> Result<Vec<Recorded>, LogError> {
        let mut guard = self.records();
        let mut previous = guard.1;
        let mut added = Vec::with_capacity(drafts.len());
        for (seq, Draft { cause, actor, event }) in (guard.0.len() as u64 + 1..).zip(drafts) {
            let (schema, at_unix_ms) = (SCHEMA, seq);
            let record =
                Recorded { seq: Seq(seq), at_unix_ms, cause, actor, schema, previous, event };
            let bytes = codec::encode(&record)
                .map_err(|e| refused("cannot append to", "memory".as_ref(), format!("{e:?}")))?;
            previous = Digest::of(&bytes);
            added.push(record);
        }
        guard.0.extend(added.iter().cloned());
        guard.1 = previous;
        Ok(added)
    }

    fn read_after(&self, seq: Seq, limit: usize) -> Result<Vec<Recorded>, LogError> {
        let guard = self.records();
        let skip = usize::try_from(seq.0).unwrap_or(usize::MAX);
        Ok(guard.0.iter().skip(skip).take(limit).cloned().collect())
    }

    fn head(&self) -> (Seq, Digest) {
        let guard = self.records();
        (Seq(guard.0.len() as u64), guard.1)
    }
}

/// Blobs that live as long as their value.
#[derive(Debug, Default)]
pub struct MemoryBlobs {
    blobs: Mutex<BTreeMap<BlobId, Vec<u8>>>,
}

impl MemoryBlobs {
    /// No blobs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets a blob, as a collection would.
    pub fn remove(&self, id: BlobId) {
        self.blobs().remove(&id);
    }

    fn blobs(&self) -> MutexGuard<'_, BTreeMap<BlobId, Vec<u8>>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blobs for MemoryBlobs {
    fn put(&self, bytes: &[u8]) -> Result<BlobId, LogError> {
        let id = Digest::of(bytes);
        self.blobs().entry(id).or_insert_with(|| bytes.to_vec());
        Ok(id)
    }

    fn get(&self, id: BlobId) -> Result<Vec<u8>, LogError> {
        let missing = || LogError::Blob { id, what: "is missing", path: "memory".into() };
        self.blobs().get(&id).cloned().ok_or_else(missing)
    }

    fn has(&self, id: BlobId) -> bool {
        self.blobs().contains_key(&id)
    }
}
