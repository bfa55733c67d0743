//! Samples that the engine sends as they are finished.

use actors::ports::{Drawn, GenerateJob, WorldFailed};
use events::event::Finish;
use events::sample::Sample;
use serde::Deserialize;
use serde_json::Value;

use super::reply;

#[derive(Deserialize)]
struct Streamed {
    prompt: usize,
    index: usize,
    prompt_tokens: Vec<u32>,
    sample: StreamedSample,
}

#[derive(Deserialize)]
struct StreamedSample {
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    truncated_logprobs: Vec<f32>,
    finish: Finish,
}

/// A line that was sent ahead of the reply.
pub(super) fn drawn(job: &GenerateJob, line: Value) -> Result<Drawn, WorldFailed> {
    let Streamed { prompt, index, prompt_tokens, sample } = reply(line)?;
    let asked = job.prompts.get(prompt);
    let asked = asked.ok_or_else(|| WorldFailed(format!("the engine's reply: prompt {prompt}")))?;
    if prompt_tokens.len() > job.max_prompt_tokens as usize {
        return Err(WorldFailed(format!(
            "a prompt has {} tokens, max-prompt-tokens is {}",
            prompt_tokens.len(),
            job.max_prompt_tokens
        )));
    }
    let finish = sample.finish;
    let sample = Sample {
        prompt: asked.text.clone(),
        prompt_tokens,
        text: sample.text,
        tokens: sample.tokens,
        logprobs: sample.logprobs,
        truncated_logprobs: sample.truncated_logprobs,
        sampling: job.sampling,
    };
    Ok(Drawn { prompt, index, sample, finish })
}
