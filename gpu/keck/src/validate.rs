//! Running a proposed module, so that rules can say whether it is a task.

use events::outcome::{ModuleRun, ModuleTrial};
use serde_json::{Value, json};

use crate::error::Error;
use crate::fault;
use crate::judge::Judge;
use crate::reference::derive;
use crate::session::{Answer, Reply, Session};
use crate::stats::spread;
use crate::tensors::{Blob, DType};
use crate::wire::Content;

/// Parameters that are perturbed one by one; further ones are taken to be alive.
const PARAMETERS_MAX: usize = 64;

/// A module to run.
#[derive(Clone, Debug)]
pub struct ValidateJob {
    /// The module's source.
    pub source: String,
    /// All seeds are derived from this one.
    pub seed: u64,
    /// Sets of random inputs.
    pub trials: usize,
}

/// A trial with the outputs it is compared by.
struct Seen {
    trial: ModuleTrial,
    outputs: Content,
    has_inputs: bool,
}

impl Judge {
    /// Runs a module as it initialises itself on `trials` sets of inputs, twice each; then once
    /// for each float parameter with only that one perturbed.
    pub fn validate(&self, job: &ValidateJob) -> Result<ModuleRun, Error> {
        let _slot = self.slot();
        let (mut session, answer) = self.load_module(&job.source, job.seed)?;
        let loaded = match heard(answer, "import") {
            Ok(reply) => reply,
            Err(run) => return Ok(run),
        };
        let mut seen = Vec::new();
        // A second set of inputs is always drawn: it shows whether the output depends on them.
        for index in 0..job.trials.max(2) {
            match self.module_trial(&mut session, derive(job.seed, "trial", index))? {
                Ok(trial) => seen.push(trial),
                Err(run) => return Ok(run),
            }
        }
        let depends_on_inputs = seen
            .first()
            .filter(|first| first.has_inputs)
            .map(|first| seen.iter().any(|other| *other.outputs != *first.outputs));
        let first = seen.first().map(|s| &*s.outputs).unwrap_or_default();
        let dead_parameters = self.dead_parameters(&mut session, &loaded.value, job, first)?;
        let trials = seen.into_iter().take(job.trials).map(|s| s.trial).collect();
        Ok(ModuleRun::Ran { trials, depends_on_inputs, dead_parameters })
    }

    fn module_trial(
        &self,
        session: &mut Session,
        seed: u64,
    ) -> Result<Result<Seen, ModuleRun>, Error> {
        let question = json!({
            "do": "trial", "seed": seed, "scale": "plain", "perturb": false, "twice": true,
            "wide": false,
        });
        let answer = self.ask_module(session, question)?;
        Ok(heard(answer, "forward").and_then(|reply| self.observe(reply, seed)))
    }

    fn dead_parameters(
        &self,
        session: &mut Session,
        loaded: &Value,
        job: &ValidateJob,
        baseline: &[u8],
    ) -> Result<Vec<String>, Error> {
        let names = loaded["parameters"].as_array().cloned().unwrap_or_default();
        let mut dead = Vec::new();
        for name in names.iter().filter_map(Value::as_str).take(PARAMETERS_MAX) {
            let seed = derive(job.seed, "trial", 0);
            let question = json!({ "do": "dead", "seed": seed, "parameter": name });
            let answer = self.ask_module(session, question)?;
            match heard(answer, "forward") {
                Ok(mut reply) => {
                    if *reply.take("first").unwrap_or_default() == *baseline {
                        dead.push(name.to_owned());
                    }
                }
                // The perturbed module raises: its output certainly depends on the parameter. A
                // worker that is gone ends the search; what is not known to be dead is alive.
                Err(ModuleRun::Failed { .. }) => {}
                Err(_) => break,
            }
        }
        Ok(dead)
    }

    fn observe(&self, mut reply: Reply, seed: u64) -> Result<Seen, ModuleRun> {
        let failed =
            |why: &str| ModuleRun::Failed { step: "forward".to_owned(), detail: why.to_owned() };
        if reply.value["tensors"] != Value::Bool(true) {
            return Err(failed("the output is neither a tensor nor a tuple or list of tensors"));
        }
        let mut take = |name: &str| reply.take(name).unwrap_or_default();
        let (outputs, inputs, second) = (take("first"), take("inputs"), take("second"));
        let blob =
            Blob::read(&outputs).ok_or_else(|| failed("an output's dtype is not supported"))?;
        let repeatable = reply.value["repeats"] == true
            || Blob::read(&second).is_some_and(|again| self.repeats(&blob, &again));
        let mut trial =
            ModuleTrial { seed, elements: 0, nonfinite: 0, max_abs: 0.0, spread: 0.0, repeatable };
        for (index, entry) in blob.entries.iter().enumerate() {
            let Some(dtype) = DType::named(&entry.dtype) else { continue };
            for bytes in blob.raw(index).chunks_exact(dtype.width()) {
                let value = dtype.value(bytes);
                trial.elements += 1;
                if value.is_finite() {
                    trial.max_abs = trial.max_abs.max(value.abs());
                } else {
                    trial.nonfinite += 1;
                }
            }
            trial.spread = trial.spread.max(spread(blob.raw(index), dtype));
        }
        let has_inputs = Blob::read(&inputs).is_some_and(|b| !b.entries.is_empty());
        Ok(Seen { trial, outputs, has_inputs })
    }
}

/// A module's answer, or how its run ended.
fn heard(answer: Answer, step: &str) -> Result<Reply, ModuleRun> {
    let failed = |step: &str, detail: String| ModuleRun::Failed { step: step.to_owned(), detail };
    match answer {
        Answer::TimedOut => Err(ModuleRun::Exceeded(format!("{step}: deadline"))),
        Answer::Gone(why) => Err(failed(step, format!("its process: {why}"))),
        Answer::Said(reply) => match fault::step(&reply.value) {
            Some((step, detail)) => {
                let memory = fault::failure(&reply.value)
                    .is_some_and(|f| f.kind == events::outcome::FailureKind::OutOfMemory);
                Err(if memory {
                    let first = detail.lines().next().unwrap_or_default();
                    ModuleRun::Exceeded(format!("{step}: memory: {first}"))
                } else {
                    failed(&step, detail)
                })
            }
            None => Ok(reply),
        },
    }
}
