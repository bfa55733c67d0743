//! Looking after a home: copies of it, archives of single runs, and blobs that nobody needs.
//!
//! All of it is built somewhere else first and gets its name in one rename, so that whoever is
//! killed in the middle leaves a folder that nothing reads.

mod archive;
mod backup;
mod export;
mod gc;
mod import;
mod references;
mod snapshot;
mod stage;

pub use backup::{Copied, backup, restore};
pub use export::export;
pub use gc::{Collected, gc};
pub use import::{Imported, import};
pub use references::References;
