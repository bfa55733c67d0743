//! One effect done again.

use actors::ports::{Engine, Judge, MeasureJob, TrainJob, WorldFailed};
use anyhow::Result;
use events::event::CompileOutcome;
use events::ids::BlobId;
use events::log::Blobs;
use events::outcome::{Execution, Measurement, Timing};
use events::rules::speed::median;
use events::rules::verdict::verdict;
use events::sample::Sample;

use super::choose::{Job, Measured, Step, What};
use super::{Kind, Outcome, Ratios, Redone};

/// What effects are done again with.
pub struct World<'w> {
    /// What the run stored; only read.
    pub blobs: &'w dyn Blobs,
    /// Builds and measures.
    pub judge: &'w dyn Judge,
    /// What measurements of this judge name as their device.
    pub device: String,
    /// An engine that holds nothing yet, for each step: one that went on from a step of its own would not
    /// notice a checkpoint that differs.
    pub engine: Box<dyn FnMut() -> Result<Box<dyn Engine>> + 'w>,
}

/// Why an effect was not done again.
enum Not {
    Redoable(String),
    World(String),
}

impl From<WorldFailed> for Not {
    fn from(failed: WorldFailed) -> Self {
        Not::World(failed.0)
    }
}

impl World<'_> {
    pub(super) fn redo(&mut self, job: Job) -> Redone {
        let kind = match &job.what {
            What::Build { .. } => Kind::Build,
            What::Measure(_) => Kind::Measurement,
            What::Step(_) => Kind::Step,
        };
        let (seq, task) = (job.seq, job.task);
        let (outcome, same_values, ratios, weights) = (Outcome::Agrees, false, None, None);
        let mut redone = Redone { seq, kind, task, outcome, same_values, ratios, weights };
        let outcome = match job.what {
            What::Build { source, recorded } => self.build(source, &recorded),
            What::Measure(measured) => self.measure(&measured, &mut redone),
            What::Step(step) => self.step(*step, &mut redone),
        };
        redone.outcome = match outcome {
            Ok(None) => Outcome::Agrees,
            Ok(Some(differs)) => Outcome::Differs(differs),
            Err(Not::Redoable(why)) => Outcome::NotRedoable(why),
            Err(Not::World(why)) => Outcome::Failed(why),
        };
        redone
    }

    fn blob(&self, what: &str, id: BlobId) -> Result<Vec<u8>, Not> {
        self.blobs.get(id).map_err(|e| Not::Redoable(format!("{what}: {e}")))
    }

    fn text(&self, what: &str, id: BlobId) -> Result<String, Not> {
        let bytes = self.blob(what, id)?;
        String::from_utf8(bytes).map_err(|e| Not::Redoable(format!("{what}, blob {id}: {e}")))
    }

    /// What differs, if anything does.
    fn build(&self, source: BlobId, recorded: &CompileOutcome) -> Result<Option<String>, Not> {
        let code = self.text("the kernel's code", source)?;
        let Ok(backend) = self.judge.kernel_source(&code) else {
            let why = "the static rules of this program refuse it: it was built by others";
            return Err(Not::Redoable(why.to_owned()));
        };
        let built = self.judge.build(&code, backend)?;
        Ok(match (recorded, built) {
            (CompileOutcome::Built { key, .. }, Ok(now)) => (*key != now).then(|| {
                format!("built as {} and now as {}: another toolchain", key.short(), now.short())
            }),
            (CompileOutcome::Built { .. }, Err(failure)) => {
                Some(format!("it was built and is now refused: {}", failure.detail))
            }
            (CompileOutcome::Rejected(failure), Ok(_)) => {
                Some(format!("it was refused ({}) and is now built", failure.detail))
            }
            (CompileOutcome::Rejected(_), Err(_)) => None,
        })
    }

    fn measure(&self, job: &Measured, redone: &mut Redone) -> Result<Option<String>, Not> {
        let was_on = &job.recorded.device;
        if *was_on != self.device {
            let why = format!("it was measured on {was_on}, here is {}", self.device);
            return Err(Not::Redoable(why));
        }
        let now = self.judge.measure(&MeasureJob {
            module_source: self.text("the module's code", job.order.module_source)?,
            kernel_source: self.text("the kernel's code", job.order.source)?,
            backend: job.order.backend,
            seed: job.order.seed,
            trials: job.trials,
            timing: job.order.timing,
        })?;
        redone.same_values = values(&job.recorded) == values(&now);
        redone.ratios = ratios(&job.recorded, &now);
        let [before, after] = [&job.recorded, &now].map(|m| verdict(m, job.profile));
        let word = |v: &Option<events::event::Verdict>| match v {
            // Times are compared as ratios.
            Some(events::event::Verdict::Correct { .. }) => "Correct".to_owned(),
            other => format!("{other:?}"),
        };
        let (before, after) = (word(&before), word(&after));
        Ok((before != after).then(|| format!("{before} is now {after}")))
    }

    fn step(&mut self, step: Step, redone: &mut Redone) -> Result<Option<String>, Not> {
        let mut job = step.job.map_err(|failed| Not::Redoable(failed.0))?;
        self.whole(&job)?;
        for (advantage, id) in &step.samples {
            let sample: Sample = serde_json::from_slice(&self.blob("a sample", *id)?)
                .map_err(|e| Not::Redoable(format!("sample {id}: {e}")))?;
            job.samples.push((*advantage, sample));
        }
        let mut engine = (self.engine)().map_err(|e| Not::World(format!("{e:#}")))?;
        let trained = engine.train(&job)?;
        redone.weights = Some(trained.update.weights.hex());
        if trained.update.weights != step.recorded.weights {
            let (was, now) = (step.recorded.weights.short(), trained.update.weights.short());
            return Ok(Some(format!("the weights of {} were {was} and are {now}", step.after)));
        }
        let other = trained.files.iter().find(|file| !step.saved.contains(file));
        Ok(other.map(|(name, _)| format!("{name} of {} has other bytes", step.after)))
    }

    /// A step needs the weights before it, the optimizer's state that belongs to them, and the
    /// reference. Without the second it would be done from a new optimizer and only look like the same.
    fn whole(&self, job: &TrainJob) -> Result<(), Not> {
        let policy = job.weights.policy;
        let (trained, weights) = match &job.weights.adapter {
            Some(adapter) => (&adapter.files, "adapter_model.safetensors"),
            None => (&job.weights.files, "model.safetensors"),
        };
        if policy.steps > 0 {
            for name in [weights, "optimizer.safetensors"] {
                if !trained.iter().any(|(file, _)| file == name) {
                    return Err(Not::Redoable(format!("{name} of {policy} was dropped")));
                }
            }
        }
        for (name, id) in trained.iter().chain(&job.weights.files).chain(&job.reference.files) {
            if !self.blobs.has(*id) {
                return Err(Not::Redoable(format!(
                    "{name} ({}) is not there any more",
                    id.short()
                )));
            }
        }
        Ok(())
    }
}

/// What was observed without its times.
fn values(measurement: &Measurement) -> Execution {
    let mut execution = measurement.execution.clone();
    if let Execution::Ran { timing, .. } = &mut execution {
        *timing = Timing::NotTaken;
    }
    execution
}

fn ratios(before: &Measurement, after: &Measurement) -> Option<Ratios> {
    let times = |measurement: &Measurement| match &measurement.execution {
        Execution::Ran { timing: Timing::Taken(times), .. } => {
            Some((median(&times.eager.candidate_ns)?, median(&times.eager.reference_ns)?))
        }
        _ => None,
    };
    let ((candidate, reference), now) = (times(before)?, times(after)?);
    Some(Ratios { candidate: now.0 / candidate, reference: now.1 / reference })
}
