//! Blobs and static rules for an audit. What one event names the next ones read again (a module's
//! source for each of its kernels, a kernel's source for its build), so the last blobs are kept, up to
//! a fixed number of bytes.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};

use events::ids::BlobId;
use events::log::Blobs;
use events::outcome::{Backend, Failure, SourceReport};
use events::rules::audit::Evidence;
use store::BlobDir;

/// Blobs that are kept, in bytes.
const KEEP: usize = 32 << 20;
/// A larger blob is checked as a stream and never in memory as a whole.
const LARGE: u64 = 1 << 20;

/// Stored blobs and the judge's own rules.
pub struct Stored {
    blobs: BlobDir,
    kept: RefCell<Kept>,
}

#[derive(Default)]
struct Kept {
    blobs: HashMap<BlobId, Vec<u8>>,
    order: VecDeque<BlobId>,
    bytes: usize,
}

impl Kept {
    fn add(&mut self, id: BlobId, blob: Vec<u8>) {
        self.bytes += blob.len();
        self.order.push_back(id);
        self.blobs.insert(id, blob);
        while self.bytes > KEEP {
            let Some(oldest) = self.order.pop_front() else { return };
            self.bytes -= self.blobs.remove(&oldest).map_or(0, |blob| blob.len());
        }
    }
}

impl Stored {
    /// The evidence in `blobs`.
    pub fn new(blobs: BlobDir) -> Self {
        Self { blobs, kept: RefCell::default() }
    }
}

impl Evidence for Stored {
    fn blob(&self, id: BlobId) -> Result<Vec<u8>, String> {
        if let Some(blob) = self.kept.borrow().blobs.get(&id) {
            return Ok(blob.clone());
        }
        let blob = self.blobs.get(id).map_err(|e| e.to_string())?;
        self.kept.borrow_mut().add(id, blob.clone());
        Ok(blob)
    }

    fn sound(&self, id: BlobId) -> Result<(), String> {
        if self.kept.borrow().blobs.contains_key(&id) {
            return Ok(());
        }
        let large = self.blobs.path(id).metadata().is_ok_and(|about| about.len() > LARGE);
        if large {
            let wrong = self.blobs.verify_all([id]).into_iter().next();
            return wrong.map_or(Ok(()), |error| Err(error.to_string()));
        }
        self.blob(id).map(drop)
    }

    fn module_source(&self, source: &str, tracked: &BTreeSet<String>) -> SourceReport {
        keck::rules::inspect_module(source, tracked)
    }

    fn kernel_source(&self, source: &str) -> Result<Backend, Failure> {
        keck::rules::inspect_kernel(source)
    }
}
