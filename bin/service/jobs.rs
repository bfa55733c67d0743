//! The jobs of the service: taken in, shown, cancelled and ended, each durably before anyone is told.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use events::event::{Actor, Draft, Event, JobSpec};
use events::ids::{BlobId, Digest, JobId, Seq};
use events::log::{Blobs, Log};
use events::service::{Admission, Counts, End, Job, Jobs, Pending, Stage};
use events::state::Illegal;
use serde_json::Value;
use tokio::sync::watch;

use super::refused::Refused;
use super::view::{self, View};

/// Records read at a time while folding.
const READ_LIMIT: usize = 1024;

/// A submission that was read and found well.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The job's id.
    pub id: JobId,
    /// The name that the client gave it.
    pub client: Option<String>,
    /// The reference's code.
    pub reference: String,
    /// The candidate's code.
    pub candidate: String,
    /// What is wanted.
    pub spec: JobSpec,
}

/// How many are where, for `GET /v1/judge` and `/health`.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// What the log holds.
    pub counts: Counts,
    /// How many run just now.
    pub running: usize,
    /// How many may wait.
    pub room: usize,
}

/// What is not in the log.
#[derive(Default)]
pub(super) struct Inner {
    pub(super) jobs: Jobs,
    pub(super) running: BTreeSet<JobId>,
    /// Mean time of a verdict, in seconds; newer ones weigh more.
    pub(super) mean: f64,
    pub(super) stopping: bool,
}

/// All jobs, and the only way to change them.
pub struct Service {
    log: Arc<dyn Log>,
    blobs: Arc<dyn Blobs>,
    room: usize,
    workers: usize,
    /// Held from the check of an event to its appearance in `inner`. Apart from `inner`, so that
    /// nobody who only looks waits for a disk.
    writing: Mutex<()>,
    pub(super) inner: Mutex<Inner>,
    pub(super) work: Condvar,
    changed: watch::Sender<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// Folds what the log holds. `room` jobs may wait, `workers` run at once.
    ///
    /// # Errors
    /// The log cannot be read, or is not one of this service.
    pub fn open(
        log: Arc<dyn Log>,
        blobs: Arc<dyn Blobs>,
        room: usize,
        workers: usize,
    ) -> anyhow::Result<Self> {
        let mut jobs = Jobs::default();
        loop {
            let read = log.read_after(jobs.last(), READ_LIMIT)?;
            for recorded in &read {
                let (seq, event) = (recorded.seq, recorded.event.name());
                let wrong = |why| Illegal { seq, event, why };
                jobs.apply(seq, &recorded.event).map_err(wrong)?;
            }
            if read.is_empty() {
                break;
            }
        }
        let inner = Mutex::new(Inner { jobs, mean: 2.0, ..Inner::default() });
        let (writing, work, changed) = (Mutex::new(()), Condvar::new(), watch::channel(0).0);
        Ok(Self { log, blobs, room, workers, writing, inner, work, changed })
    }

    /// Notes with what is judged from here on.
    ///
    /// # Errors
    /// It cannot be made durable.
    pub fn started(&self, environment: Vec<(String, String)>) -> Result<(), Refused> {
        let code = env!("CARGO_PKG_VERSION").to_owned();
        self.record(&lock(&self.writing), vec![Event::ServiceStarted { code, environment }])
    }

    /// Takes all of `wanted` in, or none. What is there already is not taken in twice.
    ///
    /// # Errors
    /// No room, an id that stands for another job, a disk that does not take it.
    pub fn submit(&self, wanted: Vec<Submission>) -> Result<Vec<View>, Refused> {
        // Once before anything is written, so that a full queue costs no disk.
        let new = self.admit(&wanted)?;
        let mut stored = BTreeSet::new();
        for submission in wanted.iter().filter(|w| new.contains(&w.id)) {
            for source in [&submission.reference, &submission.candidate] {
                if stored.insert(Digest::of(source.as_bytes())) {
                    self.blobs.put(source.as_bytes())?;
                }
            }
        }
        let writing = lock(&self.writing);
        let new = self.admit(&wanted)?;
        let ids: Vec<JobId> = wanted.iter().map(|w| w.id).collect();
        let events = wanted
            .into_iter()
            .filter(|w| new.contains(&w.id))
            .map(|w| Event::JobSubmitted { job: w.id, client: w.client, spec: w.spec });
        self.record(&writing, events.collect())?;
        ids.into_iter().map(|id| self.view(id)).collect()
    }

    /// Which of `wanted` are new, if there is room for them.
    fn admit(&self, wanted: &[Submission]) -> Result<BTreeSet<JobId>, Refused> {
        let inner = lock(&self.inner);
        if inner.stopping {
            return Err(Refused::Stopping);
        }
        let mut new = BTreeSet::new();
        for submission in wanted {
            match inner.jobs.admit(submission.id, &submission.spec) {
                Admission::Queue => drop(new.insert(submission.id)),
                Admission::Known => {}
                Admission::Conflict => return Err(Refused::Conflict(submission.id)),
            }
        }
        if new.len() > self.room {
            let (message, room) = (format!("{} new jobs in one batch", new.len()), self.room);
            return Err(Refused::bad(
                "jobs",
                message,
                format!("the queue never has room for more than {room}"),
            ));
        }
        let waiting = inner.jobs.counts().pending as usize - inner.running_pending();
        let over = (waiting + new.len()).saturating_sub(self.room);
        if over > 0 && !new.is_empty() {
            let seconds = (inner.mean * over as f64 / self.workers.max(1) as f64).ceil();
            return Err(Refused::Full {
                room: self.room,
                retry_after: seconds.clamp(1.0, 60.0) as u64,
            });
        }
        Ok(new)
    }

    /// Ends a job without a verdict. What of it runs is let finish, and its result thrown away.
    ///
    /// # Errors
    /// There is no such job, or it has a verdict.
    pub fn cancel(&self, id: JobId) -> Result<View, Refused> {
        let writing = lock(&self.writing);
        match self.view(id)?.job.stage {
            Stage::Pending(_) => self.record(&writing, vec![Event::JobCancelled { job: id }])?,
            Stage::Ended(End::Cancelled) => {}
            Stage::Ended(_) => return Err(Refused::Over(id)),
        }
        drop(writing);
        self.view(id)
    }

    /// A job as it stands.
    ///
    /// # Errors
    /// There is no such job.
    pub fn view(&self, id: JobId) -> Result<View, Refused> {
        let inner = lock(&self.inner);
        let job = inner.jobs.get(id).ok_or(Refused::Unknown(id))?.clone();
        Ok(View { id, running: inner.running.contains(&id), job })
    }

    /// At most `limit` jobs that arrived after `after` and are in `state`, in order of arrival.
    pub fn list(&self, after: Seq, limit: usize, state: Option<&str>) -> Vec<View> {
        let inner = lock(&self.inner);
        let jobs = inner.jobs.after(after).map(|(id, job)| (id, inner.running.contains(&id), job));
        let wanted = jobs.filter(|(_, running, job)| {
            state.is_none_or(|state| state == view::state(&job.stage, *running))
        });
        let view = |(id, running, job): (JobId, bool, &Job)| View { id, running, job: job.clone() };
        wanted.take(limit).map(view).collect()
    }

    /// How many jobs are where.
    pub fn figures(&self) -> Figures {
        let inner = lock(&self.inner);
        let running = inner.running_pending();
        Figures { counts: inner.jobs.counts(), running, room: self.room }
    }

    /// The whole object of a job, with its result if it has one.
    ///
    /// # Errors
    /// The result cannot be read.
    pub fn object(&self, view: &View) -> Result<Value, Refused> {
        let mut object = view.line();
        object["result"] = match &view.job.stage {
            Stage::Ended(End::Judged { result, .. }) => self.json(*result)?,
            Stage::Ended(End::GivenUp { error, .. }) => crate::judge::world_failed(error),
            Stage::Ended(End::Cancelled) | Stage::Pending(_) => Value::Null,
        };
        Ok(object)
    }

    fn json(&self, id: BlobId) -> Result<Value, Refused> {
        let bytes = self.blobs.get(id)?;
        serde_json::from_slice(&bytes).map_err(|e| Refused::Broken(format!("result {id}: {e}")))
    }

    /// Told after each change, and when the service stops.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Nothing new is begun from now on, and nobody is kept waiting.
    pub fn stop(&self) {
        lock(&self.inner).stopping = true;
        self.tell();
    }

    /// Whether it was stopped.
    pub fn stopping(&self) -> bool {
        lock(&self.inner).stopping
    }

    pub(super) fn blobs(&self) -> &dyn Blobs {
        self.blobs.as_ref()
    }

    pub(super) fn tell(&self) {
        self.work.notify_all();
        self.changed.send_modify(|count| *count += 1);
    }

    /// Records how a job went, if it still waits for that; says whether it did.
    pub(super) fn end(
        &self,
        id: JobId,
        event: impl FnOnce(&Pending) -> Event,
    ) -> Result<bool, Refused> {
        let writing = lock(&self.writing);
        let Stage::Pending(pending) = self.view(id)?.job.stage else { return Ok(false) };
        self.record(&writing, vec![event(&pending)])?;
        Ok(true)
    }

    /// Makes `events` durable as one, then shows them. An error changes nothing.
    fn record(&self, _writing: &MutexGuard<'_, ()>, events: Vec<Event>) -> Result<(), Refused> {
        let broken = |why| Refused::Broken(format!("an event cannot follow: {why}"));
        {
            let inner = lock(&self.inner);
            events.iter().try_for_each(|event| inner.jobs.check(event)).map_err(broken)?;
        }
        let draft = |event| Draft { cause: None, actor: Actor::JudgeService, event };
        let recorded = self.log.append(events.into_iter().map(draft).collect())?;
        let mut inner = lock(&self.inner);
        for record in &recorded {
            inner.jobs.apply(record.seq, &record.event).map_err(broken)?;
        }
        drop(inner);
        self.tell();
        Ok(())
    }
}

impl Inner {
    /// Jobs that run and were not cancelled meanwhile.
    fn running_pending(&self) -> usize {
        let pending = |id: &&JobId| {
            self.jobs.get(**id).is_some_and(|job| matches!(job.stage, Stage::Pending(_)))
        };
        self.running.iter().filter(pending).count()
    }
}
