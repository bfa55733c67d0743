//! One GRPO update: clipped token ratios, a k3 penalty to a frozen reference, the mean over
//! samples of the mean over tokens.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::batch::{self, Batch, Sequence};
use crate::error::{Error, Result};
use crate::loss::{self, Scores};
use crate::model::Model;
use crate::optim::{AdamW, Update};

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
    /// Weight of the k3 penalty; 0 needs no reference.
    pub kl: f64,
    /// The ratio's leash, to both sides of 1.
    pub clip: f64,
    /// Temperature of the sampler.
    pub temperature: f64,
    /// Tokens per rectangle, padding included.
    pub micro_tokens: usize,
    /// Which old log-probs.
    pub old: Old,
}

/// What a step did.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The objective's negative, penalty included.
    pub loss: f64,
    /// k3 to the reference, mean over samples of the mean over tokens.
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
    /// Wall-clock time.
    pub seconds: f64,
}

/// `exp(d) - d - 1` for `d = log q - log p` at samples of `p`: a low-variance, never negative
/// estimate of KL(p, q). `d` is held within 20 so that one token cannot overflow it.
pub fn k3(p: &Tensor, q: &Tensor) -> Result<Tensor> {
    let d = q.f_sub(p)?.f_clamp(-20.0, 20.0)?;
    Ok(d.f_exp()?.f_sub(&d)?.f_add_scalar(-1.0)?)
}

/// Per-token constants of one rectangle, float32 `[n]` on the model's device.
struct Constants {
    weight: Tensor,
    advantage: Tensor,
    sampler: Tensor,
    reference: Option<Tensor>,
}

/// Sums over tokens, float32 `[5]`: loss, weighted k3, clipped, mismatch, entropy.
type Sums = Tensor;

/// Takes one update of `model` on `samples`.
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
    let began = Instant::now();
    check(model, reference, samples, o)?;
    optim.discard()?;
    match accumulate(model, optim, reference, samples, o) {
        Err(e) => {
            optim.discard()?;
            Err(e)
        }
        Ok((sums, tokens)) => {
            let grad_norm = optim.apply(&mut model.params, &o.update)?;
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
                seconds: began.elapsed().as_secs_f64(),
            })
        }
    }
}

fn check(model: &Model, reference: Option<&Model>, all: &[Graded], o: &Options) -> Result<()> {
    let refuse = |text: String| Err(Error::Request(text));
    if all.is_empty() {
        return refuse("no samples: a step needs at least one".into());
    }
    if !(o.temperature > 0.0 && o.clip > 0.0 && o.kl >= 0.0 && o.micro_tokens > 0) {
        return refuse("temperature, clip and micro_tokens must be positive, kl not less".into());
    }
    if o.kl > 0.0 && reference.is_none() {
        return refuse("kl above 0 needs a reference_slot".into());
    }
    let other = reference.filter(|r| r.config.vocab != model.config.vocab);
    if other.is_some_and(|_| o.kl > 0.0) {
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

/// Sums gradient and figures over all rectangles.
fn accumulate(
    model: &Model,
    optim: &mut AdamW,
    reference: Option<&Model>,
    samples: &[Graded],
    o: &Options,
) -> Result<([f64; 5], usize)> {
    let sequences: Vec<Sequence> = samples
        .iter()
        .map(|s| Sequence {
            tokens: s.prompt_tokens.iter().chain(&s.tokens).copied().collect(),
            prompt: s.prompt_tokens.len(),
        })
        .collect();
    let lengths: Vec<usize> = sequences.iter().map(Sequence::inputs).collect();
    let mut sums: Sums = Tensor::f_zeros([5], (Kind::Float, model.device))?;
    let mut tokens = 0;
    for group in batch::plan(&lengths, o.micro_tokens, model.device) {
        let rows: Vec<&Sequence> = group.iter().map(|&i| &sequences[i]).collect();
        let batch = Batch::new(&rows, model.config.context, model.device)?;
        let constants = constants(model, reference, samples, &group, &batch, o)?;
        tokens += batch.tokens;
        loss::backward(model, optim, &batch, o.temperature, |scores| {
            let (loss, figures) = token_loss(scores, &constants, o)?;
            let _ = sums.f_add_(&figures)?;
            Ok(loss)
        })?;
    }
    let mut out = [0_f32; 5];
    sums.f_to_device(tch::Device::Cpu)?.f_copy_data(&mut out, 5)?;
    if !out[0].is_finite() {
        let (what, value) = ("loss", f64::from(out[0]));
        return Err(Error::NotFinite { what, value, step: optim.step });
    }
    Ok((out.map(f64::from), tokens))
}

fn constants(
    model: &Model,
    reference: Option<&Model>,
    samples: &[Graded],
    group: &[usize],
    batch: &Batch,
    o: &Options,
) -> Result<Constants> {
    let (mut weight, mut advantage, mut sampler) = (Vec::new(), Vec::new(), Vec::new());
    for &i in group {
        let s = &samples[i];
        let share = 1.0 / (samples.len() as f64 * s.tokens.len() as f64);
        weight.extend(s.tokens.iter().map(|_| share as f32));
        advantage.extend(s.tokens.iter().map(|_| s.advantage as f32));
        sampler.extend(&s.logprobs);
    }
    let put = |v: &[f32]| Tensor::f_from_slice(v)?.f_to_device(model.device);
    let reference = match reference {
        Some(r) if o.kl > 0.0 => Some(loss::logprobs(r, batch, o.temperature)?),
        _ => None,
    };
    Ok(Constants {
        weight: put(&weight)?,
        advantage: put(&advantage)?,
        sampler: put(&sampler)?,
        reference,
    })
}

/// The loss of a chunk of tokens and its part of the sums.
fn token_loss(scores: &Scores, c: &Constants, o: &Options) -> Result<(Tensor, Sums)> {
    let lp = scores.chosen;
    let (weight, advantage) = (scores.cut(&c.weight)?, scores.cut(&c.advantage)?);
    let sampler = scores.cut(&c.sampler)?;
    let old = match o.old {
        Old::Recompute => lp.f_detach()?,
        Old::Sampler => sampler.shallow_clone(),
    };
    let ratio = lp.f_sub(&old)?.f_exp()?;
    let free = ratio.f_mul(&advantage)?;
    let held = ratio.f_clamp(1.0 - o.clip, 1.0 + o.clip)?.f_mul(&advantage)?;
    let gain = free.f_minimum(&held)?;
    let mut loss = gain.f_mul(&weight)?.f_sum(Kind::Float)?.f_neg()?;
    let mut kl = Tensor::f_zeros([], (Kind::Float, lp.device()))?;
    if let Some(reference) = &c.reference {
        kl = k3(lp, &scores.cut(reference)?)?.f_mul(&weight)?.f_sum(Kind::Float)?;
        loss = loss.f_add(&kl.f_mul_scalar(o.kl)?)?;
    }
    let _guard = tch::no_grad_guard();
    let clipped = free.f_gt_tensor(&held)?.f_sum(Kind::Float)?;
    let mismatch = k3(&sampler, lp)?.f_sum(Kind::Float)?;
    let entropy = scores.all.f_exp()?.f_mul(scores.all)?.f_sum(Kind::Float)?.f_neg()?;
    let figures = [&loss, &kl, &clipped, &mismatch, &entropy].map(|t| t.f_detach());
    let figures = figures.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    Ok((loss, Tensor::f_stack(&figures, 0)?))
}
