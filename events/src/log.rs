//! The port to the durable log. `store` implements it; actors see nothing else of storage.

use crate::event::{Draft, Recorded};
use crate::ids::{BlobId, Digest, Seq};

/// What can go wrong with a log or with blobs. All of it is the world's failure.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Reading or writing failed.
    #[error("{action} {path}: {cause}")]
    Io {
        /// What was tried: `cannot write`, `cannot read`, …
        action: &'static str,
        /// The file.
        path: String,
        /// Why. Part of the text already, so not given as a source once more.
        cause: std::io::Error,
    },
    /// No space is left; nothing was acknowledged, the log is as it was.
    #[error(
        "no space left on the device while writing {path}: free some space, then run again; \
             the log is intact up to {last}"
    )]
    DiskFull {
        /// The file.
        path: String,
        /// Last durable position.
        last: Seq,
    },
    /// Stored bytes are not what was written.
    #[error("damage in {path} at byte {offset} (record {seq}): {what}")]
    Damaged {
        /// The file.
        path: String,
        /// Where in it.
        offset: u64,
        /// Which record.
        seq: Seq,
        /// What does not fit.
        what: String,
    },
    /// A blob is absent or damaged.
    #[error("blob {id} {what}: restore {path} from a copy")]
    Blob {
        /// Which.
        id: BlobId,
        /// `is missing`, `is damaged`.
        what: &'static str,
        /// Where it should be.
        path: String,
    },
    /// Another process owns the log.
    #[error("the log in {path} is owned by process {owner}: stop it, or ask it through its socket")]
    Owned {
        /// The log's folder.
        path: String,
        /// Process id of the owner, as far as known.
        owner: String,
    },
    /// An archive is not what was exported, or not for this program.
    #[error("the archive {path}: {what}")]
    Archive {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// Others use what is to be changed.
    #[error("{path} is in use by {by}: try again when they are done")]
    InUse {
        /// The folder.
        path: String,
        /// Who, as far as known.
        by: &'static str,
    },
    /// The log was written by a newer program.
    #[error(
        "record {seq} has schema {found}, this program knows up to {known}: use a newer program"
    )]
    Newer {
        /// Which record.
        seq: Seq,
        /// Its schema.
        found: u16,
        /// The newest this program reads.
        known: u16,
    },
}

/// The only memory and the only channel between actors.
pub trait Log: Send + Sync {
    /// Makes all drafts durable as one, then returns them as recorded. Nobody can see any of them
    /// before, and an error means that none was appended.
    fn append(&self, drafts: Vec<Draft>) -> Result<Vec<Recorded>, LogError>;

    /// At most `limit` events after `seq`, in order.
    fn read_after(&self, seq: Seq, limit: usize) -> Result<Vec<Recorded>, LogError>;

    /// Position and hash of the last record; `(Seq(0), all zero)` for an empty log.
    fn head(&self) -> (Seq, Digest);
}

/// Large data by hash.
pub trait Blobs: Send + Sync {
    /// Stores `bytes` durably; storing the same bytes twice is one blob.
    fn put(&self, bytes: &[u8]) -> Result<BlobId, LogError>;

    /// The bytes, checked against the hash.
    fn get(&self, id: BlobId) -> Result<Vec<u8>, LogError>;

    /// Whether it is there, without checking its content.
    fn has(&self, id: BlobId) -> bool;
}
