//! What `serve` answers: one JSON object per line, with `"ok": true` and its own fields, or
//! `"error": {"kind", "message"}`.

use serde::Serialize;
use serde_json::Value;

use crate::error::Error;
use crate::generate::Finish;
use crate::grpo::Report;

/// One answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// Text without special tokens.
    pub text: String,
    /// Tokens, the end token included.
    pub tokens: Vec<u32>,
    /// Log-probability of each under the whole softmax at the temperature.
    pub logprobs: Vec<f32>,
    /// The same within what top-k and top-p left.
    pub truncated_logprobs: Vec<f32>,
    /// `stop` or `length`.
    pub finish: &'static str,
}

/// One answer sent ahead of the reply.
#[derive(Debug, Serialize)]
pub struct Streamed<'a> {
    /// The request's `id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: &'a Option<Value>,
    /// Which prompt, from 0.
    pub prompt: usize,
    /// Which of its seeds, from 0.
    pub index: usize,
    /// The prompt's tokens, template included.
    pub prompt_tokens: &'a [u32],
    /// The answer.
    pub sample: &'a Answer,
}

/// The answers to one prompt, in the order of its seeds.
#[derive(Debug, Serialize)]
pub struct Answers {
    /// The prompt's tokens, template included.
    pub prompt_tokens: Vec<u32>,
    /// One per seed; none if they were streamed.
    pub samples: Vec<Answer>,
}

/// A slot, for `load` and `info`.
#[derive(Debug, Serialize)]
pub struct SlotInfo {
    /// The slot's name.
    pub slot: String,
    /// `Llama` or `Qwen2`.
    pub architecture: String,
    /// Numbers in the model.
    pub parameters: i64,
    /// Longest sequence.
    pub context: i64,
    /// Rows of the embedding.
    pub vocab: i64,
    /// Where it computes.
    pub device: String,
    /// In which type.
    pub dtype: String,
    /// It can be trained.
    pub trainable: bool,
    /// Updates taken.
    pub step: u64,
}

/// The body of a reply.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Body {
    /// To `generate`.
    Generated {
        /// In the order asked.
        prompts: Vec<Answers>,
        /// Answer tokens in all.
        tokens: usize,
        /// Wall-clock time.
        seconds: f64,
    },
    /// To `grpo`.
    Trained(Report),
    /// To `load`.
    Loaded(SlotInfo),
    /// To `info`.
    Info {
        /// The engine's version.
        version: &'static str,
        /// CUDA devices that libtorch sees.
        cuda_devices: i64,
        /// Threads per operation on a CPU.
        threads: i32,
        /// Slots in order of name.
        slots: Vec<SlotInfo>,
    },
    /// To everything else.
    Done {},
}

/// One line out.
#[derive(Debug, Serialize)]
pub struct Reply {
    /// The request's `id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Value>,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Success or failure.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// It worked.
    Ok {
        /// Always true.
        ok: bool,
        /// What was asked for.
        #[serde(flatten)]
        body: Body,
    },
    /// It failed, and nothing has changed.
    Error {
        /// Why.
        error: Failure,
    },
}

/// A failure on the wire.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// [`Error::kind`].
    pub kind: &'static str,
    /// For a person.
    pub message: String,
}

impl From<Result<Body, Error>> for Outcome {
    fn from(result: Result<Body, Error>) -> Self {
        match result {
            Ok(body) => Outcome::Ok { ok: true, body },
            Err(e) => Outcome::Error { error: Failure { kind: e.kind(), message: e.to_string() } },
        }
    }
}

/// The word for how an answer ended.
pub fn finish_word(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}
