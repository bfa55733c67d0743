//! Adapters that are trained in place of all weights.

use serde::{Deserialize, Serialize};

use super::{Positive, Probability, Share, TrainerConfig};

/// A matrix that can have an adapter, by Hugging Face's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Target {
    /// Query.
    #[serde(rename = "q_proj")]
    Q,
    /// Key.
    #[serde(rename = "k_proj")]
    K,
    /// Value.
    #[serde(rename = "v_proj")]
    V,
    /// Attention's output.
    #[serde(rename = "o_proj")]
    O,
    /// Gate.
    #[serde(rename = "gate_proj")]
    Gate,
    /// Up.
    #[serde(rename = "up_proj")]
    Up,
    /// Down.
    #[serde(rename = "down_proj")]
    Down,
}

/// `[trainer.lora]`: each policy trains `y = W x + (alpha / r) B A dropout(x)` beside the matrices of its
/// first weights, which stay as they are and are the reference. Absent: all weights are trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Lora {
    /// Rank.
    pub r: Positive,
    /// The product is multiplied by `alpha / r`.
    pub alpha: Share<1_000_000>,
    /// Share of inputs that a step leaves out, below 1.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub dropout: Probability,
    /// Which matrices of each layer.
    pub targets: Vec<Target>,
}

fn is_nothing(share: &Probability) -> bool {
    share.get() == 0.0
}

/// Where the keys of [`Lora`] begin.
pub(super) const PLACE: &str = "trainer.lora";

pub(super) fn check(trainer: &TrainerConfig) -> Result<(), String> {
    let Some(lora) = &trainer.lora else { return Ok(()) };
    let mut targets = lora.targets.clone();
    targets.sort_unstable();
    targets.dedup();
    if targets.len() != lora.targets.len() || targets.is_empty() {
        return Err(format!("{PLACE}.targets: must name at least one matrix, none twice"));
    }
    if lora.alpha.get() <= 0.0 {
        return Err(format!("{PLACE}.alpha: must be above 0"));
    }
    if lora.dropout.get() >= 1.0 {
        return Err(format!("{PLACE}.dropout: must be below 1: else nothing is left"));
    }
    Ok(())
}

impl TrainerConfig {
    /// The file of a checkpoint whose digest names the weights that a step came to.
    pub fn weights_file(&self) -> &'static str {
        if self.lora.is_some() { "adapter_model.safetensors" } else { "model.safetensors" }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{EXAMPLE, RunConfig};

    fn with(lines: &str) -> Result<RunConfig, String> {
        let text = format!("{EXAMPLE}\n[trainer.lora]\n{lines}\n");
        RunConfig::parse(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_adapter_is_asked_for_whole_and_goes_through_the_run() {
        let plain = RunConfig::parse(EXAMPLE).unwrap();
        assert!(!plain.to_text().unwrap().contains("lora"));
        assert_eq!(plain.trainer.weights_file(), "model.safetensors");
        let config = with("r = 8\nalpha = 16\ntargets = [\"q_proj\", \"down_proj\"]").unwrap();
        assert_eq!(config.trainer.weights_file(), "adapter_model.safetensors");
        assert_eq!(RunConfig::parse(&config.to_text().unwrap()).unwrap(), config);
        for (key, value) in [("trainer.lora.r", "4"), ("trainer.lora", "{}")] {
            let error = config.with(key, Some(value)).unwrap_err().to_string();
            assert!(error.starts_with(key) && error.contains("began with"), "{error}");
        }
        let error = plain.with("trainer.lora.r", Some("4")).unwrap_err().to_string();
        assert!(error.contains("began with"), "{error}");
        for (lines, says) in [
            ("r = 0\nalpha = 16\ntargets = [\"q_proj\"]", "not a whole number from 1"),
            ("r = 8\nalpha = 0\ntargets = [\"q_proj\"]", "trainer.lora.alpha: must be above 0"),
            ("r = 8\nalpha = 1\ntargets = []", "trainer.lora.targets: must name at least one"),
            ("r = 8\nalpha = 1\ntargets = [\"q_proj\", \"q_proj\"]", "none twice"),
            ("r = 8\nalpha = 1\ntargets = [\"query\"]", "unknown variant"),
            ("r = 8\nalpha = 1\ndropout = 1\ntargets = [\"q_proj\"]", "must be below 1"),
            ("r = 8\nalpha = 1", "missing field `targets`"),
            ("r = 8\nalpha = 1\nrank = 2\ntargets = [\"q_proj\"]", "unknown field"),
        ] {
            let error = with(lines).unwrap_err();
            assert!(error.contains(says), "{lines}: {error}");
        }
    }
}
