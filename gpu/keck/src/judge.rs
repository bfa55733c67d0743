//! The judge: owns the warm process, the private folder and the cache.

use std::collections::HashMap;
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::time::Duration;

use crate::cache::Cache;
use crate::config::Config;
use crate::device::Device;
use crate::error::Error;
use crate::reference::Outcome;
use crate::scratch::Scratch;
use crate::session::{Answer, Session};
use crate::zygote::Zygote;

/// Judges modules and kernels. Made once, used from several threads.
#[derive(Debug)]
pub struct Judge {
    pub(crate) config: Config,
    pub(crate) scratch: Scratch,
    pub(crate) device: Device,
    pub(crate) references: Mutex<Cache<Outcome>>,
    /// One lock for each reference that runs just now.
    pub(crate) running: Mutex<HashMap<blake3::Hash, Arc<Mutex<()>>>>,
    pub(crate) builds: Mutex<Cache<crate::compile::Compiled>>,
    zygote: Mutex<Option<Zygote>>,
    /// Who uses the device: many at once to be checked, one alone to be timed.
    lease: RwLock<()>,
    free: Mutex<usize>,
    freed: Condvar,
}

/// A place among the jobs that run at once.
#[derive(Debug)]
pub(crate) struct Slot<'a>(&'a Judge);

impl Judge {
    /// Makes the private folder and starts the warm process (seconds: it imports torch).
    pub fn new(config: Config) -> Result<Self, Error> {
        if !config.python.exists() {
            return Err(Error::PythonMissing(config.python));
        }
        let scratch = Scratch::new(&config.scratch)?;
        let device = Device::detect(config.force_cpu);
        let zygote = Zygote::start(&config, device.kind(), scratch.path())?;
        Ok(Self {
            references: Mutex::new(Cache::new(config.cache_bytes)),
            running: Mutex::new(HashMap::new()),
            builds: Mutex::new(Cache::new(config.cache_bytes)),
            zygote: Mutex::new(Some(zygote)),
            lease: RwLock::new(()),
            free: Mutex::new(config.workers.max(1)),
            freed: Condvar::new(),
            config,
            scratch,
            device,
        })
    }

    /// Waits for a free place.
    pub(crate) fn slot(&self) -> Slot<'_> {
        let mut free = lock(&self.free);
        while *free == 0 {
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Slot(self)
    }

    /// The device together with others. Never asked for twice by one thread.
    pub(crate) fn shared(&self) -> RwLockReadGuard<'_, ()> {
        self.lease.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device alone: waits until the others have ended what they do on it, and holds new ones
    /// back.
    pub(crate) fn exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.lease.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forks a worker; starts the warm process again if it has died.
    pub(crate) fn worker(&self, role: &str) -> Result<Session, Error> {
        let mut zygote = lock(&self.zygote);
        if zygote.is_none() {
            *zygote = Some(Zygote::start(&self.config, self.device.kind(), self.scratch.path())?);
        }
        let Some(warm) = zygote.as_mut() else {
            return Err(Error::Bug("no warm process after its start".to_owned()));
        };
        let forked = match warm.fork(role, self.config.memory_mib, self.scratch.path()) {
            Ok(forked) => forked,
            Err(error) => {
                *zygote = None;
                return Err(error);
            }
        };
        drop(zygote);
        let _shared = self.shared();
        Session::start(forked, self.config.file_mib << 20, self.config.import_timeout)
    }

    /// Puts a question to a worker. A worker that went because the warm process went is the
    /// world's fault, never its own.
    pub(crate) fn ask(
        &self,
        session: &mut Session,
        question: serde_json::Value,
        blobs: &[(&str, &[u8])],
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let answer = session.ask(question, blobs, timeout)?;
        if matches!(answer, Answer::Gone(_)) {
            let mut zygote = lock(&self.zygote);
            if !zygote.as_ref().is_some_and(Zygote::is_alive) {
                *zygote = None;
                return Err(Error::WorkerDied("its workers went with it".to_owned()));
            }
        }
        Ok(answer)
    }

    /// Isolation layers of the workers.
    pub fn layers(&self) -> Vec<String> {
        lock(&self.zygote).as_ref().map(|z| z.layers.clone()).unwrap_or_default()
    }

    /// Where kernels run: `cpu-interpreter` or the GPU's name.
    pub fn device(&self) -> &str {
        self.device.name()
    }

    /// The deadline of importing and of the first call, in which kernels are compiled.
    pub(crate) fn first_call_timeout(&self) -> Duration {
        self.config.import_timeout.max(self.config.trial_timeout)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *lock(&self.0.free) += 1;
        self.0.freed.notify_one();
    }
}

/// A panic elsewhere leaves nothing half done under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
