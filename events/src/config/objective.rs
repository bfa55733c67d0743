//! Variants of what a gradient step minimises.

use serde::{Deserialize, Serialize};

use super::{OldLogprobs, Positive, Probability, Share, TrainerConfig};

/// What the clip holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ratio {
    /// Each token's ratio.
    Token,
    /// The geometric mean of a sample's ratios (GSPO).
    Sequence,
}

/// How the tokens of a batch become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregate {
    /// The mean over samples of the mean over their tokens (GRPO).
    SampleMean,
    /// The mean over all tokens of the batch (DAPO).
    TokenMean,
    /// The mean over samples of the sum over their tokens, divided by `sum-per` (Dr. GRPO).
    SampleSum,
}

/// Estimate of the divergence from the reference; `d` is `log ref - log p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Penalty {
    /// `-d`.
    K1,
    /// `d² / 2`, whose gradient is the divergence's.
    K2,
    /// `exp(d) - d - 1`.
    K3,
}

/// `[trainer.objective]`: what is absent is as in the paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Variant {
    /// ε above 1, where `clip-ratio` is that below (DAPO: 0.28).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_high: Option<Probability>,
    /// What the clip holds; absent: each token's ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
    /// How tokens become one number; absent: sample-mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<Aggregate>,
    /// What the sums of `aggregate = "sample-sum"` are divided by, such as `max-output-tokens`; without
    /// such sums it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_per: Option<Positive>,
    /// How the divergence is estimated; absent: k3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub penalty: Option<Penalty>,
    /// Weight of the entropy, which is made larger; absent: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy_weight: Option<Probability>,
    /// Truncated importance weights: a token counts at most so many times, by the ratio of trainer and
    /// sampler; absent: all count once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub importance_cap: Option<Share<1000>>,
}

/// Where the keys of [`Variant`] begin.
pub(super) const PLACE: &str = "trainer.objective";

impl Variant {
    /// Whether nothing differs from the paper.
    pub fn is_the_papers(&self) -> bool {
        *self == Self::default()
    }
}

pub(super) fn check(trainer: &TrainerConfig) -> Result<(), String> {
    let v = &trainer.objective;
    // Settings change one at a time, so it may stand there before and after it is needed.
    if v.aggregate == Some(Aggregate::SampleSum) && v.sum_per.is_none() {
        let text = "trainer.objective.aggregate: \"sample-sum\" needs sum-per; set that first";
        return Err(text.to_owned());
    }
    for (key, value) in [
        ("clip-high", v.clip_high.map(Probability::get)),
        ("importance-cap", v.importance_cap.map(Share::get)),
    ] {
        if value.is_some_and(|value| value <= 0.0) {
            return Err(format!("{PLACE}.{key}: must be above 0"));
        }
    }
    if v.importance_cap.is_some() && trainer.old_logprobs == OldLogprobs::Sampler {
        let text = "trainer.objective.importance-cap: needs old-logprobs = \"recompute\": else the ratio is the weight";
        return Err(text.to_owned());
    }
    Ok(())
}
