//! What a log of the judge's service adds up to: which jobs wait, in what order, and what became of
//! the others. Which of them run just now is not in the log: after a restart they wait again.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::event::{Event, JobSpec, Outcome};
use crate::ids::{BlobId, Digest, JobId, Seq};

#[cfg(test)]
mod tests;

/// A job without an end.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    /// What is wanted.
    pub spec: JobSpec,
    /// How often the world failed at it.
    pub attempts: u32,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// With a verdict.
    Judged {
        /// The verdict's word.
        outcome: Outcome,
        /// The result as JSON.
        result: BlobId,
    },
    /// It was cancelled before it had one.
    Cancelled,
    /// The world failed too often. Whoever submits it again has it tried again.
    GivenUp {
        /// How often.
        attempts: u32,
        /// The last time, why.
        error: String,
    },
}

/// Where a job stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// It waits, or runs.
    Pending(Pending),
    /// It is over.
    Ended(End),
}

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Where it was taken in, the last time.
    pub at: Seq,
    /// Higher is sooner.
    pub priority: i32,
    /// Names what is judged and how; the same for two submissions that ask for the same.
    pub wants: Digest,
    /// Where it stands.
    pub stage: Stage,
}

/// What becomes of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is to be recorded: a new job, or one again that has no verdict.
    Queue,
    /// It is there already.
    Known,
    /// The id stands for something else.
    Conflict,
}

/// How many jobs are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Without an end.
    pub pending: u64,
    /// With a verdict.
    pub judged: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Given up.
    pub given_up: u64,
}

/// All jobs of a log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Jobs {
    last: Seq,
    jobs: BTreeMap<JobId, Job>,
    queue: BTreeMap<(Reverse<i32>, Seq), JobId>,
    arrivals: BTreeMap<Seq, JobId>,
    counts: Counts,
}

impl JobSpec {
    /// Names what is judged and how, without its priority.
    pub fn wants(&self) -> Digest {
        let JobSpec { reference, candidate, backend, profile, seed, trials, timing, priority: _ } =
            self;
        let how = format!("{backend:?}/{profile:?}/{seed}/{trials}/{timing}");
        Digest::of(&[&reference.0, &candidate.0, how.as_bytes()].concat())
    }
}

impl Jobs {
    /// Position of the last event.
    pub fn last(&self) -> Seq {
        self.last
    }

    /// A job, if there is one with this id.
    pub fn get(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// How many are where.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The first job in the queue that is not to be `skipped`: by priority, then by arrival.
    pub fn next(&self, skipped: impl Fn(JobId) -> bool) -> Option<(JobId, &Pending)> {
        self.queue.values().filter(|id| !skipped(**id)).find_map(|id| {
            match &self.jobs.get(id)?.stage {
                Stage::Pending(pending) => Some((*id, pending)),
                Stage::Ended(_) => None,
            }
        })
    }

    /// Jobs that were taken in after `after`, in that order.
    pub fn after(&self, after: Seq) -> impl Iterator<Item = (JobId, &Job)> {
        let from = Seq(after.0.saturating_add(1));
        self.arrivals.range(from..).filter_map(|(_, id)| Some((*id, self.jobs.get(id)?)))
    }

    /// What becomes of a submission of `spec` as `id`.
    pub fn admit(&self, id: JobId, spec: &JobSpec) -> Admission {
        match self.jobs.get(&id) {
            None => Admission::Queue,
            Some(job) if job.wants != spec.wants() => Admission::Conflict,
            Some(Job { stage: Stage::Ended(End::Cancelled | End::GivenUp { .. }), .. }) => {
                Admission::Queue
            }
            Some(_) => Admission::Known,
        }
    }

    /// Why `event` cannot be the next one, if it cannot.
    pub fn check(&self, event: &Event) -> Result<(), String> {
        match event {
            Event::ServiceStarted { .. } => Ok(()),
            Event::JobSubmitted { job, spec, .. } => match self.admit(*job, spec) {
                Admission::Queue => Ok(()),
                Admission::Known => Err(format!("the job {job} was taken in already")),
                Admission::Conflict => Err(format!("the job {job} is another one")),
            },
            Event::JobJudged { job, .. } | Event::JobCancelled { job } => {
                self.pending(*job).map(|_| ())
            }
            Event::JobFailed { job, attempt, .. } => {
                let before = self.pending(*job)?.attempts;
                let next = *attempt == before + 1;
                next.then_some(()).ok_or_else(|| format!("attempt {attempt} follows {before}"))
            }
            other => Err(format!("{} belongs in a run, not in a log of jobs", other.name())),
        }
    }

    /// Remembers what happened at `seq`. An event that cannot follow changes nothing.
    pub fn apply(&mut self, seq: Seq, event: &Event) -> Result<(), String> {
        if seq.0 != self.last.0 + 1 {
            return Err(format!("the last one was {}", self.last));
        }
        self.check(event)?;
        self.last = seq;
        match event {
            Event::JobSubmitted { job, spec, .. } => self.take_in(*job, seq, spec),
            Event::JobJudged { job, outcome, result } => {
                self.end(*job, End::Judged { outcome: *outcome, result: *result });
            }
            Event::JobCancelled { job } => self.end(*job, End::Cancelled),
            Event::JobFailed { job, attempt, error, given_up: true } => {
                self.end(*job, End::GivenUp { attempts: *attempt, error: error.clone() });
            }
            Event::JobFailed { job, attempt, .. } => {
                if let Some(Job { stage: Stage::Pending(pending), .. }) = self.jobs.get_mut(job) {
                    pending.attempts = *attempt;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn pending(&self, id: JobId) -> Result<&Pending, String> {
        match self.jobs.get(&id).map(|job| &job.stage) {
            Some(Stage::Pending(pending)) => Ok(pending),
            Some(Stage::Ended(_)) => Err(format!("the job {id} is over")),
            None => Err(format!("there is no job {id}")),
        }
    }

    fn take_in(&mut self, id: JobId, at: Seq, spec: &JobSpec) {
        let stage = Stage::Pending(Pending { spec: spec.clone(), attempts: 0 });
        let job = Job { at, priority: spec.priority, wants: spec.wants(), stage };
        if let Some(before) = self.jobs.insert(id, job) {
            self.arrivals.remove(&before.at);
            match before.stage {
                Stage::Ended(End::Cancelled) => self.counts.cancelled -= 1,
                Stage::Ended(End::GivenUp { .. }) => self.counts.given_up -= 1,
                Stage::Ended(End::Judged { .. }) | Stage::Pending(_) => {}
            }
        }
        self.arrivals.insert(at, id);
        self.queue.insert((Reverse(spec.priority), at), id);
        self.counts.pending += 1;
    }

    fn end(&mut self, id: JobId, end: End) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        self.queue.remove(&(Reverse(job.priority), job.at));
        self.counts.pending -= 1;
        match end {
            End::Judged { .. } => self.counts.judged += 1,
            End::Cancelled => self.counts.cancelled += 1,
            End::GivenUp { .. } => self.counts.given_up += 1,
        }
        job.stage = Stage::Ended(end);
    }
}
