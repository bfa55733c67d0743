//! Running a reference: the inputs, states and outputs that a candidate's answers are held to.

use std::sync::Arc;
use std::time::Duration;

use events::outcome::TaskFault;

use crate::cache::Weigh;
use crate::error::Error;
use crate::fault;
use crate::judge::{Judge, lock};
use crate::memory::others_took_it;
use crate::session::{Answer, Reply};
use crate::wire::Content;

/// Inputs that take turns when it is timed, as long as together they are not larger than this many
/// bytes.
const ROTATING: usize = 3;
const ROTATING_BYTES: usize = 1 << 29;

/// What the reference did on one trial.
#[derive(Debug)]
pub struct ReferenceTrial {
    /// Seed of inputs and noise.
    pub seed: u64,
    /// What was changed, as [`events::outcome::Trial`] calls it.
    pub varied: String,
    /// Whether matrices were multiplied or something convolved.
    pub products: bool,
    /// How long a run of the reference took.
    pub wall: Duration,
    /// Inputs before the call.
    pub inputs: Content,
    /// Parameters and buffers.
    pub state: Content,
    /// Outputs.
    pub outputs: Content,
    /// Inputs after the call, where it wrote to any.
    pub after: Option<Content>,
}

/// All trials of a module.
#[derive(Debug)]
pub struct Reference {
    /// Arguments of the constructor.
    pub init: Content,
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
        let trial = |t: &ReferenceTrial| {
            let after = t.after.as_ref().map_or(0, |after| after.len());
            t.inputs.len() + t.state.len() + t.outputs.len() + after
        };
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
        let outcome = self.whole_reference(source, seed, trials, timing.then_some(ROTATING), key);
        lock(&self.running).remove(&key);
        let shared = Arc::new(outcome?);
        lock(&self.references).put(key, Arc::clone(&shared));
        Ok(shared)
    }

    /// Memory that others hold is no fault of a module's: where it was too little, the module runs
    /// again with the device alone. One that faults must not leave the device unwell.
    fn whole_reference(
        &self,
        source: &str,
        seed: u64,
        trials: usize,
        timed: Option<usize>,
        key: blake3::Hash,
    ) -> Result<Outcome, Error> {
        let outcome = self.run_reference(source, seed, trials, timed, key)?;
        match &outcome {
            Err(AtFault(_, text)) if others_took_it(text) => {
                let _whole = self.whole_device();
                self.parked.clear();
                self.run_reference(source, seed, trials, timed, key)
            }
            Err(AtFault(TaskFault::ReferenceFailed, _)) => {
                self.probe()?;
                Ok(outcome)
            }
            _ => Ok(outcome),
        }
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
}

/// A reference's answer, or its fault.
pub(crate) fn heard(answer: Answer) -> Result<Reply, AtFault> {
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
