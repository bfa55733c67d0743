//! The judge: owns the warm process, the private folder and the cache.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cache::Cache;
use crate::config::Config;
use crate::device::Device;
use crate::error::Error;
use crate::lease::{Held, Lease, Whole};
use crate::places::{Parked, Place, Places};
use crate::probe::Rates;
use crate::reference::Outcome;
use crate::scratch::Scratch;
use crate::session::{Answer, Session};
use crate::strain::{Lingerer, Strain};
use crate::toolchain::Toolchain;
use crate::wire::Handed;
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
    pub(crate) lease: Lease,
    pub(crate) strain: Arc<Strain>,
    /// Workers that open their device: the driver does one after the other in any case, and where few
    /// do so at once the first of them is ready soon.
    opening: Places,
    /// Workers that have run a reference and wait to be timed beside a candidate.
    pub(crate) parked: Parked,
    slots: Places,
    /// Since when the device is in quarantine.
    pub(crate) unwell: Mutex<Option<Instant>>,
    pub(crate) rates: Mutex<Option<Rates>>,
}

/// So many workers open their device at once. Of two, four, six and twelve the fastest on an H200 with
/// 16 cores.
const OPENING: usize = 4;
/// After this long on the device a worker no longer keeps others from having it alone.
const LINGERS: Duration = Duration::from_millis(400);
const LINGER_LOOKS: Duration = Duration::from_millis(20);
/// Nobody waits longer for those who linger before it.
const LOST: Duration = Duration::from_secs(120);

impl Judge {
    /// Makes the private folder and starts the warm process (seconds: it imports torch).
    pub fn new(config: Config) -> Result<Self, Error> {
        if !config.python.exists() {
            return Err(Error::PythonMissing(config.python));
        }
        let scratch = Scratch::new(&config.scratch)?;
        let device = Device::detect(config.force_cpu);
        let zygote = Zygote::start(&config, &device, scratch.path())?;
        Ok(Self {
            references: Mutex::new(Cache::new(config.cache_bytes)),
            running: Mutex::new(HashMap::new()),
            builds: Mutex::new(Cache::new(config.cache_bytes)),
            zygote: Mutex::new(Some(zygote)),
            lease: Lease::default(),
            strain: Arc::default(),
            opening: Places::new(OPENING),
            parked: Parked::new(config.workers.max(1)),
            slots: Places::new(config.workers.max(1)),
            unwell: Mutex::new(None),
            rates: Mutex::new(None),
            config,
            scratch,
            device,
        })
    }

    /// Waits for a free place among the jobs that run at once.
    pub(crate) fn slot(&self) -> Place<'_> {
        self.slots.take()
    }

    /// Forks a worker; starts the warm process again if it has died.
    pub(crate) fn worker(&self, role: &str) -> Result<Session, Error> {
        let start = Instant::now();
        let needs_device =
            matches!(role, "module" | "kernel" | "probe") && self.device.kind() != "cpu";
        // It opens its device as soon as it is there.
        let _opening = needs_device.then(|| self.opening.take());
        let mut zygote = lock(&self.zygote);
        if zygote.is_none() {
            *zygote = Some(Zygote::start(&self.config, &self.device, self.scratch.path())?);
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
        let forked_us = elapsed_us(start);
        let session =
            Session::start(forked, self.config.file_mib << 20, self.config.import_timeout)?;
        let us = elapsed_us(start);
        tracing::trace!(role, worker = session.id(), forked_us, us, "ready");
        Ok(session)
    }

    /// Puts a question to a worker. A worker that went because the warm process went is the
    /// world's fault, never its own.
    pub(crate) fn ask(
        &self,
        session: &mut Session,
        question: Value,
        blobs: &[(&str, Handed<'_>)],
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let name = question["time"].as_str().or(question["do"].as_str()).unwrap_or("?").to_owned();
        let start = Instant::now();
        let answer = session.ask(question, blobs, timeout)?;
        tracing::trace!(question = name, worker = session.id(), us = elapsed_us(start), "asked");
        self.blameless(answer)
    }

    fn blameless(&self, answer: Answer) -> Result<Answer, Error> {
        if matches!(answer, Answer::Gone(_)) {
            let mut zygote = lock(&self.zygote);
            if !zygote.as_ref().is_some_and(Zygote::is_alive) {
                *zygote = None;
                return Err(Error::WorkerDied("its workers went with it".to_owned()));
            }
        }
        Ok(answer)
    }

    /// Puts a question whose answer needs the device together with others. The worker says when it wants
    /// it, when it leaves it (to compile, to hand over), and when its autotuner measures and must be alone.
    /// Waiting to have it is not its time. With the device it has `patience` between two such words, in all
    /// it has `timeout`.
    pub(crate) fn ask_sharing(
        &self,
        session: &mut Session,
        question: Value,
        blobs: &[(&str, Handed<'_>)],
        (patience, timeout): (Duration, Duration),
    ) -> Result<Answer, Error> {
        if self.device.kind() == "cpu" {
            return self.ask(session, question, blobs, timeout);
        }
        let name = question["do"].as_str().unwrap_or("?").to_owned();
        let mut held = None;
        let (before, asked) = (self.strain.moment(), Instant::now());
        let mut deadline = asked + timeout;
        let mut has_device = false;
        session.put(question, blobs)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = match has_device {
                true => self.hear_on_device(session, &mut held, patience.min(left))?,
                false => session.hear(left)?,
            };
            match (&answer, &session.lingers) {
                (Answer::TimedOut, lingers) => {
                    session.disturbed |= self.strain.by_others(before);
                    lingers.iter().for_each(Lingerer::is_killed);
                }
                _ => session.lingers = None,
            }
            let Answer::Said(reply) = &answer else { return self.blameless(answer) };
            match reply.value["device"].as_str() {
                None => {
                    let us = elapsed_us(asked);
                    tracing::trace!(question = name, worker = session.id(), us, "asked");
                    return Ok(answer);
                }
                Some("free") => {
                    held = None;
                    has_device = false;
                }
                Some(wanted) => {
                    let start = Instant::now();
                    // Never two at once by one thread.
                    drop(held.take());
                    let alone = wanted == "alone";
                    held = Some(if alone { self.device_alone() } else { self.lease.shared() });
                    has_device = true;
                    // Whoever is timed just now may take long: that is not the worker's time.
                    deadline += start.elapsed();
                    session.tell("go");
                }
            }
        }
    }

    /// Waits for a worker that uses the device. One that takes long does not keep the device from
    /// those who wait to be timed, and of those that take long the first may hold up the others: only
    /// its time runs out.
    fn hear_on_device(
        &self,
        session: &mut Session,
        held: &mut Option<Held<'_>>,
        patience: Duration,
    ) -> Result<Answer, Error> {
        if let Some(answer) = session.listen(LINGERS.min(patience))? {
            return Ok(answer);
        }
        *held = None;
        let start = Instant::now();
        let mut spent = LINGERS.min(patience);
        let mut first = session.lingers.get_or_insert_with(|| self.strain.lingerer()).is_first();
        while !first || spent < patience {
            if start.elapsed() > LOST {
                return Err(Error::Overloaded("the device keeps many waiting".to_owned()));
            }
            if let Some(answer) = session.listen(LINGER_LOOKS)? {
                return Ok(answer);
            }
            if first {
                spent += LINGER_LOOKS;
            }
            first = session.lingers.as_ref().is_some_and(Lingerer::is_first);
        }
        session.hear(Duration::ZERO)
    }

    /// The device for this thread alone, when nobody lingers on it.
    pub(crate) fn device_alone(&self) -> Held<'_> {
        self.unstrained(|| self.lease.alone())
    }

    /// The same for all that this thread does.
    pub(crate) fn whole_device(&self) -> Whole<'_> {
        self.unstrained(|| self.lease.whole())
    }

    /// Who waits for lingerers to end does not keep the device from others meanwhile. Some may begin to
    /// linger while it waits for its turn.
    fn unstrained<H>(&self, take: impl Fn() -> H) -> H {
        let start = Instant::now();
        loop {
            self.strain.settle();
            let held = take();
            if self.strain.is_none() || start.elapsed() > LOST {
                return held;
            }
        }
    }

    /// Isolation layers of the workers.
    pub fn layers(&self) -> Vec<String> {
        lock(&self.zygote).as_ref().map(|z| z.layers.clone()).unwrap_or_default()
    }

    /// Where kernels run: `cpu-interpreter` or the GPU's name.
    pub fn device(&self) -> &str {
        self.device.name()
    }

    /// What measurements depend on beside the sources: versions of the driver, python, torch, triton
    /// and nvcc, as far as they are there.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let mut found = lock(&self.zygote).as_ref().map(|z| z.versions.clone()).unwrap_or_default();
        found.insert("device".to_owned(), self.device().to_owned());
        if let Some(driver) = self.device.driver() {
            found.insert("driver".to_owned(), driver.to_owned());
        }
        if let Ok(tools) = Toolchain::find(&self.config.python) {
            found.insert("nvcc".to_owned(), tools.version());
        }
        found
    }

    /// The deadline of importing and of the first call, in which kernels are compiled.
    pub(crate) fn first_call_timeout(&self) -> Duration {
        self.config.import_timeout.max(self.config.trial_timeout)
    }
}

fn elapsed_us(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// A panic elsewhere leaves nothing half done under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
