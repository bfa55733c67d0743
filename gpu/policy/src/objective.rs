//! What a GRPO update minimises, and its variants.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::grpo::{Graded, Old};
use crate::loss::{Loss, Scores};

/// How the tokens of a batch become one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregate {
    /// The mean over samples of the mean over their tokens (GRPO).
    #[default]
    SampleMean,
    /// The mean over all tokens of the batch (DAPO).
    TokenMean,
    /// The mean over samples of the sum over their tokens, divided by this constant (Dr. GRPO).
    SampleSum(f64),
}

/// Estimate of the divergence from the reference; `d` is `log ref - log p`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Penalty {
    /// `-d`.
    K1,
    /// `d² / 2`, whose gradient is the divergence's.
    K2,
    /// `exp(d) - d - 1`, see [`k3`].
    #[default]
    K3,
}

/// What the clip holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ratio {
    /// Each token's ratio.
    #[default]
    Token,
    /// The geometric mean of a sample's ratios (GSPO).
    Sequence,
}

/// The objective. What is absent on the wire is as in the paper.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct Objective {
    /// The ratio's leash below 1, and above it unless `clip_high` says otherwise.
    pub clip: f64,
    /// The ratio's leash above 1 (DAPO: 0.28).
    pub clip_high: Option<f64>,
    /// What the clip holds.
    pub ratio: Ratio,
    /// How tokens become one number.
    pub aggregate: Aggregate,
    /// Weight of the divergence from the reference; 0 needs no reference.
    pub kl: f64,
    /// How that is estimated.
    pub penalty: Penalty,
    /// Weight of the entropy, which is made larger; 0 leaves it alone.
    pub entropy: f64,
    /// Truncated importance weights: each token (or sample) counts `min(p / p_sampler, cap)` times,
    /// `p` from the trainer before the update.
    pub importance_cap: Option<f64>,
}

impl Default for Objective {
    fn default() -> Self {
        Objective {
            clip: 0.2,
            clip_high: None,
            ratio: Ratio::Token,
            aggregate: Aggregate::SampleMean,
            kl: 1e-2,
            penalty: Penalty::K3,
            entropy: 0.0,
            importance_cap: None,
        }
    }
}

impl Objective {
    /// Refuses numbers that make no sense.
    pub(crate) fn check(&self, old: Old) -> Result<()> {
        let refuse = |text: &str| Err(Error::Request(text.into()));
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !positive(self.clip) || !self.clip_high.is_none_or(positive) {
            return refuse("clip and clip_high must be positive");
        }
        if !(self.kl.is_finite() && self.kl >= 0.0 && self.entropy.is_finite()) {
            return refuse("kl must be at least 0, entropy finite");
        }
        if let Aggregate::SampleSum(per) = self.aggregate
            && !positive(per)
        {
            return refuse("the constant of sample-sum must be positive");
        }
        match self.importance_cap {
            Some(cap) if !positive(cap) => refuse("importance_cap must be positive"),
            Some(_) if old == Old::Sampler => refuse(
                "importance_cap needs old_logprobs = recompute: the ratio is the weight else",
            ),
            _ => Ok(()),
        }
    }
}

/// `exp(d) - d - 1` for `d = log q - log p` at samples of `p`: a low-variance, never negative
/// estimate of KL(p, q). `d` is held within 20 so that one token cannot overflow it.
pub fn k3(p: &Tensor, q: &Tensor) -> Result<Tensor> {
    let d = q.f_sub(p)?.f_clamp(-20.0, 20.0)?;
    Ok(d.f_exp()?.f_sub(&d)?.f_add_scalar(-1.0)?)
}

/// What an update takes of the whole batch's samples.
pub(crate) struct Totals {
    pub(crate) samples: usize,
    pub(crate) tokens: usize,
}

/// Per-token constants of one pack, float32 `[n]` on the model's device.
pub(crate) struct Constants {
    weight: Tensor,
    advantage: Tensor,
    sampler: Tensor,
    reference: Option<Tensor>,
    /// Of [`Ratio::Sequence`]: the derivative of the loss by each token's log-probability.
    by_sequence: Option<Tensor>,
    /// int64 `[n]`: which sample of the pack a token belongs to.
    owner: Tensor,
    /// float32 `[samples]`: answer tokens of each.
    lengths: Tensor,
}

/// Sums over tokens, float32 `[5]`: loss, weighted divergence, clipped, mismatch, entropy.
pub(crate) type Sums = Tensor;

impl Constants {
    pub(crate) fn new(
        samples: &[&Graded],
        batch: &Batch,
        reference: Option<Tensor>,
        totals: &Totals,
        o: &Objective,
    ) -> Result<Self> {
        let (mut weight, mut advantage, mut sampler) = (Vec::new(), Vec::new(), Vec::new());
        let (mut owner, mut lengths) = (Vec::new(), Vec::new());
        for (i, s) in samples.iter().enumerate() {
            let n = s.tokens.len();
            let share = match o.aggregate {
                Aggregate::SampleMean => 1.0 / (totals.samples as f64 * n as f64),
                Aggregate::TokenMean => 1.0 / totals.tokens as f64,
                Aggregate::SampleSum(per) => 1.0 / (totals.samples as f64 * per),
            };
            weight.extend(std::iter::repeat_n(share as f32, n));
            advantage.extend(std::iter::repeat_n(s.advantage as f32, n));
            sampler.extend(&s.logprobs);
            owner.extend(std::iter::repeat_n(i as i64, n));
            lengths.push(n as f32);
        }
        let device = batch.ids.device();
        let put = |v: &[f32]| Tensor::f_from_slice(v)?.f_to_device(device);
        Ok(Constants {
            weight: put(&weight)?,
            advantage: put(&advantage)?,
            sampler: put(&sampler)?,
            reference,
            by_sequence: None,
            owner: Tensor::f_from_slice(&owner)?.f_to_device(device)?,
            lengths: put(&lengths)?,
        })
    }

    /// Sums of `x` `[n]` over the tokens of each sample `[samples]`.
    fn by_sample(&self, x: &Tensor) -> Result<Tensor> {
        let zeros = Tensor::f_zeros_like(&self.lengths)?.f_to_kind(x.f_kind()?)?;
        Ok(zeros.f_index_add(0, &self.owner, x)?)
    }

    /// Of [`Ratio::Sequence`]: works out, from the log-probabilities `[n]` of the whole pack, what
    /// each token's derivative is. Answers the loss and the clipped tokens.
    pub(crate) fn by_sequence(
        &mut self,
        lp: &Tensor,
        old: Old,
        o: &Objective,
    ) -> Result<[Tensor; 2]> {
        let lp = lp.f_detach()?.f_set_requires_grad(true)?;
        let before =
            if old == Old::Recompute { lp.f_detach()? } else { self.sampler.shallow_clone() };
        let mean = |x: &Tensor| self.by_sample(x)?.f_div(&self.lengths).map_err(Error::from);
        let ratio = mean(&lp.f_sub(&before)?)?.f_exp()?;
        let advantage = mean(&self.advantage)?;
        let mut weight = self.by_sample(&self.weight)?;
        if let Some(cap) = o.importance_cap {
            let importance = mean(&before.f_sub(&self.sampler)?)?.f_exp()?.f_clamp_max(cap)?;
            weight = weight.f_mul(&importance)?;
        }
        let (gain, free, held) = clipped(&ratio, &advantage, o)?;
        let loss = gain.f_mul(&weight)?.f_sum(Kind::Float)?.f_neg()?;
        let found = Tensor::f_run_backward(&[&loss], &[lp], false, false)?;
        self.by_sequence = Some(found[0].shallow_clone());
        let cut = free.f_gt_tensor(&held)?.f_to_kind(Kind::Float)?;
        Ok([loss.f_detach()?, cut.f_mul(&self.lengths)?.f_sum(Kind::Float)?])
    }

    /// The loss of a chunk of tokens and its part of the sums.
    pub(crate) fn loss(&self, s: &Scores, old: Old, o: &Objective) -> Result<(Loss, Sums)> {
        let lp = s.chosen;
        let (weight, sampler) = (s.cut(&self.weight)?, s.cut(&self.sampler)?);
        let zero = || Tensor::f_zeros([], (lp.f_kind()?, lp.device()));
        // A sequence's loss and clip were counted when its derivatives were worked out.
        let (mut loss, mut figure, cut) = match &self.by_sequence {
            Some(slope) => (lp.f_mul(&s.cut(slope)?)?.f_sum(Kind::Float)?, zero()?, zero()?),
            None => {
                let (loss, cut) = self.by_token(s, old, o)?;
                (loss.shallow_clone(), loss.f_detach()?, cut)
            }
        };
        let mut kl = zero()?;
        if let Some(reference) = &self.reference {
            let d = s.cut(reference)?.f_sub(lp)?;
            let each = match o.penalty {
                Penalty::K1 => d.f_neg()?,
                Penalty::K2 => d.f_square()?.f_mul_scalar(0.5)?,
                Penalty::K3 => k3(lp, &s.cut(reference)?)?,
            };
            kl = each.f_mul(&weight)?.f_sum(Kind::Float)?;
            let part = kl.f_mul_scalar(o.kl)?;
            loss = loss.f_add(&part)?;
            figure = figure.f_add(&part.f_detach()?)?;
        }
        let _guard = tch::no_grad_guard();
        let mismatch = k3(&sampler, lp)?.f_sum(Kind::Float)?;
        let entropy = s.entropy()?;
        let mut by_entropy = None;
        if o.entropy != 0.0 {
            let slope = weight.f_mul_scalar(-o.entropy)?;
            figure = figure.f_add(&slope.f_mul(&entropy)?.f_sum(Kind::Float)?)?;
            by_entropy = Some(slope);
        }
        let entropy = entropy.f_sum(Kind::Float)?;
        let sums =
            [figure, kl, cut, mismatch, entropy].map(|t| t.f_detach()?.f_to_kind(Kind::Float));
        let sums = sums.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        Ok((Loss { value: loss, by_entropy }, Tensor::f_stack(&sums, 0)?))
    }

    /// The loss of [`Ratio::Token`], and how many tokens the clip cut off.
    fn by_token(&self, s: &Scores, old: Old, o: &Objective) -> Result<(Tensor, Tensor)> {
        let lp = s.chosen;
        let (advantage, sampler) = (s.cut(&self.advantage)?, s.cut(&self.sampler)?);
        let before = if old == Old::Recompute { lp.f_detach()? } else { sampler.shallow_clone() };
        let ratio = lp.f_sub(&before)?.f_exp()?;
        let (gain, free, held) = clipped(&ratio, &advantage, o)?;
        let mut weight = s.cut(&self.weight)?;
        if let Some(cap) = o.importance_cap {
            weight = weight.f_mul(&before.f_sub(&sampler)?.f_exp()?.f_clamp_max(cap)?)?;
        }
        let loss = gain.f_mul(&weight)?.f_sum(Kind::Float)?.f_neg()?;
        Ok((loss, free.f_gt_tensor(&held)?.f_sum(Kind::Float)?))
    }
}

/// `min(r A, clip(r) A)`, and both sides of the minimum.
fn clipped(ratio: &Tensor, advantage: &Tensor, o: &Objective) -> Result<(Tensor, Tensor, Tensor)> {
    let free = ratio.f_mul(advantage)?;
    let high = 1.0 + o.clip_high.unwrap_or(o.clip);
    let held = ratio.f_clamp(1.0 - o.clip, high)?.f_mul(advantage)?;
    Ok((free.f_minimum(&held)?, free, held))
}
