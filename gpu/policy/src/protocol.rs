//! What `serve` may be asked: one JSON object per line, with an `op` and perhaps an `id`, which
//! the reply repeats.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

use crate::grpo::{Graded, Objective, Old};
use crate::lora::Lora;

/// What a caller may ask.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Opens a model in a slot; a model that was there is replaced once the new one is whole.
    Load(Load),
    /// Frees a slot.
    Unload {
        /// The slot's name.
        slot: String,
    },
    /// Samples answers.
    Generate(Generate),
    /// Takes one GRPO update.
    Grpo(Grpo),
    /// Writes a checkpoint: of a model with an adapter, the adapter alone.
    Save {
        /// The slot's name.
        slot: String,
        /// The folder, made if absent.
        dir: PathBuf,
        /// `f32` (default) or `bf16`.
        #[serde(default = "f32_word")]
        dtype: String,
        /// Write the optimizer too.
        #[serde(default)]
        optimizer: bool,
        /// Largest file of weights, in bytes; more are written in several, with an index.
        #[serde(default = "shard")]
        shard_bytes: u64,
    },
    /// Lists slots and devices.
    Info,
    /// Answers at once.
    Ping,
    /// Ends the `generate` under way, which then fails with `cancelled`.
    Cancel,
}

impl Request {
    /// All ranks do it together; the rest is done by rank 0 alone.
    pub(crate) fn of_all(&self) -> bool {
        match self {
            Request::Load(_)
            | Request::Unload { .. }
            | Request::Generate(_)
            | Request::Grpo(_)
            | Request::Save { .. } => true,
            Request::Info | Request::Ping | Request::Cancel => false,
        }
    }
}

/// Arguments of `load`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The slot's name.
    pub slot: String,
    /// Hugging Face folder or GGUF file.
    pub dir: PathBuf,
    /// A checkpoint's optimizer file; needs `trainable`.
    #[serde(default)]
    pub optimizer: Option<PathBuf>,
    /// `cpu`, `cuda`, `cuda:N`. Of an engine with several ranks it must be the first one's; the others
    /// have their own.
    #[serde(default = "cpu")]
    pub device: String,
    /// Keep what training needs.
    #[serde(default)]
    pub trainable: bool,
    /// Compute type; by default f32 on a CPU, bf16 on CUDA.
    #[serde(default)]
    pub dtype: Option<String>,
    /// Keep the weights in the host's memory and send them layer by layer: for a reference.
    #[serde(default)]
    pub hosted: bool,
    /// Train a new adapter instead of the weights; needs `trainable`.
    #[serde(default)]
    pub lora: Option<Lora>,
    /// Folder of an adapter to go on with.
    #[serde(default)]
    pub adapter: Option<PathBuf>,
    /// Seed of a new adapter.
    #[serde(default)]
    pub seed: u64,
}

/// One prompt: a user message, or tokens as they are.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// The user's message; the chat template is put around it.
    #[serde(default)]
    pub text: Option<String>,
    /// Prompt tokens, template included, instead of `text`.
    #[serde(default)]
    pub tokens: Option<Vec<u32>>,
    /// One per sample: numbers, or strings of digits for readers that lose 64-bit numbers.
    #[serde(deserialize_with = "seeds")]
    pub seeds: Vec<u64>,
}

/// Arguments of `generate`.
#[derive(Debug, Deserialize)]
pub struct Generate {
    /// The slot's name.
    pub slot: String,
    /// The prompts.
    pub prompts: Vec<Ask>,
    /// See [`crate::sampling::Sampling`].
    #[serde(default = "one")]
    pub temperature: f64,
    /// See [`crate::sampling::Sampling`].
    #[serde(default)]
    pub top_k: usize,
    /// See [`crate::sampling::Sampling`].
    #[serde(default = "one")]
    pub top_p: f64,
    /// Tokens per answer.
    pub max_new_tokens: usize,
    /// Samples in flight.
    #[serde(default = "thirty_two")]
    pub max_batch: usize,
    /// Strings that end an answer, besides the model's own tokens.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Send each answer in a line of its own as soon as it is finished, and not in the reply.
    #[serde(default)]
    pub stream: bool,
}

/// Arguments of `grpo`. Defaults are the paper's.
#[derive(Debug, Deserialize)]
pub struct Grpo {
    /// The trainable slot.
    pub slot: String,
    /// The frozen reference; needed when `kl` is above 0.
    #[serde(default)]
    pub reference_slot: Option<String>,
    /// The batch.
    pub samples: Vec<Graded>,
    /// Learning rate.
    #[serde(default = "lr")]
    pub lr: f64,
    /// Decoupled weight decay.
    #[serde(default = "hundredth")]
    pub weight_decay: f64,
    /// Largest global gradient norm.
    #[serde(default = "one")]
    pub grad_clip: f64,
    /// What is minimised, its fields among these.
    #[serde(flatten)]
    pub objective: Objective,
    /// The sampler's temperature.
    #[serde(default = "one")]
    pub temperature: f64,
    /// Positions per pack.
    #[serde(default = "micro")]
    pub micro_tokens: usize,
    /// Which old log-probs.
    #[serde(default)]
    pub old_logprobs: Old,
}

fn cpu() -> String {
    "cpu".into()
}
fn shard() -> u64 {
    crate::files::SHARD_BYTES
}
fn f32_word() -> String {
    "f32".into()
}
fn one() -> f64 {
    1.0
}
fn thirty_two() -> usize {
    32
}
fn lr() -> f64 {
    1e-6
}
fn hundredth() -> f64 {
    1e-2
}
fn micro() -> usize {
    8192
}

fn seeds<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Seed {
        Number(u64),
        Text(String),
    }
    let list = Vec::<Seed>::deserialize(d)?;
    let parse = |s| match s {
        Seed::Number(n) => Ok(n),
        Seed::Text(t) => t.parse().map_err(|_| serde::de::Error::custom("a seed is a u64")),
    };
    list.into_iter().map(parse).collect()
}
