//! A world that is a function of what it is asked: an engine and a judge without models.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use actors::ports::{
    Drawn, Engine, GenerateJob, Judge, MeasureJob, TrainJob, Trained, WorldFailed,
};
use actors::shells::{Limits, Start, start};
use actors::{Bus, Shells};
use events::config::RunConfig;
use events::event::{Event, Finish, InitialPolicy, Update};
use events::ids::{Digest, Role, RunId, Seq};
use events::log::{Blobs, Log};
use events::outcome::*;
use events::sample::Sample;
use store::{MemoryBlobs, MemoryLog};

/// The laptop's config, smaller.
pub fn config(seed: u64) -> RunConfig {
    let text = include_str!("../../configs/laptop.toml");
    let mut config = RunConfig::parse(text).unwrap();
    config.seed = (seed as i64).try_into().unwrap();
    config.proposer.policy.batch_prompts = 2.try_into().unwrap();
    config.proposer.policy.group_size = 2.try_into().unwrap();
    config.proposer.coder_samples = 2.try_into().unwrap();
    config.coder.policy.batch_prompts = 2.try_into().unwrap();
    config.coder.policy.group_size = 3.try_into().unwrap();
    config.proposer.policy.steps_per_phase = 1.try_into().unwrap();
    config.coder.policy.steps_per_phase = 2.try_into().unwrap();
    config
}

fn coin(parts: &[&[u8]], sides: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes) % sides
}

/// Draws answers and steps by hashing.
pub struct HashEngine {
    pub blobs: Arc<MemoryBlobs>,
    /// Every how many-th call fails; 0 is never.
    pub fails_every: u64,
    pub calls: u64,
}

impl HashEngine {
    fn maybe_fail(&mut self) -> Result<(), WorldFailed> {
        self.calls += 1;
        let fails = self.fails_every > 0 && self.calls.is_multiple_of(self.fails_every);
        if fails { Err(WorldFailed("the engine was unplugged".into())) } else { Ok(()) }
    }
}

impl Engine for HashEngine {
    fn generate(
        &mut self,
        job: &GenerateJob,
        each: &mut dyn FnMut(Drawn) -> ControlFlow<()>,
    ) -> Result<(), WorldFailed> {
        self.maybe_fail()?;
        let version = job.weights.policy.steps.to_le_bytes();
        let one = |prompt: &str, seed: u64| {
            let bytes = seed.to_le_bytes();
            let luck = coin(&[prompt.as_bytes(), &bytes, &version], 8);
            let text = match luck {
                0 => "I do not know.".to_owned(),
                luck => format!("Tiling.\n```python\ncode {seed} {luck}\n```\n"),
            };
            let sample = Sample {
                prompt: prompt.to_owned(),
                prompt_tokens: vec![1, 2],
                text,
                tokens: vec![luck as u32, 3],
                logprobs: vec![-0.5, -0.25],
                truncated_logprobs: vec![-0.5, -0.25],
                sampling: job.sampling,
            };
            (sample, Finish::Stop)
        };
        job.one_by_one(each, |prompt, index| one(&prompt.text, prompt.seeds[index]));
        Ok(())
    }

    fn train(&mut self, job: &TrainJob) -> Result<Trained, WorldFailed> {
        self.maybe_fail()?;
        let text = format!("{:?} {:?}", job.weights, job.samples);
        let weights = self.blobs.put(text.as_bytes()).map_err(|e| WorldFailed(e.to_string()))?;
        let update = Update {
            weights,
            loss: 0.0,
            kl: 0.0,
            grad_norm: 1.0,
            clip_fraction: 0.0,
            mismatch_kl: 0.0,
            entropy: 1.0,
            tokens: job.samples.iter().map(|(_, s)| s.tokens.len() as u64).sum(),
            learning_rate: job.learning_rate,
        };
        let optimizer = format!("optimizer {text}");
        let optimizer = self.blobs.put(optimizer.as_bytes());
        let optimizer = optimizer.map_err(|e| WorldFailed(e.to_string()))?;
        let files = vec![
            ("model.safetensors".to_owned(), weights),
            ("optimizer.safetensors".to_owned(), optimizer),
        ];
        Ok(Trained { update, files })
    }
}

/// Finds by hashing.
pub struct HashJudge;

impl Judge for HashJudge {
    fn purity_policy(&self) -> u32 {
        PURITY_POLICY
    }

    fn module_source(&self, source: &str, tracked: &BTreeSet<String>) -> SourceReport {
        let apis = match coin(&[source.as_bytes(), b"apis"], 4) {
            0 => vec![],
            _ => tracked.iter().cloned().collect(),
        };
        SourceReport::Parsed { missing: vec![], apis, forbidden: vec![] }
    }

    fn run_module(&self, source: &str, seed: u64, trials: u32) -> Result<ModuleRun, WorldFailed> {
        let trial = |index: u32| ModuleTrial {
            seed: seed ^ u64::from(index),
            elements: 4,
            nonfinite: u64::from(coin(&[source.as_bytes(), b"nan"], 8) == 0),
            max_abs: 1.0,
            spread: 1.0,
            repeatable: true,
        };
        let trials = (0..trials).map(trial).collect();
        Ok(ModuleRun::Ran { trials, depends_on_inputs: Some(true), dead_parameters: vec![] })
    }

    fn kernel_source(&self, source: &str) -> Result<Backend, Failure> {
        match coin(&[source.as_bytes(), b"pure"], 6) {
            0 => Err(Failure::new(FailureKind::Impure, "torch.exp in forward, line 3")),
            _ => Ok(Backend::Triton),
        }
    }

    fn build(&self, source: &str, _: Backend) -> Result<Result<Digest, Failure>, WorldFailed> {
        Ok(Ok(Digest::of(source.as_bytes())))
    }

    fn measure(&self, job: &MeasureJob) -> Result<Measurement, WorldFailed> {
        let wrong = coin(&[job.kernel_source.as_bytes(), b"right"], 2) == 0;
        let stats = OutputStats {
            dtype: "float32".into(),
            elements: 4,
            nonfinite_mismatches: 0,
            nonfinite_reference: 0,
            exact_mismatches: 0,
            max_reference: 1.0,
            spread_reference: 1.0,
            hull: vec![(1.0, if wrong { 0.5 } else { 0.0 })],
        };
        let trial = |index: u32| Trial {
            seed: job.seed ^ u64::from(index),
            varied: "given".into(),
            outputs: vec![stats.clone()],
        };
        Ok(Measurement {
            execution: Execution::Ran {
                trials: (0..job.trials).map(trial).collect(),
                launches: 1,
                timing: Timing::NotTaken,
            },
            layers: vec![],
            device: "none".into(),
            products: false,
            headers: None,
            wall_ms: 0,
        })
    }
}

/// What a run of hashes starts from.
pub fn first(config: &RunConfig, blobs: &MemoryBlobs) -> Start {
    let table = blobs.put(b"a.x\t5\na.y\t5\na.z\t5\na.w\t5\n").unwrap();
    let file = |role: Role| InitialPolicy {
        role,
        files: vec![(
            "model.safetensors".to_owned(),
            blobs.put(role.to_string().as_bytes()).unwrap(),
        )],
    };
    Start {
        run: RunId::new(1, [3; 10]),
        config: config.to_text().unwrap(),
        code: "test".into(),
        environment: vec![],
        api_table: table,
        policies: vec![file(Role::Proposer), file(Role::Coder)],
    }
}

/// A log and blobs in memory.
pub struct World {
    pub log: Arc<MemoryLog>,
    pub blobs: Arc<MemoryBlobs>,
}

impl World {
    pub fn new() -> Self {
        Self { log: Arc::new(MemoryLog::new()), blobs: Arc::new(MemoryBlobs::new()) }
    }

    pub fn bus(&self) -> Arc<Bus> {
        Arc::new(Bus::open(self.log.clone(), self.blobs.clone()).unwrap())
    }

    pub fn shells(&self, fails_every: u64) -> Shells {
        let engine = HashEngine { blobs: self.blobs.clone(), fails_every, calls: 0 };
        let limits = Limits { samples: 3, judges: 2 };
        Shells::new(Box::new(engine), Arc::new(HashJudge), limits)
    }

    pub fn start(&self, config: &RunConfig) {
        start(&self.bus(), first(config, &self.blobs)).unwrap();
    }

    pub fn events(&self) -> Vec<Event> {
        let read = self.log.read_after(Seq(0), usize::MAX).unwrap();
        read.into_iter().map(|recorded| recorded.event).collect()
    }
}

/// The evidence of a world of hashes.
pub struct HashEvidence<'a>(pub &'a dyn Blobs);

/// The version of the static rules that hashes are.
pub const PURITY_POLICY: u32 = 7;

impl HashEvidence<'_> {
    fn text(&self, id: Digest) -> Result<String, String> {
        events::rules::audit::text(self, id)
    }
}

impl events::rules::audit::Evidence for HashEvidence<'_> {
    fn blob(&self, id: Digest) -> Result<Arc<[u8]>, String> {
        self.0.get(id).map(Arc::from).map_err(|e| e.to_string())
    }

    fn purity_policy(&self) -> u32 {
        PURITY_POLICY
    }

    fn module_source(
        &self,
        source: Digest,
        tracked: &BTreeSet<String>,
    ) -> Result<SourceReport, String> {
        Ok(HashJudge.module_source(&self.text(source)?, tracked))
    }

    fn kernel_source(&self, source: Digest) -> Result<Result<Backend, Failure>, String> {
        Ok(HashJudge.kernel_source(&self.text(source)?))
    }
}
