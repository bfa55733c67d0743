//! Running a candidate against a reference's recorded trials.

use std::time::{Duration, Instant};

use events::config::Rules;
use events::outcome::{Backend, Execution, Failure, FailureKind, Measurement, Timing, Trial};
use events::rules::verdict::verdict;
use serde_json::{Value, json};

use crate::answer::{Stop, heard, judge_trial, read};
use crate::compile::{self, Build};
use crate::error::Error;
use crate::judge::Judge;
use crate::memory::others_took_it;
use crate::probe::doubtful;
use crate::purity::Seen;
use crate::reference::{AtFault, Reference, ReferenceTrial, derive};
use crate::session::{Reply, Session};
use crate::wire::{Content, Handed};

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
const PATIENCE: Duration = Duration::from_secs(1);

/// So many times as long for the first one, which loads what it uses of torch.
const FIRST: u32 = 2;

/// Whether the machine could have done what the candidate is accused of.
fn may_be_the_machines(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::SuspiciousTiming | FailureKind::SandboxViolation)
}

impl Judge {
    /// Measures a kernel: correctness on every trial, then times where they are asked for.
    pub fn measure(&self, job: &MeasureJob) -> Result<Measurement, Error> {
        let _slot = self.slot();
        self.device_is_usable()?;
        let start = Instant::now();
        let (execution, products) = self.execution(job)?;
        Ok(Measurement {
            execution,
            layers: self.layers().iter().map(Into::into).collect(),
            device: self.device().into(),
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
        let outcome = self.reference(&job.module_source, job.seed, job.trials, job.timing)?;
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

    /// Memory that others held at the same time, a device that others hung on, or a cold disk is no fault
    /// of a candidate's: it runs again with the device alone. So does one that is held for a cheat by a
    /// clock, or by its process's end without a word: what a candidate does it does again.
    fn candidate(&self, job: &MeasureJob, reference: &Reference) -> Result<Execution, Stop> {
        let whole = self.config.exclusive.then(|| self.lease.whole());
        let mut disturbed = false;
        let first = self.one_run(job, reference, &mut disturbed);
        let Err(Stop::Candidate(failure)) = &first else { return first };
        let memory = others_took_it(&failure.detail);
        if whole.is_some() || !(memory || disturbed || may_be_the_machines(failure)) {
            return first;
        }
        tracing::info!(kind = ?failure.kind, detail = failure.detail, "judged again, alone");
        let _whole = self.whole_device();
        if memory {
            self.parked.clear();
        }
        self.one_run(job, reference, &mut disturbed)
    }

    fn one_run(
        &self,
        job: &MeasureJob,
        reference: &Reference,
        disturbed: &mut bool,
    ) -> Result<Execution, Stop> {
        let mut session = self.worker("kernel")?;
        let result = self.run_candidate(job, reference, &mut session);
        // For people who debug a candidate; nothing is decided from it.
        tracing::debug!(printed = session.printed(), "candidate ended");
        *disturbed = session.disturbed;
        if let Err(Stop::Candidate(failure)) = &result
            && self.device.kind() != "cpu"
        {
            // The next one starts when this one's memory is free and the device is known to work.
            session.end();
            if doubtful(failure) {
                self.probe()?;
            }
        }
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
        let mut first_outputs = Content::default();
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
            let after = reply.take("after");
            tracing::debug!(
                candidate = %blake3::hash(job.kernel_source.as_bytes()),
                trial = index,
                outputs = %blake3::hash(&outputs),
                "answered"
            );
            trials.push(judge_trial(trial, &reply.value, &outputs, after.as_deref())?);
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
            device: self.device().into(),
            products: reference.products(),
            headers: None,
            wall_ms: 0,
        };
        let right = |rules| verdict(&so_far, rules).is_some_and(|found| found.is_correct());
        right(Rules::Strict) || right(Rules::Paper)
    }

    /// Loads a candidate; gives the names of its CUDA kernels.
    pub(crate) fn load_candidate(
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
        let state = reference.trials.first().map_or(Handed::Bytes(&[]), |t| t.state.handed());
        let mut blobs = vec![
            ("source", Handed::Bytes(job.kernel_source.as_bytes())),
            ("init", reference.init.handed()),
            ("state", state),
        ];
        blobs.extend(artifacts.iter().map(|a| (a.file.as_str(), Handed::Bytes(&a.bytes))));
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
        let blobs = [("inputs", trial.inputs.handed()), ("state", trial.state.handed())];
        let usual = self.call_timeout(trial);
        // Handing over large tensors takes longer than the call. The first one loads what it uses of torch,
        // from a disk that may be cold, and compiles.
        let (patience, timeout) = match keep {
            true => (usual * FIRST, self.first_call_timeout()),
            false => (usual, self.config.trial_timeout),
        };
        heard(self.ask_sharing(session, question, &blobs, (patience, timeout))?)
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
        let after = reply.take("after");
        judge_trial(trial, &reply.value, &outputs, after.as_deref())
    }
}
