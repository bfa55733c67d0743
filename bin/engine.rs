//! The engine port over a child process.

mod process;

use std::path::{Path, PathBuf};

use actors::ports::{Engine, GenerateJob, TrainJob, Trained, Weights, WorldFailed};
use anyhow::Result;
use events::config::{Aggregate, OldLogprobs, Variant};
use events::event::{Finish, Update};
use events::sample::Sample;
use serde::Deserialize;
use serde_json::{Value, json};
use store::BlobDir;

use crate::host::HostConfig;

pub use process::Killer;
use process::{EngineProcess, world};

/// The engine of one device.
pub struct ChildEngine {
    process: EngineProcess,
    device: String,
    blobs: BlobDir,
    /// Where trained weights go.
    into: BlobDir,
    /// Folders in which weights lie as files; emptied at the start.
    scratch: PathBuf,
}

#[derive(Deserialize)]
struct GeneratedPrompt {
    prompt_tokens: Vec<u32>,
    samples: Vec<GeneratedSample>,
}

#[derive(Deserialize)]
struct GeneratedSample {
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    truncated_logprobs: Vec<f32>,
    finish: Finish,
}

#[derive(Deserialize)]
struct Report {
    loss: f64,
    kl: f64,
    grad_norm: f64,
    clip_fraction: f64,
    mismatch_kl: f64,
    entropy: f64,
    tokens: u64,
}

impl ChildEngine {
    /// Prepares an engine; the child starts with the first job.
    pub fn new(host: &HostConfig, blobs: BlobDir, run_dir: &Path) -> Result<Self> {
        let scratch = run_dir.join("weights");
        if scratch.exists() {
            std::fs::remove_dir_all(&scratch)?;
        }
        Ok(Self {
            process: EngineProcess::new(host, run_dir.join("engine.log"))?,
            device: host.engine_device().to_owned(),
            into: blobs.clone(),
            blobs,
            scratch,
        })
    }

    /// Stores what it trains there and not where it reads.
    pub fn storing_in(self, into: BlobDir) -> Self {
        Self { into, ..self }
    }

    /// A handle that ends the child.
    pub fn killer(&self) -> Killer {
        self.process.killer()
    }

    /// Writes weights out as a folder, once.
    fn folder(&self, weights: &Weights) -> Result<PathBuf, WorldFailed> {
        let folder = self.scratch.join(weights.policy.to_string());
        if folder.is_dir() {
            return Ok(folder);
        }
        let unfinished = self.scratch.join(format!("{}.new", weights.policy));
        let _ = std::fs::remove_dir_all(&unfinished);
        std::fs::create_dir_all(&unfinished).map_err(world("cannot make the weights' folder"))?;
        for (name, blob) in &weights.files {
            let target = unfinished.join(name);
            self.blobs.export_to(*blob, &target).map_err(|e| WorldFailed(e.to_string()))?;
        }
        std::fs::rename(&unfinished, &folder).map_err(world("cannot name the weights' folder"))?;
        Ok(folder)
    }

    /// Makes `slot` hold `weights`.
    fn hold(&mut self, slot: &str, weights: &Weights, train: bool) -> Result<(), WorldFailed> {
        let held = self.process.held().and_then(|held| held.get(slot));
        if held.is_some_and(|(held, can)| held.policy == weights.policy && (*can || !train)) {
            return Ok(());
        }
        let folder = self.folder(weights)?;
        let optimizer = folder.join("optimizer.safetensors");
        let mut request = json!({
            "op": "load", "slot": slot, "dir": folder, "device": self.device, "trainable": train,
        });
        if train && optimizer.is_file() {
            request["optimizer"] = json!(optimizer);
        }
        self.process.ask(&request)?;
        if let Some(held) = self.process.held() {
            held.insert(slot.to_owned(), (weights.clone(), train));
        }
        Ok(())
    }

    /// Saves `slot` and stores its files.
    fn save(&mut self, slot: &str) -> Result<Vec<(String, events::ids::BlobId)>, WorldFailed> {
        let folder = self.scratch.join("saved");
        let _ = std::fs::remove_dir_all(&folder);
        // Blobs have names of one file each.
        let request = json!({
            "op": "save", "slot": slot, "dir": folder, "dtype": "f32", "optimizer": true,
            "shard_bytes": u64::MAX,
        });
        self.process.ask(&request)?;
        let mut files = Vec::new();
        for name in ["config.json", "model.safetensors", "optimizer.safetensors"] {
            let blob = self.into.put_file(&folder.join(name));
            files.push((name.to_owned(), blob.map_err(|e| WorldFailed(e.to_string()))?));
        }
        std::fs::remove_dir_all(&folder).map_err(world("cannot remove saved weights"))?;
        Ok(files)
    }
}

/// Writes what is not as in the paper into a request.
fn vary(request: &mut Value, v: &Variant) {
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            request[key] = value;
        }
    };
    set("clip_high", v.clip_high.map(|x| json!(x.get())));
    set("ratio", v.ratio.map(|ratio| json!(ratio)));
    set("penalty", v.penalty.map(|penalty| json!(penalty)));
    set("entropy", v.entropy_weight.map(|x| json!(x.get())));
    set("importance_cap", v.importance_cap.map(|x| json!(x.get())));
    let sums = |aggregate| match (aggregate, v.sum_per) {
        (Aggregate::SampleSum, Some(per)) => json!({ "sample-sum": per.get() }),
        (other, _) => json!(other),
    };
    set("aggregate", v.aggregate.map(sums));
}

fn reply<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, WorldFailed> {
    serde_json::from_value(value).map_err(|e| WorldFailed(format!("the engine's reply: {e}")))
}

impl Engine for ChildEngine {
    fn generate(&mut self, job: &GenerateJob) -> Result<Vec<Vec<(Sample, Finish)>>, WorldFailed> {
        let slot = job.weights.policy.role.to_string();
        self.hold(&slot, &job.weights, false)?;
        let prompts: Vec<Value> =
            job.prompts.iter().map(|p| json!({ "text": p.text, "seeds": p.seeds })).collect();
        let request = json!({
            "op": "generate", "slot": slot, "prompts": prompts,
            "temperature": job.sampling.temperature, "top_k": job.sampling.top_k,
            "top_p": job.sampling.top_p, "max_new_tokens": job.max_output_tokens, "max_batch": 64,
        });
        let mut answered = self.process.ask(&request)?;
        let answered: Vec<GeneratedPrompt> = reply(answered["prompts"].take())?;
        let mut all = Vec::with_capacity(answered.len());
        for (prompt, answers) in job.prompts.iter().zip(answered) {
            if answers.prompt_tokens.len() > job.max_prompt_tokens as usize {
                return Err(WorldFailed(format!(
                    "a prompt has {} tokens, max-prompt-tokens is {}",
                    answers.prompt_tokens.len(),
                    job.max_prompt_tokens
                )));
            }
            let sample = |answer: GeneratedSample| {
                let sample = Sample {
                    prompt: prompt.text.clone(),
                    prompt_tokens: answers.prompt_tokens.clone(),
                    text: answer.text,
                    tokens: answer.tokens,
                    logprobs: answer.logprobs,
                    truncated_logprobs: answer.truncated_logprobs,
                    sampling: job.sampling,
                };
                (sample, answer.finish)
            };
            all.push(answers.samples.into_iter().map(sample).collect());
        }
        Ok(all)
    }

    fn train(&mut self, job: &TrainJob) -> Result<Trained, WorldFailed> {
        let slot = job.weights.policy.role.to_string();
        let reference = format!("{slot}-reference");
        self.hold(&slot, &job.weights, true)?;
        self.hold(&reference, &job.reference, false)?;
        let samples: Vec<Value> = job
            .samples
            .iter()
            .map(|(advantage, sample)| {
                json!({
                    "prompt_tokens": sample.prompt_tokens, "tokens": sample.tokens,
                    "logprobs": sample.logprobs, "advantage": advantage,
                })
            })
            .collect();
        let temperature = job.samples.first().map_or(1.0, |(_, s)| s.sampling.temperature);
        let mut request = json!({
            "op": "grpo", "slot": slot, "reference_slot": reference, "samples": samples,
            "lr": job.learning_rate, "weight_decay": job.weight_decay, "grad_clip": job.grad_clip,
            "kl": job.kl_coefficient, "clip": job.clip_ratio, "temperature": temperature,
            "micro_tokens": job.micro_tokens,
            "old_logprobs": match job.old_logprobs {
                OldLogprobs::Recompute => "recompute",
                OldLogprobs::Sampler => "sampler",
            },
        });
        vary(&mut request, &job.variant);
        // From here on the slot holds other weights than it says, until the step is known as done.
        if let Some(held) = self.process.held() {
            held.remove(&slot);
        }
        let report: Report = reply(self.process.ask(&request)?)?;
        let files = self.save(&slot)?;
        let weights = files.iter().find(|(name, _)| name == "model.safetensors");
        let weights = weights.map(|(_, id)| *id).unwrap_or_default();
        let mut policy = job.weights.policy;
        policy.steps += 1;
        if let Some(held) = self.process.held() {
            held.insert(slot, (Weights { policy, files: files.clone() }, true));
        }
        let update = Update {
            weights,
            loss: report.loss,
            kl: report.kl,
            grad_norm: report.grad_norm,
            clip_fraction: report.clip_fraction,
            mismatch_kl: report.mismatch_kl,
            entropy: report.entropy,
            tokens: report.tokens,
            learning_rate: job.learning_rate,
        };
        Ok(Trained { update, files })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_the_paper_is_said_in_the_engines_words() {
        let mut request = json!({ "op": "grpo" });
        vary(&mut request, &Variant::default());
        assert_eq!(request, json!({ "op": "grpo" }));
        let text = r#"{"clip-high": 0.28, "ratio": "sequence", "aggregate": "sample-sum", "sum-per": 512,
            "penalty": "k2", "entropy-weight": 0.01, "importance-cap": 2.0}"#;
        vary(&mut request, &serde_json::from_str(text).unwrap());
        let wanted = json!({ "op": "grpo", "clip_high": 0.28, "ratio": "sequence",
            "aggregate": { "sample-sum": 512 }, "penalty": "k2", "entropy": 0.01, "importance_cap": 2.0 });
        assert_eq!(request, wanted);
    }
}
