//! The judge port over Keck, and the words for what it finds.

use std::collections::BTreeSet;
use std::path::Path;

use actors::ports::{Judge, MeasureJob, WorldFailed};
use anyhow::{Result, anyhow};
use events::config::Rules;
use events::event::Verdict;
use events::ids::{Digest, Role};
use events::outcome::{
    Backend, Execution, Failure, FailureKind, Measurement, ModuleRun, SourceReport,
};
use events::rules::extract::Extractor;
use events::rules::speed::speed;
use events::rules::verdict::{task_flags, verdict};
use keck::{Build, BuildJob, HeadersPolicy, ValidateJob};
use serde_json::{Value, json};

use crate::host::HostConfig;

/// Keck behind the actors' port.
pub struct KeckJudge {
    keck: keck::Judge,
    /// Versions of what judges: driver, torch, triton, nvcc and the like.
    environment: Value,
}

impl KeckJudge {
    /// Starts Keck with its scratch in `scratch`.
    pub fn new(host: &HostConfig, scratch: &Path) -> Result<Self> {
        let keck =
            keck::Judge::new(settings(host, scratch)?).map_err(|e| anyhow!("the judge: {e}"))?;
        if host.device != "cpu" && keck.device() == events::rules::verdict::CPU {
            let asked = &host.device;
            return Err(anyhow!("the host file asks for {asked}, but this machine has no GPU"));
        }
        let environment = json!(keck.environment());
        Ok(Self { keck, environment })
    }

    /// Isolation layers that are active.
    pub fn layers(&self) -> Vec<String> {
        self.keck.layers()
    }

    /// Where kernels run: `cpu-interpreter` or the GPU's name.
    pub fn device(&self) -> &str {
        self.keck.device()
    }

    /// What a profiler sees of a kernel that is right; null where nothing can be profiled.
    pub fn evidence(&self, job: &MeasureJob) -> Result<Value, WorldFailed> {
        let world = |e: keck::Error| WorldFailed(e.to_string());
        let Ok(backend) = keck::rules::inspect_kernel(&job.kernel_source) else {
            return Ok(Value::Null);
        };
        let job = MeasureJob { backend, ..job.clone() };
        let found = self.keck.evidence(&self.built(&job).map_err(world)?).map_err(world)?;
        Ok(json!(found))
    }

    /// A job with its build, from the cache or made now.
    fn built(&self, job: &MeasureJob) -> Result<keck::MeasureJob, keck::Error> {
        let source = job.kernel_source.clone();
        Ok(keck::MeasureJob {
            module_source: job.module_source.clone(),
            kernel_source: job.kernel_source.clone(),
            backend: job.backend,
            build: self.keck.build(&BuildJob { source, backend: job.backend })?,
            seed: job.seed,
            trials: job.trials as usize,
            timing: job.timing,
        })
    }

    /// Whether kernels run on a GPU.
    pub fn has_gpu(&self) -> bool {
        self.device() != events::rules::verdict::CPU
    }

    /// Judges one pair and says what `profile` makes of it. `wanted`: what the candidate must be
    /// written in, if that matters. A failure of the world is the outcome `judge_error`, never a
    /// verdict.
    pub fn answer(&self, job: &MeasureJob, profile: Rules, wanted: Option<Backend>) -> Value {
        let judged = match other_backend(&job.kernel_source, wanted) {
            Some(failure) => Ok(Judged::Refused(failure)),
            None => self.pair(job),
        };
        let mut object = match judged {
            Ok(judged) => report(job, &judged, profile),
            Err(failure) => world_failed(&failure.0),
        };
        object["environment"] = self.environment.clone();
        object
    }

    /// Judges one pair from source to measurement, as the actors do in three steps.
    pub fn pair(&self, job: &MeasureJob) -> Result<Judged, WorldFailed> {
        let backend = match keck::rules::inspect_kernel(&job.kernel_source) {
            Ok(backend) => backend,
            Err(failure) => return Ok(Judged::Refused(failure)),
        };
        if let Err(failure) = self.build(&job.kernel_source, backend)? {
            return Ok(Judged::Refused(failure));
        }
        self.measure(&MeasureJob { backend, ..job.clone() }).map(Judged::Measured)
    }
}

/// Keck's settings on this machine.
pub fn settings(host: &HostConfig, scratch: &Path) -> Result<keck::Config> {
    let usual = keck::Config::default();
    Ok(keck::Config {
        python: host.python()?,
        scratch: scratch.to_owned(),
        workers: host.judges(),
        force_cpu: host.device == "cpu",
        turns: if host.timing_turns > 0 { host.timing_turns } else { usual.turns },
        exclusive: host.exclusive,
        headers: if host.full_headers { HeadersPolicy::Full } else { HeadersPolicy::Auto },
        ..usual
    })
}

/// What a pair came to.
pub enum Judged {
    /// The static rules or the compiler refused it.
    Refused(Failure),
    /// It ran, or tried to.
    Measured(Measurement),
}

impl Judge for KeckJudge {
    fn purity_policy(&self) -> u32 {
        keck::POLICY_VERSION
    }

    fn module_source(&self, source: &str, tracked: &BTreeSet<String>) -> SourceReport {
        keck::rules::inspect_module(source, tracked)
    }

    fn run_module(&self, source: &str, seed: u64, trials: u32) -> Result<ModuleRun, WorldFailed> {
        let job = ValidateJob { source: source.to_owned(), seed, trials: trials as usize };
        self.keck.validate(&job).map_err(|e| WorldFailed(e.to_string()))
    }

    fn kernel_source(&self, source: &str) -> Result<Backend, Failure> {
        keck::rules::inspect_kernel(source)
    }

    fn build(
        &self,
        source: &str,
        backend: Backend,
    ) -> Result<Result<Digest, Failure>, WorldFailed> {
        let job = BuildJob { source: source.to_owned(), backend };
        match self.keck.build(&job).map_err(|e| WorldFailed(e.to_string()))? {
            Build::Ready => Ok(Ok(Digest::of(source.as_bytes()))),
            Build::Cuda { artifact, .. } => {
                let name = artifact.file_name().unwrap_or_default();
                Ok(Ok(Digest::of(name.as_encoded_bytes())))
            }
            Build::Rejected(failure) => Ok(Err(failure)),
        }
    }

    fn measure(&self, job: &MeasureJob) -> Result<Measurement, WorldFailed> {
        let measured = self.built(job).and_then(|job| self.keck.measure(&job));
        measured.map_err(|e| WorldFailed(e.to_string()))
    }
}

/// The candidate in a model's answer; an answer without code is judged as none.
pub fn from_answer(answer: &str) -> String {
    Extractor::Parsed.code(answer, Role::Coder).unwrap_or_default()
}

/// A source as it is. What is no Python, but holds code in a fenced block, is an answer.
pub fn from_source(source: &str) -> String {
    match keck::rules::inspect_kernel(source) {
        Err(failure) if failure.kind == FailureKind::CompileError => {
            Extractor::Parsed.code(source, Role::Coder).unwrap_or_else(|| source.to_owned())
        }
        Ok(_) | Err(_) => source.to_owned(),
    }
}

/// The object for a pair that could not be judged.
pub fn world_failed(reason: &str) -> Value {
    json!({ "outcome": "judge_error", "reason": reason })
}

fn other_backend(source: &str, wanted: Option<Backend>) -> Option<Failure> {
    let (wanted, found) = (wanted?, keck::rules::inspect_kernel(source).ok()?);
    let detail = format!("the job asks for {wanted:?}, this is {found:?}");
    (wanted != found).then(|| Failure::new(FailureKind::Impure, detail))
}

/// One object: `outcome`, `reason`, `speedup`, the measurement's id, and what they rest on. `task`,
/// `candidate` and the versions say what was judged by which rules: a score of another task, or of
/// other rules, is not the same score.
fn report(job: &MeasureJob, judged: &Judged, profile: Rules) -> Value {
    let (outcome, reason, facts) = match judged {
        Judged::Refused(failure) => (failure.kind.outcome(), refusal(failure), json!(failure)),
        Judged::Measured(measurement) => {
            let (outcome, reason) = measured(measurement, profile);
            (outcome, reason, json!(measurement))
        }
    };
    let speed = match judged {
        Judged::Measured(Measurement { execution: Execution::Ran { timing, .. }, .. })
            if outcome == "correct" =>
        {
            speed(timing, profile)
        }
        _ => None,
    };
    json!({
        "outcome": outcome,
        "reason": reason,
        "speedup": speed.map(|s| s.ratio),
        "speedup_interval": speed.map(|s| [s.interval.0, s.interval.1]),
        "timed_by": speed.map(|s| if s.graph { "work" } else { "calls" }),
        "too_small_to_rank": speed.map(|s| s.too_small),
        "task_flags": match judged {
            Judged::Measured(measurement) => task_flags(measurement),
            Judged::Refused(_) => Vec::new(),
        },
        "profile": profile,
        "headers": facts["headers"],
        "measurement": Digest::of(facts.to_string().as_bytes()).hex(),
        "task": Digest::of(job.module_source.as_bytes()).hex(),
        "candidate": Digest::of(job.kernel_source.as_bytes()).hex(),
        "policy": keck::POLICY_VERSION,
        "judge": env!("CARGO_PKG_VERSION"),
        "facts": facts,
    })
}

fn refusal(failure: &Failure) -> String {
    format!("{:?}: {}", failure.kind, failure.detail)
}

fn measured(measurement: &Measurement, profile: Rules) -> (&'static str, String) {
    match (verdict(measurement, profile), &measurement.execution) {
        (None, _) => ("no_device", "it was built; running it needs a GPU".to_owned()),
        (Some(Verdict::Correct { .. }), _) => ("correct", "right on all trials".into()),
        (Some(Verdict::WrongValue { trial, output }), _) => {
            ("incorrect", format!("WrongValue: trial {trial}, output {output}"))
        }
        (Some(Verdict::Failed(kind)), Execution::Failed(failure)) => {
            (kind.outcome(), refusal(failure))
        }
        (Some(Verdict::Failed(kind)), _) => {
            (kind.outcome(), format!("{kind:?}: no kernel of its own was launched"))
        }
        (Some(Verdict::TaskRefused(fault)), Execution::TaskAtFault(_, detail)) => {
            ("task_refused", format!("{fault:?}: {detail}"))
        }
        (Some(Verdict::TaskRefused(fault)), _) => ("task_refused", format!("{fault:?}")),
        // No rule says this of a measurement.
        (Some(Verdict::Excluded), _) => ("task_refused", "taken out of its run".to_owned()),
    }
}
