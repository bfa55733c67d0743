//! The outside world as the actors see it. A candidate's failure is an `Ok`; only the world's
//! failure is an `Err`, and it never becomes a reward.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use events::config::{Lora, OldLogprobs, Variant};
use events::event::{Finish, Update};
use events::ids::{BlobId, Digest, PolicyVersion};
use events::outcome::{Backend, Failure, Measurement, ModuleReport, ModuleRun, SourceReport};
use events::rules::validity::source_fault;
use events::sample::{Sample, Sampling};

/// The world failed: disk, device, child process. The text names the thing and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WorldFailed(pub String);

/// Weights by content.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Which version.
    pub policy: PolicyVersion,
    /// File name and blob; a folder in the Hugging Face layout, with optimizer state if there is any.
    pub files: Vec<(String, BlobId)>,
    /// What is trained beside the files above, which then stay those that the policy started from.
    pub adapter: Option<Adapter>,
}

/// An adapter by content.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Its settings.
    pub lora: Lora,
    /// Seed of a new one.
    pub seed: u64,
    /// File name and blob; a folder in PEFT's layout, with optimizer state. None of a new one, which
    /// changes nothing yet.
    pub files: Vec<(String, BlobId)>,
}

/// One prompt and the samples wanted for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The user message.
    pub text: String,
    /// One seed for each sample.
    pub seeds: Vec<u64>,
}

/// Samples to draw.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateJob {
    /// Whose.
    pub weights: Weights,
    /// For what.
    pub prompts: Vec<Prompt>,
    /// How.
    pub sampling: Sampling,
    /// Longest prompt, in tokens.
    pub max_prompt_tokens: u32,
    /// Longest answer, in tokens.
    pub max_output_tokens: u32,
}

impl GenerateJob {
    /// For an engine that draws one sample after the other: gives `each` what `draw` makes of a prompt
    /// and of one of its seeds (by its place), until it breaks.
    pub fn one_by_one(
        &self,
        each: &mut dyn FnMut(Drawn) -> ControlFlow<()>,
        mut draw: impl FnMut(&Prompt, usize) -> (Sample, Finish),
    ) {
        for (prompt, asked) in self.prompts.iter().enumerate() {
            for index in 0..asked.seeds.len() {
                let (sample, finish) = draw(asked, index);
                if each(Drawn { prompt, index, sample, finish }).is_break() {
                    return;
                }
            }
        }
    }
}

/// A gradient step to take.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainJob {
    /// The weights before.
    pub weights: Weights,
    /// The weights that the KL term holds on to.
    pub reference: Weights,
    /// Advantage and answer of each sample.
    pub samples: Vec<(f64, Sample)>,
    /// AdamW's learning rate.
    pub learning_rate: f64,
    /// AdamW's weight decay.
    pub weight_decay: f64,
    /// Largest global gradient norm.
    pub grad_clip: f64,
    /// γ.
    pub kl_coefficient: f64,
    /// ε.
    pub clip_ratio: f64,
    /// Tokens in one pass.
    pub micro_tokens: u32,
    /// Where the ratio's denominator comes from.
    pub old_logprobs: OldLogprobs,
    /// What is not as in the paper.
    pub variant: Variant,
}

/// A gradient step that was taken, its files durable as blobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// What it did.
    pub update: Update,
    /// File name and blob of what was trained; sorted by name.
    pub files: Vec<(String, BlobId)>,
}

/// A sample of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// Which prompt, from 0.
    pub prompt: usize,
    /// Which of its seeds, from 0.
    pub index: usize,
    /// What was drawn.
    pub sample: Sample,
    /// Why it ended.
    pub finish: Finish,
}

/// Draws samples from both models and trains them.
pub trait Engine: Send {
    /// Draws samples and gives `each` as soon as it is finished, in any order, until it breaks. Without
    /// an error and a break it was given all of them, once each.
    fn generate(
        &mut self,
        job: &GenerateJob,
        each: &mut dyn FnMut(Drawn) -> ControlFlow<()>,
    ) -> Result<(), WorldFailed>;

    /// Takes one step. Twice the same job is twice the same result.
    fn train(&mut self, job: &TrainJob) -> Result<Trained, WorldFailed>;
}

/// A kernel to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasureJob {
    /// The reference's code.
    pub module_source: String,
    /// The kernel's code.
    pub kernel_source: String,
    /// What it is written in.
    pub backend: Backend,
    /// Seed of the inputs.
    pub seed: u64,
    /// Comparisons on fresh inputs.
    pub trials: u32,
    /// Whether to time.
    pub timing: bool,
}

/// Checks modules and kernels. Every call is safe to repeat.
pub trait Judge: Send + Sync {
    /// Version of the static rules; what they say may differ between two of them.
    fn purity_policy(&self) -> u32;

    /// What a module's source shows; pure.
    fn module_source(&self, source: &str, tracked: &BTreeSet<String>) -> SourceReport;

    /// Runs a module on random inputs.
    fn run_module(&self, source: &str, seed: u64, trials: u32) -> Result<ModuleRun, WorldFailed>;

    /// Everything observed of a module: it is run only if its source passes. `None`: no code.
    fn module_report(
        &self,
        source: Option<&str>,
        asked: &[String],
        tracked: &BTreeSet<String>,
        (seed, trials): (u64, u32),
    ) -> Result<ModuleReport, WorldFailed> {
        let Some(code) = source else {
            return Ok(ModuleReport { source: SourceReport::NoCode, run: ModuleRun::NotRun });
        };
        let source = self.module_source(code, tracked);
        let run = match source_fault(&source, asked) {
            Some(_) => ModuleRun::NotRun,
            None => self.run_module(code, seed, trials)?,
        };
        Ok(ModuleReport { source, run })
    }

    /// The static rules for kernels; pure.
    fn kernel_source(&self, source: &str) -> Result<Backend, Failure>;

    /// Builds a kernel: the build's key, or the compiler's refusal.
    fn build(&self, source: &str, backend: Backend)
    -> Result<Result<Digest, Failure>, WorldFailed>;

    /// Runs, compares and, if asked, times a kernel.
    fn measure(&self, job: &MeasureJob) -> Result<Measurement, WorldFailed>;
}
