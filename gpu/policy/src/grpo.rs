//! One GRPO update over packed samples.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::batch::{Batch, Sequence};
use crate::error::{Error, Result};
use crate::gradients::Gradients;
use crate::loss::{self, Pass};
use crate::metrics::{Clock, Metrics, Work};
use crate::model::Model;
pub use crate::objective::{Aggregate, Objective, Penalty, Ratio, k3};
use crate::objective::{Constants, Sums, Totals};
use crate::optim::{AdamW, Update};
use crate::ranks::Ranks;
use crate::share::{self, Share};

/// Packs that a reference in the host's memory scores at once: its layers travel that many times
/// less often, and the residual streams of so many packs fit beside the model.
const STREAMED: usize = 16;

/// One sample with what the judge made of it.
#[derive(Clone, Debug, Deserialize)]
pub struct Graded {
    /// Tokens of the prompt.
    pub prompt_tokens: Vec<u32>,
    /// Tokens of the answer.
    pub tokens: Vec<u32>,
    /// The sampler's log-probability of each, whole softmax at the temperature.
    pub logprobs: Vec<f32>,
    /// The advantage of the whole answer; 0 leaves only the penalty.
    pub advantage: f64,
}

impl Graded {
    fn sequence(&self) -> Sequence {
        let tokens = self.prompt_tokens.iter().chain(&self.tokens).copied().collect();
        Sequence { tokens, prompt: self.prompt_tokens.len() }
    }
}

/// Where the log-probs in the ratio's denominator come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Old {
    /// From this model before the update: with one update per batch the ratio is 1 and only
    /// its gradient matters.
    #[default]
    Recompute,
    /// From the sampler.
    Sampler,
}

/// Settings of a step.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The optimizer's part.
    pub update: Update,
    /// What is minimised.
    pub objective: Objective,
    /// Temperature of the sampler.
    pub temperature: f64,
    /// Positions per pack; a shared prompt counts once.
    pub micro_tokens: usize,
    /// Which old log-probs.
    pub old: Old,
    /// Bytes that the layers of a pack may keep for the way back.
    pub memory: u64,
}

/// What a step did.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The objective's negative, penalty included.
    pub loss: f64,
    /// Divergence from the reference, aggregated as the loss.
    pub kl: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Share of tokens whose gradient the clip cut off.
    pub clip_fraction: f64,
    /// k3 from the sampler's to this model's distribution, mean over tokens.
    pub mismatch_kl: f64,
    /// Entropy at the temperature, mean over tokens, in nats.
    pub entropy: f64,
    /// Answer tokens trained on.
    pub tokens: usize,
    /// Samples trained on.
    pub samples: usize,
    /// Learning rate used.
    pub lr: f64,
    /// Updates taken so far, this one included.
    pub step: u64,
    /// What it cost.
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// Takes one update of `model` on `samples`. A model with an adapter and no `reference` has its
/// base as the reference.
///
/// # Errors
/// Malformed samples, or a loss or gradient that is not finite: then nothing has changed.
pub fn step(
    model: &mut Model,
    optim: &mut AdamW,
    reference: Option<&Model>,
    samples: &[Graded],
    o: &Options,
) -> Result<Report> {
    let mut ranks = Ranks::alone(model.device);
    step_among(model, optim, reference, samples, o, &mut ranks)
}

/// The same among `ranks`, each of which calls it with the same samples and does its share of the packs.
/// Figures are those of all.
///
/// # Errors
/// As [`step`], on all ranks if on one; or a rank is lost: then this one's model is none.
pub fn step_among(
    model: &mut Model,
    optim: &mut AdamW,
    reference: Option<&Model>,
    samples: &[Graded],
    o: &Options,
    ranks: &mut Ranks,
) -> Result<Report> {
    let mut clock = Clock::new(model.device);
    check(model, reference, samples, o)?;
    optim.discard();
    match sums_of_all(model, optim, reference, samples, o, ranks, &mut clock) {
        Err(e) => {
            optim.discard();
            Err(e)
        }
        Ok((sums, work)) => {
            let grad_norm = optim.apply_among(model.trained(), &o.update, ranks, &mut clock)?;
            let tokens = work.answers as usize;
            Ok(Report {
                loss: sums[0],
                kl: sums[1],
                clip_fraction: sums[2] / tokens as f64,
                mismatch_kl: sums[3] / tokens as f64,
                entropy: sums[4] / tokens as f64,
                grad_norm,
                tokens,
                samples: samples.len(),
                lr: o.update.lr,
                step: optim.step,
                metrics: Metrics::new(clock, model, &work).among(ranks.world()),
            })
        }
    }
}

fn check(model: &Model, reference: Option<&Model>, all: &[Graded], o: &Options) -> Result<()> {
    let refuse = |text: String| Err(Error::Request(text));
    if all.is_empty() {
        return refuse("no samples: a step needs at least one".into());
    }
    if !(o.temperature > 0.0 && o.micro_tokens > 0) {
        return refuse("temperature and micro_tokens must be positive".into());
    }
    o.objective.check(o.old)?;
    if o.objective.kl > 0.0 && reference.is_none() && model.adapter.is_none() {
        return refuse("kl above 0 needs a reference_slot".into());
    }
    let other = reference.filter(|r| r.config.vocab != model.config.vocab);
    if other.is_some_and(|_| o.objective.kl > 0.0) {
        return refuse("the reference has another vocabulary than the model".into());
    }
    for (i, s) in all.iter().enumerate() {
        let length = s.prompt_tokens.len() + s.tokens.len();
        let beyond = |t: &u32| i64::from(*t) >= model.config.vocab;
        let problem = if s.prompt_tokens.is_empty() || s.tokens.is_empty() {
            "needs at least one prompt token and one answer token"
        } else if s.logprobs.len() != s.tokens.len() {
            "needs one log-prob per answer token"
        } else if length as i64 > model.config.context {
            "is longer than the context"
        } else if s.prompt_tokens.iter().chain(&s.tokens).any(beyond) {
            "holds a token beyond the vocabulary"
        } else if !s.advantage.is_finite() || s.logprobs.iter().any(|l| !l.is_finite()) {
            "has an advantage or a log-prob that is not finite"
        } else {
            continue;
        };
        return refuse(format!("sample {i} {problem}"));
    }
    Ok(())
}

/// This rank's gradient, and figures and work of all.
fn sums_of_all(
    model: &Model,
    optim: &mut AdamW,
    reference: Option<&Model>,
    samples: &[Graded],
    o: &Options,
    ranks: &mut Ranks,
    clock: &mut Clock,
) -> Result<([f64; 5], Work)> {
    let own = accumulate(model, optim, reference, samples, o, ranks, clock).map(|(sums, work)| {
        let work = [work.positions, work.pairs, work.answers].map(|n| n as f64);
        [&sums[..], &work].concat()
    });
    let all = ranks.gather(own)?;
    ranks.lap(clock, "wait");
    let sum = |i: usize| all.iter().map(|numbers| numbers[i]).sum::<f64>();
    let sums = [0, 1, 2, 3, 4].map(sum);
    if !sums[0].is_finite() {
        return Err(Error::NotFinite { what: "loss", value: sums[0], step: optim.step });
    }
    let [positions, pairs, answers] = [5, 6, 7].map(|i| sum(i) as u64);
    Ok((sums, Work { positions, pairs, answers }))
}

/// Sums gradient and figures over this rank's packs.
fn accumulate(
    model: &Model,
    optim: &mut AdamW,
    reference: Option<&Model>,
    samples: &[Graded],
    o: &Options,
    ranks: &Ranks,
    clock: &mut Clock,
) -> Result<([f64; 5], Work)> {
    let sequences: Vec<Sequence> = samples.iter().map(Graded::sequence).collect();
    let rows: Vec<&Sequence> = sequences.iter().collect();
    let totals =
        Totals { samples: samples.len(), tokens: samples.iter().map(|s| s.tokens.len()).sum() };
    let flat = optim.gradient()?;
    let grads = Gradients::new(model, &flat);
    let mut sums: Sums = Tensor::f_zeros([5], (Kind::Float, model.device))?;
    let mut work = Work::default();
    let streamed = reference.is_some_and(|r| r.params.flat.device() != r.device);
    let at_once = if streamed { STREAMED } else { 1 };
    let packs = share::packs(&rows, o.micro_tokens, ranks.rank(), ranks.world());
    for some in packs.chunks(at_once) {
        let pack = |share: &Share| {
            let rows: Vec<&Sequence> = share.rows.iter().map(|&i| rows[i]).collect();
            Batch::new(&rows, model.device)
        };
        let batches: Vec<Batch> = some.iter().map(pack).collect::<Result<_>>()?;
        clock.lap("pack");
        let mut scored = reference_scores(model, reference, &batches, o)?.into_iter();
        clock.lap("reference");
        for (share, batch) in some.iter().zip(&batches) {
            let graded: Vec<&Graded> = share.rows.iter().map(|&i| &samples[i]).collect();
            let mut c = Constants::new(&graded, batch, scored.next(), &totals, &o.objective)?;
            // Each pack of each update has a dropout of its own.
            let seed = optim.step << 32 | share.before;
            work.add(batch);
            let pass = Pass::new(model, batch, o.temperature, o.memory, seed)?;
            clock.lap("forward");
            if o.objective.ratio == Ratio::Sequence {
                let [loss, cut] = c.by_sequence(&pass.logprobs()?, o.old, &o.objective)?;
                let _ = sums.f_get(0)?.f_add_(&loss)?;
                let _ = sums.f_get(2)?.f_add_(&cut)?;
            }
            pass.backward(&grads, clock, |scores| {
                let (loss, figures) = c.loss(scores, o.old, &o.objective)?;
                let _ = sums.f_add_(&figures)?;
                Ok(loss)
            })?;
        }
    }
    let mut out = [0_f32; 5];
    sums.f_to_device(tch::Device::Cpu)?.f_copy_data(&mut out, 5)?;
    Ok((out.map(f64::from), work))
}

/// The reference's log-probabilities of each batch; none if nothing asks for them.
fn reference_scores(
    model: &Model,
    reference: Option<&Model>,
    batches: &[Batch],
    o: &Options,
) -> Result<Vec<Tensor>> {
    if o.objective.kl == 0.0 {
        return Ok(Vec::new());
    }
    match (reference, &model.adapter) {
        (Some(r), _) => loss::logprobs_all(r, batches, o.temperature),
        (None, Some(adapter)) => {
            adapter.without(|| loss::logprobs_all(model, batches, o.temperature))
        }
        (None, None) => Ok(Vec::new()),
    }
}
