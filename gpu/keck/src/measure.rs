//! Running a candidate against a reference's recorded trials.

use std::time::{Duration, Instant};

use events::config::Rules;
use events::outcome::{
    Backend, Execution, Failure, FailureKind, Measurement, OutputStats, Timing, Trial,
};
use events::rules::verdict::verdict;
use serde_json::{Value, json};

use crate::compile::{self, Build};
use crate::error::Error;
use crate::fault;
use crate::judge::Judge;
use crate::purity::Seen;
use crate::reference::{AtFault, Reference, ReferenceTrial, derive};
use crate::session::{Answer, Reply, Session};
use crate::stats::compare;
use crate::tensors::Blob;

/// A kernel to measure.
#[derive(Clone, Debug)]
pub struct MeasureJob {
    /// The reference module's source.
    pub module_source: String,
    /// The candidate's source.
    pub kernel_source: String,
    /// Its language.
    pub backend: Backend,
    /// What [`Judge::build`] made of it.
    pub build: Build,
    /// All seeds are derived from this one.
    pub seed: u64,
    /// Trials: the task as given first, then changed ones.
    pub trials: usize,
    /// Whether to take times, where there is a GPU.
    pub timing: bool,
}

/// What a call on a GPU may take however fast its reference is.
const PATIENCE: Duration = Duration::from_secs(5);

/// What ends a candidate's run early.
pub(crate) enum Stop {
    /// Its own fault.
    Candidate(Failure),
    /// The world's.
    World(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::World(error)
    }
}

impl Judge {
    /// Measures a kernel: correctness on every trial, then times where they are asked for.
    pub fn measure(&self, job: &MeasureJob) -> Result<Measurement, Error> {
        let _slot = self.slot();
        let start = Instant::now();
        let (execution, products) = self.execution(job)?;
        Ok(Measurement {
            execution,
            layers: self.layers(),
            device: self.device().to_owned(),
            products,
            headers: job.build.headers(),
            wall_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// What happened, and whether the task has matrix products.
    fn execution(&self, job: &MeasureJob) -> Result<(Execution, bool), Error> {
        if let Build::Rejected(failure) = &job.build {
            return Ok((Execution::Failed(failure.clone()), false));
        }
        if job.backend == Backend::Cuda && self.device.kind() == "cpu" {
            return Ok((Execution::NoDevice, false));
        }
        let outcome = self.reference(&job.module_source, job.seed, job.trials)?;
        let reference = match outcome.as_ref() {
            Ok(reference) => reference,
            Err(AtFault(fault, text)) => {
                return Ok((Execution::TaskAtFault(*fault, text.clone()), false));
            }
        };
        let products = reference.products();
        match self.candidate(job, reference) {
            Ok(execution) => Ok((execution, products)),
            Err(Stop::Candidate(failure)) => Ok((Execution::Failed(failure), products)),
            Err(Stop::World(error)) => Err(error),
        }
    }

    fn candidate(&self, job: &MeasureJob, reference: &Reference) -> Result<Execution, Stop> {
        let mut session = self.worker("kernel")?;
        let result = self.run_candidate(job, reference, &mut session);
        // For people who debug a candidate; nothing is decided from it.
        tracing::debug!(printed = session.printed(), "candidate ended");
        result
    }

    fn run_candidate(
        &self,
        job: &MeasureJob,
        reference: &Reference,
        session: &mut Session,
    ) -> Result<Execution, Stop> {
        let own = self.load_candidate(job, reference, session)?;
        // The one trial that runs without the op log is not known to the candidate in advance.
        let unlogged = derive(job.seed, "unlogged", 0) as usize % reference.trials.len().max(1);
        let mut trials = Vec::new();
        let mut launches = 0;
        let mut first_outputs = Vec::new();
        for (index, trial) in reference.trials.iter().enumerate() {
            let logged = index != unlogged || reference.trials.len() == 1;
            let mut reply = self.challenge(session, trial, logged, index == 0)?;
            let seen = Seen::of(&reply.value, logged);
            if let Some(failure) = seen.check(job.backend, &own) {
                return Err(Stop::Candidate(failure));
            }
            let count = seen.own_launches(job.backend, &own).unwrap_or(0);
            launches = launches.max(u32::try_from(count).unwrap_or(u32::MAX));
            let outputs = reply.take("outputs").unwrap_or_default();
            let after = reply.take("after").unwrap_or_default();
            trials.push(judge_trial(trial, &reply.value, &outputs, &after)?);
            if reply.value["fenced"] != true {
                let why = "a kernel wrote past the end of its output";
                return Err(Stop::Candidate(Failure::new(FailureKind::IllegalAccess, why)));
            }
            if index == 0 {
                first_outputs = outputs;
            } else if index == 1 {
                self.outputs_are_new(session, &first_outputs)?;
            }
        }
        let (timing, checked) = match self.worth_timing(&trials, launches, reference) {
            true => self.timing(job, session, reference)?,
            // Nobody asks how fast a wrong answer is.
            false => (Timing::NotTaken, Vec::new()),
        };
        trials.extend(checked);
        if matches!(timing, Timing::Taken(_)) {
            trials.push(self.recheck(session, reference)?);
        }
        Ok(Execution::Ran { trials, launches, timing })
    }

    /// Whether either profile would call these trials right.
    pub(crate) fn worth_timing(
        &self,
        trials: &[Trial],
        launches: u32,
        reference: &Reference,
    ) -> bool {
        let trials = trials.to_vec();
        let so_far = Measurement {
            execution: Execution::Ran { trials, launches, timing: Timing::NotTaken },
            layers: Vec::new(),
            device: self.device().to_owned(),
            products: reference.products(),
            headers: None,
            wall_ms: 0,
        };
        let right = |rules| verdict(&so_far, rules).is_some_and(|found| found.is_correct());
        right(Rules::Strict) || right(Rules::Paper)
    }

    /// Loads a candidate; gives the names of its CUDA kernels.
    fn load_candidate(
        &self,
        job: &MeasureJob,
        reference: &Reference,
        session: &mut Session,
    ) -> Result<Vec<String>, Stop> {
        let artifacts = compile::artifacts(&job.build)?;
        let modules: serde_json::Map<String, Value> = artifacts
            .iter()
            .map(|a| (a.key.clone(), json!({ "name": a.name, "file": a.file })))
            .collect();
        let question = json!({
            "do": "load", "modules": modules, "seed": derive(job.seed, "candidate", 0),
        });
        let state = reference.trials.first().map(|t| t.state.as_slice()).unwrap_or_default();
        let mut blobs: Vec<(&str, &[u8])> = vec![
            ("source", job.kernel_source.as_bytes()),
            ("init", &reference.init),
            ("state", state),
        ];
        blobs.extend(artifacts.iter().map(|a| (a.file.as_str(), a.bytes.as_slice())));
        heard(self.ask(session, question, &blobs, self.config.import_timeout)?)?;
        Ok(artifacts.into_iter().flat_map(|a| a.kernels).collect())
    }

    /// A kernel that takes far longer than its reference is as good as one that hangs, and holds up
    /// whoever waits for the device. The interpreter is slow by nature.
    fn call_timeout(&self, trial: &ReferenceTrial) -> Duration {
        let limit = self.config.trial_timeout;
        if self.device.kind() == "cpu" { limit } else { limit.min(PATIENCE + trial.wall * 20) }
    }

    /// Hands over the inputs of one trial and waits for the outputs.
    fn challenge(
        &self,
        session: &mut Session,
        trial: &ReferenceTrial,
        log: bool,
        keep: bool,
    ) -> Result<Reply, Stop> {
        let expected = read(&trial.outputs)?;
        let sizes: Vec<usize> =
            (0..expected.entries.len()).map(|i| expected.raw(i).len()).collect();
        let question = json!({ "do": "call", "log": log, "keep": keep, "sizes": sizes });
        let blobs: [(&str, &[u8]); 2] = [("inputs", &trial.inputs), ("state", &trial.state)];
        let timeout = if keep { self.first_call_timeout() } else { self.call_timeout(trial) };
        let _shared = self.shared();
        heard(self.ask(session, question, &blobs, timeout)?)
    }

    /// The first result, still alive after the second call, must not have changed.
    fn outputs_are_new(&self, session: &mut Session, first: &[u8]) -> Result<(), Stop> {
        let question = json!({ "do": "kept" });
        let mut reply = heard(self.ask(session, question, &[], self.config.trial_timeout)?)?;
        if reply.take("outputs").as_deref() == Some(first) {
            return Ok(());
        }
        let detail = "reused-output: a second call changed the result of the first";
        Err(Stop::Candidate(Failure::new(FailureKind::Impure, detail)))
    }

    /// One more challenge after the timing loop: the answers must still be right.
    fn recheck(&self, session: &mut Session, reference: &Reference) -> Result<Trial, Stop> {
        let trial = reference.trials.last().ok_or_else(|| Error::Bug("no trial".to_owned()))?;
        let mut reply = self.challenge(session, trial, false, false)?;
        let outputs = reply.take("outputs").unwrap_or_default();
        let after = reply.take("after").unwrap_or_default();
        judge_trial(trial, &reply.value, &outputs, &after)
    }
}

/// A candidate's answer, or its failure.
pub(crate) fn heard(answer: Answer) -> Result<Reply, Stop> {
    let stop = |kind, detail: &str| Stop::Candidate(Failure::new(kind, detail));
    match answer {
        Answer::TimedOut => Err(stop(FailureKind::Timeout, "the deadline passed")),
        Answer::Gone(why) => Err(stop(FailureKind::SandboxViolation, why)),
        Answer::Said(reply) => match fault::failure(&reply.value) {
            Some(failure) => Err(Stop::Candidate(failure)),
            None => Ok(reply),
        },
    }
}

/// Compares one answer.
fn judge_trial(
    trial: &ReferenceTrial,
    claims: &Value,
    outputs: &[u8],
    after: &[u8],
) -> Result<Trial, Stop> {
    let fail = |kind, detail: String| Stop::Candidate(Failure::new(kind, detail));
    let odd = claims["kinds"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(kind) = odd.into_iter().find(|k| *k != "plain") {
        return Err(fail(FailureKind::WrongDtype, fault::scrub(kind)));
    }
    let mut stats = compare_outputs(trial, outputs)?;
    stats.extend(compare_inputs(trial, after)?);
    Ok(Trial { seed: trial.seed, varied: trial.varied.clone(), outputs: stats })
}

/// Compares outputs. Metadata must be equal before any value is looked at.
pub(crate) fn compare_outputs(
    trial: &ReferenceTrial,
    outputs: &[u8],
) -> Result<Vec<OutputStats>, Stop> {
    let fail = |kind, detail: String| Stop::Candidate(Failure::new(kind, detail));
    let expected = read(&trial.outputs)?;
    let lies = || fail(FailureKind::SandboxViolation, "its outputs are not well formed".to_owned());
    let found = Blob::read(outputs).ok_or_else(lies)?;
    let count = expected.entries.len();
    if found.entries.len() != count {
        let text = format!("{} outputs instead of {count}", found.entries.len());
        return Err(fail(FailureKind::WrongShape, text));
    }
    for (index, (want, have)) in expected.entries.iter().zip(&found.entries).enumerate() {
        if want.shape != have.shape {
            let text = format!("output {index}: {:?} instead of {:?}", have.shape, want.shape);
            return Err(fail(FailureKind::WrongShape, text));
        }
        if want.dtype != have.dtype || want.device != have.device {
            let text = format!(
                "output {index}: {} on {} instead of {} on {}",
                have.dtype, have.device, want.dtype, want.device
            );
            return Err(fail(FailureKind::WrongDtype, text));
        }
        if !found.is_dense(index) {
            return Err(lies());
        }
    }
    Ok((0..count).map(|i| compare(&expected, &found, i)).collect())
}

/// Inputs that the reference leaves alone must have the same bytes; those it writes to are
/// compared like outputs.
fn compare_inputs(trial: &ReferenceTrial, after: &[u8]) -> Result<Vec<OutputStats>, Stop> {
    let fail = |text: String| Stop::Candidate(Failure::new(FailureKind::InputsChanged, text));
    let (before, expected) = (read(&trial.inputs)?, read(&trial.after)?);
    let found = Blob::read(after).filter(|f| f.entries == expected.entries);
    let Some(found) = found else {
        return Err(fail("an input has another shape, dtype or place after the call".to_owned()));
    };
    let mut stats = Vec::new();
    for index in 0..expected.entries.len() {
        if before.raw(index) != expected.raw(index) {
            stats.push(compare(&expected, &found, index));
        } else if expected.raw(index) != found.raw(index) {
            return Err(fail(format!("input tensor {index} was written to")));
        }
    }
    Ok(stats)
}

fn read(blob: &[u8]) -> Result<Blob<'_>, Error> {
    Blob::read(blob).ok_or_else(|| Error::Bug("a recorded blob cannot be read".to_owned()))
}
