//! Judges what waits. A failure of the world is tried again and never a verdict.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use actors::ports::MeasureJob;
use events::config::Rules;
use events::event::{Event, JobSpec, Outcome};
use events::ids::JobId;
use events::log::LogError;
use events::outcome::Backend;
use serde_json::Value;

use super::jobs::Service;
use super::refused::Refused;
use crate::judge::KeckJudge;

/// How often the world may fail at a job.
pub const ATTEMPTS: u32 = 3;
/// How long a log that takes nothing is left alone.
const DISK_PAUSE: Duration = Duration::from_secs(1);
/// Longest text of a failure that is recorded, in bytes.
const ERROR_MAX: usize = 2048;

/// Says what is to be said of one pair: the object that `kernelzero judge --json` prints.
pub trait Answers: Send + Sync {
    /// Judges one pair; `backend`: what the candidate must be written in, if that matters.
    fn answer(&self, job: &MeasureJob, profile: Rules, backend: Option<Backend>) -> Value;
}

impl Answers for KeckJudge {
    fn answer(&self, job: &MeasureJob, profile: Rules, backend: Option<Backend>) -> Value {
        KeckJudge::answer(self, job, profile, backend)
    }
}

/// Judges until the service is stopped.
pub fn work(service: &Service, judge: &dyn Answers) {
    while let Some((id, spec)) = claim(service) {
        let began = Instant::now();
        let found = judged(service, judge, &spec);
        let failed = found.is_err();
        // What a full disk refuses is kept until it is taken: it need not be judged again.
        while let Err(error) = record(service, id, &found) {
            tracing::error!(%id, %error, "a result cannot be recorded yet");
            if service.stopping() {
                break;
            }
            pause(service, DISK_PAUSE);
        }
        if failed {
            // The job stays claimed meanwhile, so that nobody hammers a world that is down.
            pause(service, Duration::from_millis(500));
        }
        let mut inner = service.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.running.remove(&id);
        inner.mean += 0.1 * (began.elapsed().as_secs_f64() - inner.mean);
        drop(inner);
        service.tell();
    }
}

/// The next job, once there is one; none when the service is stopped.
fn claim(service: &Service) -> Option<(JobId, JobSpec)> {
    let mut inner = service.inner.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if inner.stopping {
            return None;
        }
        let next = inner.jobs.next(|id| inner.running.contains(&id));
        if let Some((id, pending)) = next {
            let spec = pending.spec.clone();
            inner.running.insert(id);
            drop(inner);
            service.tell();
            return Some((id, spec));
        }
        inner = service.work.wait(inner).unwrap_or_else(PoisonError::into_inner);
    }
}

/// The verdict's word and the whole result, or why the world failed.
fn judged(
    service: &Service,
    judge: &dyn Answers,
    spec: &JobSpec,
) -> Result<(Outcome, String), String> {
    let source = |id| -> Result<String, String> {
        let bytes = service.blobs().get(id).map_err(|e: LogError| e.to_string())?;
        String::from_utf8(bytes).map_err(|e| e.to_string())
    };
    let job = MeasureJob {
        module_source: source(spec.reference)?,
        kernel_source: source(spec.candidate)?,
        // Read from the candidate's source.
        backend: Backend::Triton,
        seed: spec.seed,
        trials: spec.trials,
        timing: spec.timing,
    };
    let answer = catch_unwind(AssertUnwindSafe(|| judge.answer(&job, spec.profile, spec.backend)));
    let answer = answer.map_err(|_| "the judge panicked: its log tells more".to_owned())?;
    match serde_json::from_value::<Outcome>(answer["outcome"].clone()) {
        Ok(outcome) => Ok((outcome, answer.to_string())),
        Err(_) => Err(answer["reason"].as_str().unwrap_or("the judge gave no reason").to_owned()),
    }
}

fn record(
    service: &Service,
    job: JobId,
    found: &Result<(Outcome, String), String>,
) -> Result<(), Refused> {
    match found {
        Ok((outcome, text)) => {
            let result = service.blobs().put(text.as_bytes())?;
            service.end(job, |_| Event::JobJudged { job, outcome: *outcome, result })?;
        }
        Err(error) => {
            let mut end = error.len().min(ERROR_MAX);
            while !error.is_char_boundary(end) {
                end -= 1;
            }
            let error = error[..end].to_owned();
            tracing::warn!(id = %job, %error, "the world failed at a job");
            service.end(job, |pending| {
                let attempt = pending.attempts + 1;
                Event::JobFailed { job, attempt, error, given_up: attempt >= ATTEMPTS }
            })?;
        }
    }
    Ok(())
}

/// Waits for `time`, or until the service is stopped.
fn pause(service: &Service, time: Duration) {
    let end = Instant::now() + time;
    let mut inner = service.inner.lock().unwrap_or_else(PoisonError::into_inner);
    while !inner.stopping {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let woken = service.work.wait_timeout(inner, left);
        inner = woken.unwrap_or_else(PoisonError::into_inner).0;
    }
}
