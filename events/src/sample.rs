//! One answer of a model in full, as it is stored in a blob.

use serde::{Deserialize, Serialize};

/// How a sample was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits.
    pub temperature: f64,
    /// Only the smallest set of tokens with at least this probability is drawn from.
    pub top_p: f64,
    /// Only this many most probable tokens are drawn from; 0 is no limit.
    pub top_k: u32,
}

/// An answer: what was asked, what was drawn, how probable each token was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The user message.
    pub prompt: String,
    /// The prompt after the chat template, as token ids.
    pub prompt_tokens: Vec<u32>,
    /// The answer's text, without the end token.
    pub text: String,
    /// The answer's token ids, the end token included.
    pub tokens: Vec<u32>,
    /// Log-probability of each token under the full softmax at `sampling.temperature`.
    pub logprobs: Vec<f32>,
    /// The same after top-k and top-p.
    pub truncated_logprobs: Vec<f32>,
    /// How it was drawn.
    pub sampling: Sampling,
}
