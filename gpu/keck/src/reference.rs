//! Running a reference: the inputs, states and outputs that a candidate's answers are held to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use events::outcome::TaskFault;
use serde_json::{Value, json};

use crate::cache::Weigh;
use crate::error::Error;
use crate::fault;
use crate::judge::{Judge, lock};
use crate::session::{Answer, Reply, Session};
use crate::stats::compare;
use crate::tensors::{Blob, DType};

/// Changes of the inputs by trial; all but the first two also perturb the parameters. Trial 0 is
/// the task as it is given. Later trials take up the list again with other seeds.
const SCALES: [&str; 7] = ["plain", "plain", "x30", "+2.5", "x0.05", "x1e5", "x8"];
/// A scaled trial is used only where single precision still carries this much of the result:
/// beyond, honest kernels that round differently would fail.
const WELL_CONDITIONED: f64 = 5e-6;
/// Inputs that take turns when it is timed, as long as together they are not larger than this many
/// bytes.
const ROTATING: usize = 3;
const ROTATING_BYTES: usize = 1 << 30;
/// Repeated runs on a GPU may differ in the last bits where atomics add floats.
const REPEATABLE_ON_GPU: f64 = 1e-5;

/// What the reference did on one trial.
#[derive(Debug)]
pub struct ReferenceTrial {
    /// Seed of inputs and noise.
    pub seed: u64,
    /// What was changed, as [`events::outcome::Trial`] calls it.
    pub varied: String,
    /// Whether matrices were multiplied or something convolved.
    pub products: bool,
    /// How long the reference took for all that was asked.
    pub wall: Duration,
    /// Inputs before the call.
    pub inputs: Vec<u8>,
    /// Parameters and buffers.
    pub state: Vec<u8>,
    /// Outputs.
    pub outputs: Vec<u8>,
    /// Inputs after the call.
    pub after: Vec<u8>,
}

/// All trials of a module.
#[derive(Debug)]
pub struct Reference {
    /// Arguments of the constructor.
    pub init: Vec<u8>,
    /// One entry per trial.
    pub trials: Vec<ReferenceTrial>,
    /// The task as it is given, on the inputs that take turns when it is timed; none if it is not.
    pub timed: Vec<ReferenceTrial>,
    /// What the worker that ran it is parked by.
    pub key: blake3::Hash,
}

impl Reference {
    /// Whether the task multiplies matrices or convolves.
    pub fn products(&self) -> bool {
        self.trials.iter().any(|trial| trial.products)
    }
}

/// The recorded trials, or why there are none.
pub type Outcome = Result<Reference, AtFault>;

impl Weigh for Outcome {
    fn bytes(&self) -> usize {
        let Ok(reference) = self else { return 1024 };
        let trial =
            |t: &ReferenceTrial| t.inputs.len() + t.state.len() + t.outputs.len() + t.after.len();
        reference.init.len()
            + reference.trials.iter().chain(&reference.timed).map(trial).sum::<usize>()
    }
}

/// Why there is no reference to compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtFault(pub TaskFault, pub String);

/// A seed derived from the job's, so that well-known seeds never reach torch.
pub fn derive(seed: u64, purpose: &str, index: usize) -> u64 {
    let text = format!("keck/{seed}/{purpose}/{index}");
    let hash = blake3::hash(text.as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    // Torch takes signed seeds.
    u64::from_le_bytes(bytes) >> 1
}

impl Judge {
    /// The reference's results, from the cache or by running it. Kernels of one module that come
    /// at the same time wait for the first of them.
    pub(crate) fn reference(
        &self,
        source: &str,
        seed: u64,
        trials: usize,
        timing: bool,
    ) -> Result<Arc<Outcome>, Error> {
        let timing = timing && self.device.kind() != "cpu";
        let key = blake3::hash(format!("{seed}/{trials}/{timing}/{source}").as_bytes());
        let turn = Arc::clone(lock(&self.running).entry(key).or_default());
        let _first = lock(&turn);
        if let Some(found) = lock(&self.references).get(&key) {
            return Ok(found);
        }
        let outcome = self.run_reference(source, seed, trials, timing.then_some(ROTATING), key);
        lock(&self.running).remove(&key);
        let shared = Arc::new(outcome?);
        lock(&self.references).put(key, Arc::clone(&shared));
        Ok(shared)
    }

    fn run_reference(
        &self,
        source: &str,
        seed: u64,
        trials: usize,
        timed: Option<usize>,
        key: blake3::Hash,
    ) -> Result<Outcome, Error> {
        let (mut session, mut loaded) = match self.load_reference(source, seed)? {
            Ok(loaded) => loaded,
            Err(fault) => return Ok(Err(fault)),
        };
        let init = loaded.take("init").unwrap_or_default();
        let mut reference = Reference { init, trials: Vec::new(), timed: Vec::new(), key };
        for index in 0..trials.max(1) {
            match self.reference_trial(&mut session, seed, index)? {
                Ok(trial) => reference.trials.push(trial),
                Err(fault) => return Ok(Err(fault)),
            }
        }
        if let Some(most) = timed {
            let size = reference.trials.first().map_or(0, |trial| trial.inputs.len());
            for index in 0..(ROTATING_BYTES / size.max(1)).clamp(1, most) {
                match self.timed_trial(&mut session, derive(seed, "timed", index))? {
                    Ok(trial) => reference.timed.push(trial),
                    Err(fault) => return Ok(Err(fault)),
                }
            }
            self.park(key, session)?;
        }
        Ok(Ok(reference))
    }

    /// A worker that has imported a module and built its model.
    pub(crate) fn load_reference(
        &self,
        source: &str,
        seed: u64,
    ) -> Result<Result<(Session, Reply), AtFault>, Error> {
        let mut session = self.worker("module")?;
        let question = json!({ "do": "load", "seed": derive(seed, "init", 0) });
        let blobs = [("source", source.as_bytes())];
        let answer = self.ask(&mut session, question, &blobs, self.config.import_timeout)?;
        Ok(heard(answer).map(|reply| (session, reply)))
    }

    /// Keeps a reference's worker for the next kernel that is timed beside it.
    pub(crate) fn park(&self, key: blake3::Hash, mut session: Session) -> Result<(), Error> {
        let rested =
            self.ask(&mut session, json!({ "do": "rest" }), &[], self.config.trial_timeout)?;
        if heard(rested).is_ok() {
            self.parked.put(key, session);
        }
        Ok(())
    }

    /// Inputs of the task as it is given, and the reference's outputs for them.
    fn timed_trial(
        &self,
        session: &mut Session,
        seed: u64,
    ) -> Result<Result<ReferenceTrial, AtFault>, Error> {
        let question = json!({
            "do": "trial", "seed": seed, "scale": "plain", "perturb": false, "twice": false,
            "wide": false,
        });
        let _shared = self.shared();
        let answer = self.ask(session, question, &[], self.config.trial_timeout)?;
        Ok(heard(answer).map(|mut reply| {
            let mut take = |name: &str| reply.take(name).unwrap_or_default();
            ReferenceTrial {
                seed,
                varied: "timed".to_owned(),
                products: false,
                wall: Duration::ZERO,
                inputs: take("inputs"),
                state: take("state"),
                outputs: take("first"),
                after: take("after"),
            }
        }))
    }

    /// One trial. A changed trial on which the reference raises, overflows or is ill conditioned
    /// falls back to a milder one: noise only, then fresh inputs only.
    fn reference_trial(
        &self,
        session: &mut Session,
        seed: u64,
        index: usize,
    ) -> Result<Result<ReferenceTrial, AtFault>, Error> {
        let place = if index < SCALES.len() { index } else { 1 + (index - 1) % (SCALES.len() - 1) };
        let mut attempts = vec![(SCALES[place], index > 0), ("plain", index > 0), ("plain", false)];
        attempts.dedup();
        let last = attempts.len() - 1;
        let mut result = Err(AtFault(TaskFault::ReferenceFailed, String::new()));
        for (attempt, (scale, perturb)) in attempts.into_iter().enumerate() {
            let question = json!({
                "do": "trial", "seed": derive(seed, "trial", index), "scale": scale,
                "perturb": perturb, "twice": true, "wide": attempt < last,
            });
            let shared = self.shared();
            let start = Instant::now();
            let answer = self.ask(session, question, &[], self.config.trial_timeout)?;
            let wall = start.elapsed();
            drop(shared);
            let ended = !matches!(answer, Answer::Said(_));
            result = heard(answer).and_then(|reply| {
                let mut trial = self.accept_trial(reply, attempt < last)?;
                trial.seed = derive(seed, "trial", index);
                trial.wall = wall;
                trial.varied = match (index, perturb) {
                    (0, _) => "given".to_owned(),
                    (_, true) => format!("{scale}+noise"),
                    (_, false) => scale.to_owned(),
                };
                Ok(trial)
            });
            let random = matches!(result, Err(AtFault(TaskFault::Nondeterministic, _)));
            if result.is_ok() || random || ended {
                break;
            }
        }
        Ok(result)
    }

    fn accept_trial(&self, mut reply: Reply, strict: bool) -> Result<ReferenceTrial, AtFault> {
        let degenerate = |why: &str| AtFault(TaskFault::Degenerate, why.to_owned());
        if reply.value["tensors"] != Value::Bool(true) {
            return Err(degenerate("the outputs are not tensors"));
        }
        let products = multiplies(&reply.value["ops"]);
        let mut take = |name: &str| reply.take(name).unwrap_or_default();
        let (outputs, second, wide) = (take("first"), take("second"), take("wide"));
        let trial = ReferenceTrial {
            seed: 0,
            varied: String::new(),
            products,
            wall: Duration::ZERO,
            inputs: take("inputs"),
            state: take("state"),
            after: take("after"),
            outputs,
        };
        let first = Blob::read(&trial.outputs)
            .filter(|b| (0..b.entries.len()).all(|i| b.is_dense(i)))
            .ok_or_else(|| degenerate("the outputs have a dtype that cannot be compared"))?;
        let again =
            Blob::read(&second).ok_or_else(|| degenerate("the second run has no outputs"))?;
        if !self.repeats(&first, &again) {
            let text = "two runs on the same inputs differ".to_owned();
            return Err(AtFault(TaskFault::Nondeterministic, text));
        }
        let figures: Vec<_> =
            (0..first.entries.len()).map(|i| compare(&first, &first, i)).collect();
        let elements: u64 = figures.iter().map(|f| f.elements).sum();
        let nonfinite: u64 = figures.iter().map(|f| f.nonfinite_reference).sum();
        if elements == nonfinite {
            return Err(degenerate("no output is finite"));
        }
        if strict && (nonfinite > 0 || !well_conditioned(&first, &wide)) {
            return Err(degenerate("not usable for a changed trial"));
        }
        Ok(trial)
    }

    fn repeats(&self, first: &Blob<'_>, again: &Blob<'_>) -> bool {
        if first.entries != again.entries {
            return false;
        }
        (0..first.entries.len()).all(|i| {
            let stats = compare(first, again, i);
            let allowed = if self.device.kind() == "cpu" {
                0.0
            } else {
                REPEATABLE_ON_GPU * stats.max_reference
            };
            let worst = stats.hull.iter().map(|p| p.1).fold(0.0, f64::max);
            stats.exact_mismatches + stats.nonfinite_mismatches == 0 && worst <= allowed
        })
    }
}

/// Whether operators that torch dispatched multiply matrices or convolve.
fn multiplies(ops: &Value) -> bool {
    let names = ops.as_array().into_iter().flatten().filter_map(Value::as_str);
    names.filter_map(|name| name.strip_prefix("aten::")).any(|name| {
        ["mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear"].contains(&name)
            || ["conv", "attention", "mkldnn_linear", "lstm", "gru", "bilinear"]
                .iter()
                .any(|part| name.contains(part))
    })
}

/// A reference's answer, or its fault.
fn heard(answer: Answer) -> Result<Reply, AtFault> {
    let failed = |text: String| AtFault(TaskFault::ReferenceFailed, text);
    match answer {
        Answer::TimedOut => Err(failed("the reference passed its deadline".to_owned())),
        Answer::Gone(why) => Err(failed(format!("the reference's process: {why}"))),
        Answer::Said(reply) => match fault::step(&reply.value) {
            Some((step, detail)) => Err(failed(format!("{step}: {detail}"))),
            None => Ok(reply),
        },
    }
}

/// Whether the single-precision outputs agree with those of a run in double precision; true where
/// there is no such run.
fn well_conditioned(first: &Blob<'_>, wide: &[u8]) -> bool {
    let Some(wide) = Blob::read(wide) else { return true };
    if wide.entries.len() != first.entries.len() {
        return true;
    }
    first.entries.iter().enumerate().all(|(i, entry)| {
        let same_shape = wide.entries[i].shape == entry.shape;
        if entry.dtype != "float32" || wide.entries[i].dtype != "float64" || !same_shape {
            return true;
        }
        let narrow = first.raw(i).chunks_exact(4).map(|b| DType::F32.value(b));
        let exact: Vec<f64> = wide.raw(i).chunks_exact(8).map(|b| DType::F64.value(b)).collect();
        let scale = exact.iter().map(|v| v.abs()).fold(0.0, f64::max);
        narrow.zip(&exact).all(|(a, b)| (a - b).abs() <= WELL_CONDITIONED * scale)
    })
}
