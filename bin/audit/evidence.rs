//! Blobs and static rules for an audit. What one event names the next ones read again (a module's
//! source for each of its kernels, a kernel's source for its build), so the last ones are kept, up to
//! a fixed number of bytes, whichever thread asked for them.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use events::event::Event;
use events::ids::BlobId;
use events::log::Blobs;
use events::outcome::{Backend, Failure, SourceReport};
use events::rules::audit::{Evidence, text};
use store::BlobDir;

use super::memo::Memo;

/// Blobs that are kept, in bytes.
const KEEP: usize = 32 << 20;
/// What the static rules said and is kept, in bytes.
const KEEP_SAID: usize = 8 << 20;
/// A larger blob is checked as a stream and never in memory as a whole.
const LARGE: u64 = 1 << 20;

type Said<T> = Result<T, String>;

/// Stored blobs and the judge's own rules.
pub struct Stored {
    dir: BlobDir,
    blobs: Memo<Said<Arc<[u8]>>>,
    sound: Memo<Said<()>>,
    kernels: Memo<Said<Result<Backend, Failure>>>,
    modules: Memo<Said<SourceReport>>,
    /// The APIs that `modules` were read with.
    tracked: OnceLock<BTreeSet<String>>,
}

impl Stored {
    /// The evidence in `blobs`.
    pub fn new(blobs: BlobDir) -> Self {
        Self {
            dir: blobs,
            blobs: Memo::new(KEEP, |blob| blob.as_ref().map_or_else(String::len, |b| b.len())),
            sound: Memo::new(KEEP_SAID, |said| said.as_ref().map_or_else(String::len, |()| 0)),
            kernels: Memo::new(KEEP_SAID, |said| match said {
                Ok(Ok(_)) => 0,
                Ok(Err(failure)) => failure.detail.len(),
                Err(text) => text.len(),
            }),
            modules: Memo::new(KEEP_SAID, |said| match said {
                Ok(SourceReport::Parsed { missing, apis, forbidden }) => {
                    let texts = missing.iter().chain(apis).chain(forbidden);
                    texts.map(|text| size_of::<String>() + text.len()).sum()
                }
                Ok(SourceReport::DoesNotParse(text)) | Err(text) => text.len(),
                Ok(SourceReport::NoCode) => 0,
            }),
            tracked: OnceLock::new(),
        }
    }

    fn read_module(&self, source: BlobId, tracked: &BTreeSet<String>) -> Said<SourceReport> {
        Ok(keck::rules::inspect_module(&text(self, source)?, tracked))
    }
}

impl Evidence for Stored {
    fn blob(&self, id: BlobId) -> Said<Arc<[u8]>> {
        self.blobs.get(id, || self.dir.get(id).map(Arc::from).map_err(|e| e.to_string()))
    }

    fn sound(&self, id: BlobId) -> Said<()> {
        self.sound.get(id, || {
            let large = self.dir.path(id).metadata().is_ok_and(|about| about.len() > LARGE);
            if large {
                let wrong = self.dir.verify_all([id]).into_iter().next();
                return wrong.map_or(Ok(()), |error| Err(error.to_string()));
            }
            self.blob(id).map(drop)
        })
    }

    fn purity_policy(&self) -> u32 {
        keck::POLICY_VERSION
    }

    fn module_source(&self, source: BlobId, tracked: &BTreeSet<String>) -> Said<SourceReport> {
        if self.tracked.get_or_init(|| tracked.clone()) != tracked {
            return self.read_module(source, tracked);
        }
        self.modules.get(source, || self.read_module(source, tracked))
    }

    fn kernel_source(&self, source: BlobId) -> Said<Result<Backend, Failure>> {
        self.kernels.get(source, || Ok(keck::rules::inspect_kernel(&text(self, source)?)))
    }

    fn ahead(&self, event: &Event) {
        match event {
            Event::ModuleProposed { answer, .. } => {
                let _ = self.blob(answer.sample);
                let _ = match (answer.source, self.tracked.get()) {
                    (Some(id), Some(tracked)) => self.module_source(id, tracked).map(drop),
                    (Some(id), None) => self.blob(id).map(drop),
                    (None, _) => Ok(()),
                };
            }
            Event::KernelWritten { answer, .. } => {
                let _ = self.blob(answer.sample);
                let _ = answer.source.map(|id| self.kernel_source(id));
            }
            event => event.blobs().into_iter().for_each(|id| drop(self.sound(id))),
        }
    }
}
