//! The engine port over a child process.

mod objective;
mod process;
mod streamed;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use actors::ports::{Adapter, Drawn, Engine, GenerateJob, TrainJob, Trained, Weights, WorldFailed};
use anyhow::Result;
use events::config::OldLogprobs;
use events::event::Update;
use events::ids::{BlobId, PolicyVersion};
use serde::Deserialize;
use serde_json::{Value, json};
use store::BlobDir;

use crate::host::HostConfig;

pub use process::Killer;
use process::{EngineProcess, world};

/// Samples in flight at most; the engine takes as many of them as its memory holds.
const MAX_BATCH: usize = 256;
const OPTIMIZER: &str = "optimizer.safetensors";

/// The engine of one device.
pub struct ChildEngine {
    process: EngineProcess,
    device: String,
    blobs: BlobDir,
    /// Where trained weights go.
    into: BlobDir,
    /// Folders in which weights lie as files; emptied at the start.
    scratch: PathBuf,
    /// The reference lies in the host's memory.
    hosted_reference: bool,
}

/// The digest that names trained weights, and all files.
type Saved = (BlobId, Vec<(String, BlobId)>);

/// What a slot's model is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Sample,
    Train,
    Reference,
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
            hosted_reference: host.hosted_reference,
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

    /// Writes files out as a folder, once.
    fn folder(&self, name: &str, files: &[(String, BlobId)]) -> Result<PathBuf, WorldFailed> {
        let folder = self.scratch.join(name);
        if folder.is_dir() {
            return Ok(folder);
        }
        let unfinished = self.scratch.join(format!("{name}.new"));
        let _ = std::fs::remove_dir_all(&unfinished);
        std::fs::create_dir_all(&unfinished).map_err(world("cannot make the weights' folder"))?;
        for (name, blob) in files {
            let target = unfinished.join(name);
            self.blobs.export_to(*blob, &target).map_err(|e| WorldFailed(e.to_string()))?;
        }
        std::fs::rename(&unfinished, &folder).map_err(world("cannot name the weights' folder"))?;
        Ok(folder)
    }

    /// Makes `slot` hold `weights`.
    fn hold(&mut self, slot: &str, weights: &Weights, what_for: Use) -> Result<(), WorldFailed> {
        let train = what_for == Use::Train;
        let held = self.process.held().and_then(|held| held.get(slot));
        if held.is_some_and(|(held, can)| held.policy == weights.policy && (*can || !train)) {
            return Ok(());
        }
        let first = PolicyVersion { steps: 0, ..weights.policy };
        let mut request = json!({
            "op": "load", "slot": slot, "device": self.device, "trainable": train,
            "hosted": what_for == Use::Reference && self.hosted_reference,
        });
        let version = weights.policy.to_string();
        let trained = match &weights.adapter {
            None => {
                let folder = self.folder(&version, &weights.files)?;
                request["dir"] = json!(folder);
                folder
            }
            Some(Adapter { lora, seed, files }) => {
                let base = self.folder(&first.to_string(), &weights.files)?;
                request["dir"] = json!(base);
                if files.is_empty() {
                    // It changes nothing yet, so it is only there to be trained.
                    if train {
                        request["lora"] = json!(lora);
                        request["seed"] = json!(seed);
                    }
                    base
                } else {
                    let folder = self.folder(&format!("{version}-adapter"), files)?;
                    request["adapter"] = json!(folder);
                    folder
                }
            }
        };
        let optimizer = trained.join(OPTIMIZER);
        if train && optimizer.is_file() {
            request["optimizer"] = json!(optimizer);
        }
        self.process.ask(&request)?;
        if let Some(held) = self.process.held() {
            held.insert(slot.to_owned(), (weights.clone(), train));
        }
        Ok(())
    }

    /// Saves what `slot` trains and stores its files, in order of their names.
    fn save(&mut self, slot: &str, adapted: bool) -> Result<Saved, WorldFailed> {
        let folder = self.scratch.join("saved");
        let _ = std::fs::remove_dir_all(&folder);
        // Blobs have names of one file each.
        let request = json!({
            "op": "save", "slot": slot, "dir": folder, "dtype": "f32", "optimizer": true,
            "shard_bytes": u64::MAX,
        });
        self.process.ask(&request)?;
        let store = |name: &str| {
            let blob = self.into.put_file(&folder.join(name));
            blob.map_err(|e| WorldFailed(e.to_string()))
        };
        let (config, weights) = match adapted {
            true => ("adapter_config.json", "adapter_model.safetensors"),
            false => ("config.json", "model.safetensors"),
        };
        let digest = store(weights)?;
        let others = [config, OPTIMIZER].map(|name| Ok((name.to_owned(), store(name)?)));
        let mut files = others.into_iter().collect::<Result<Vec<_>, WorldFailed>>()?;
        files.insert(1, (weights.to_owned(), digest));
        std::fs::remove_dir_all(&folder).map_err(world("cannot remove saved weights"))?;
        Ok((digest, files))
    }
}

fn reply<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, WorldFailed> {
    serde_json::from_value(value).map_err(|e| WorldFailed(format!("the engine's reply: {e}")))
}

impl Engine for ChildEngine {
    fn generate(
        &mut self,
        job: &GenerateJob,
        each: &mut dyn FnMut(Drawn) -> ControlFlow<()>,
    ) -> Result<(), WorldFailed> {
        let slot = job.weights.policy.role.to_string();
        self.hold(&slot, &job.weights, Use::Sample)?;
        let prompts: Vec<Value> =
            job.prompts.iter().map(|p| json!({ "text": p.text, "seeds": p.seeds })).collect();
        let request = json!({
            "op": "generate", "slot": slot, "prompts": prompts, "stream": true,
            "temperature": job.sampling.temperature, "top_k": job.sampling.top_k,
            "top_p": job.sampling.top_p, "max_new_tokens": job.max_output_tokens,
            "max_batch": MAX_BATCH,
        });
        let mut wrong = Ok(());
        let mut heard = |line: Value| match streamed::drawn(job, line) {
            Ok(drawn) => each(drawn),
            Err(error) => {
                wrong = Err(error);
                ControlFlow::Break(())
            }
        };
        self.process.ask_hearing(&request, &mut heard)?;
        wrong
    }

    fn train(&mut self, job: &TrainJob) -> Result<Trained, WorldFailed> {
        let slot = job.weights.policy.role.to_string();
        self.hold(&slot, &job.weights, Use::Train)?;
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
            "op": "grpo", "slot": slot, "samples": samples,
            "lr": job.learning_rate, "weight_decay": job.weight_decay, "grad_clip": job.grad_clip,
            "kl": job.kl_coefficient, "clip": job.clip_ratio, "temperature": temperature,
            "micro_tokens": job.micro_tokens,
            "old_logprobs": match job.old_logprobs {
                OldLogprobs::Recompute => "recompute",
                OldLogprobs::Sampler => "sampler",
            },
        });
        objective::vary(&mut request, &job.variant);
        // An adapter's reference is what lies beneath it.
        if job.weights.adapter.is_none() {
            let reference = format!("{slot}-reference");
            self.hold(&reference, &job.reference, Use::Reference)?;
            request["reference_slot"] = json!(reference);
        }
        // From here on the slot holds other weights than it says, until the step is known as done.
        if let Some(held) = self.process.held() {
            held.remove(&slot);
        }
        let report: Report = reply(self.process.ask(&request)?)?;
        let (weights, files) = self.save(&slot, job.weights.adapter.is_some())?;
        let mut after = job.weights.clone();
        after.policy.steps += 1;
        match &mut after.adapter {
            Some(adapter) => adapter.files.clone_from(&files),
            None => after.files.clone_from(&files),
        }
        if let Some(held) = self.process.held() {
            held.insert(slot, (after, true));
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
