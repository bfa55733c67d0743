//! The durable log, blobs by hash, and an index that can always be rebuilt.
//!
//! Segment files are the truth ([`FileLog`]); sled holds an index of places that is filled when it
//! is asked, never while appending. [`Home`] knows where everything lies.

pub mod codec;
pub mod conformance;

mod blob_file;
mod blob_lock;
mod blobs;
mod care;
mod cursor;
mod digests;
mod disk;
mod error;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "they are tests")]
mod faults;
mod file_log;
mod fork;
mod frame;
mod head;
mod home;
mod index;
mod kept;
mod lineage;
mod lock;
mod making;
mod memory;
mod place_lock;
mod query;
mod queue;
mod recover;
mod seal;
mod segment;
mod verify;
mod walk;
mod writer;

pub use blobs::BlobDir;
pub use care::{Collected, Copied, Imported, References, backup, export, gc, import, restore};
pub use error::is_disk_full;
pub use file_log::{Cut, FileLog, OpenMode, Options, RecoveryReport};
pub use fork::Base;
pub use head::HeadState;
pub use home::Home;
pub use index::Place;
pub use kept::Kept;
pub use lock::owner;
pub use memory::{MemoryBlobs, MemoryLog};
pub use verify::{Report, verify};
