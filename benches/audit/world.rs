//! A run that is a function of its settings: modules that use what they are asked to, kernels that
//! are right half of the time, measurements with as much in them as real ones.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use actors::ports::{
    Drawn, Engine, GenerateJob, Judge, MeasureJob, TrainJob, Trained, WorldFailed,
};
use actors::shells::{Limits, Start, drive, start};
use actors::{Bus, Shells};
use events::config::RunConfig;
use events::event::{Finish, InitialPolicy, Update};
use events::ids::{BlobId, Digest, Role, RunId};
use events::log::{Blobs, Log, LogError};
use events::outcome::*;
use events::rules::audit::{Evidence, text};
use events::sample::Sample;
use store::MemoryLog;

const PURITY_POLICY: u32 = 1;

/// Blobs in memory that can be read without a copy.
#[derive(Default)]
pub struct Shared(Mutex<HashMap<BlobId, Arc<[u8]>>>);

impl Blobs for Shared {
    fn put(&self, bytes: &[u8]) -> Result<BlobId, LogError> {
        let id = Digest::of(bytes);
        self.0.lock().unwrap().entry(id).or_insert_with(|| Arc::from(bytes));
        Ok(id)
    }

    fn get(&self, id: BlobId) -> Result<Vec<u8>, LogError> {
        Ok(self.0.lock().unwrap()[&id].to_vec())
    }

    fn has(&self, id: BlobId) -> bool {
        self.0.lock().unwrap().contains_key(&id)
    }
}

/// A run's log and blobs.
pub struct World {
    pub log: Arc<MemoryLog>,
    pub blobs: Arc<Shared>,
}

fn dice(text: &str, sides: u64) -> u64 {
    u64::from(Digest::of(text.as_bytes()).0[0]) % sides
}

struct HashEngine {
    blobs: Arc<Shared>,
    tokens: usize,
}

impl HashEngine {
    fn answer(&self, job: &GenerateJob, prompt: &str, seed: u64) -> (Sample, Finish) {
        let about = prompt.lines().next().unwrap_or_default();
        let text = match job.weights.policy.role {
            _ if seed.is_multiple_of(16) => "I do not know.".to_owned(),
            Role::Proposer => {
                format!("```python\nclass Model:\n    {about}\n    n = {seed}\n```\n")
            }
            Role::Coder => format!("```python\nclass ModelNew:\n    n = {seed}\n```\n"),
        };
        let logprobs = |shift: f32| (0..self.tokens).map(move |i| -(i as f32).sin().abs() - shift);
        let sample = Sample {
            prompt: prompt.to_owned(),
            prompt_tokens: (0..self.tokens as u32 / 2).collect(),
            text,
            tokens: (0..self.tokens as u32).collect(),
            logprobs: logprobs(0.5).collect(),
            truncated_logprobs: logprobs(0.25).collect(),
            sampling: job.sampling,
        };
        (sample, Finish::Stop)
    }
}

impl Engine for HashEngine {
    fn generate(
        &mut self,
        job: &GenerateJob,
        each: &mut dyn FnMut(Drawn) -> ControlFlow<()>,
    ) -> Result<(), WorldFailed> {
        job.one_by_one(each, |prompt, index| self.answer(job, &prompt.text, prompt.seeds[index]));
        Ok(())
    }

    fn train(&mut self, job: &TrainJob) -> Result<Trained, WorldFailed> {
        let text = format!("{} {}", job.weights.policy, job.samples.len());
        let weights = self.blobs.put(text.as_bytes()).unwrap();
        let update = Update {
            weights,
            loss: 0.0,
            kl: 0.0,
            grad_norm: 1.0,
            clip_fraction: 0.0,
            mismatch_kl: 0.0,
            entropy: 1.0,
            tokens: 0,
            learning_rate: job.learning_rate,
        };
        Ok(Trained { update, files: vec![("model.safetensors".to_owned(), weights)] })
    }
}

struct HashJudge;

const LAYERS: [&str; 13] = [
    "mount-ns",
    "pid-ns",
    "net-ns",
    "ipc-ns",
    "uts-ns",
    "read-only-root",
    "private-tmp",
    "own-uid",
    "no-capabilities",
    "no-new-privs",
    "rlimits",
    "parent-death",
    "seccomp",
];

impl Judge for HashJudge {
    fn purity_policy(&self) -> u32 {
        PURITY_POLICY
    }

    fn module_source(&self, source: &str, tracked: &BTreeSet<String>) -> SourceReport {
        let words = source.split([' ', ',', '\n']).filter(|word| tracked.contains(*word));
        let mut apis: Vec<String> = words.map(str::to_owned).collect();
        apis.sort();
        SourceReport::Parsed { missing: vec![], apis, forbidden: vec![] }
    }

    fn run_module(&self, source: &str, seed: u64, trials: u32) -> Result<ModuleRun, WorldFailed> {
        let trial = |index: u32| ModuleTrial {
            seed: seed ^ u64::from(index),
            elements: 128,
            nonfinite: u64::from(dice(source, 8) == 0),
            max_abs: 2.75,
            spread: 1.5,
            repeatable: true,
        };
        let trials = (0..trials).map(trial).collect();
        Ok(ModuleRun::Ran { trials, depends_on_inputs: Some(true), dead_parameters: vec![] })
    }

    fn kernel_source(&self, source: &str) -> Result<Backend, Failure> {
        match dice(source, 16) {
            0 => Err(Failure::new(FailureKind::Impure, "torch.exp in forward, line 3")),
            _ => Ok(Backend::Triton),
        }
    }

    fn build(&self, source: &str, _: Backend) -> Result<Result<Digest, Failure>, WorldFailed> {
        Ok(Ok(Digest::of(source.as_bytes())))
    }

    fn measure(&self, job: &MeasureJob) -> Result<Measurement, WorldFailed> {
        let wrong = dice(&format!("right {}", job.kernel_source), 2) == 0;
        let stats = OutputStats {
            dtype: "float32".into(),
            elements: 128,
            nonfinite_mismatches: 0,
            nonfinite_reference: 0,
            exact_mismatches: 0,
            max_reference: 2.78,
            spread_reference: 2.38,
            hull: vec![(0.07, 7.4e-9), (0.6, 1.2e-7), (2.78, if wrong { 0.5 } else { 4.7e-7 })],
        };
        let trial = |index: u32| Trial {
            seed: job.seed ^ u64::from(index),
            varied: ["given", "plain+noise", "x30+noise"][index as usize % 3].into(),
            outputs: vec![stats.clone()],
        };
        Ok(Measurement {
            execution: Execution::Ran {
                trials: (0..job.trials).map(trial).collect(),
                launches: 1,
                timing: Timing::NotTaken,
            },
            layers: LAYERS.map(Into::into).to_vec(),
            device: "cpu-interpreter".into(),
            products: false,
            headers: None,
            wall_ms: 1797,
        })
    }
}

/// The laptop's config with steps of 16 prompts of 8 answers.
fn config(rounds: i64) -> RunConfig {
    let mut config = RunConfig::parse(include_str!("../../configs/laptop.toml")).unwrap();
    config.rounds = rounds.try_into().unwrap();
    for policy in [&mut config.proposer.policy, &mut config.coder.policy] {
        policy.batch_prompts = 16.try_into().unwrap();
        policy.group_size = 8.try_into().unwrap();
    }
    config
}

fn rounds(rounds: i64, tokens: usize) -> World {
    let world = World { log: Arc::new(MemoryLog::new()), blobs: Arc::default() };
    let bus = Bus::open(world.log.clone(), world.blobs.clone()).unwrap();
    let file = |role: Role| {
        let weights = world.blobs.put(role.to_string().as_bytes()).unwrap();
        InitialPolicy { role, files: vec![("model.safetensors".to_owned(), weights)] }
    };
    let first = Start {
        run: RunId::new(1, [3; 10]),
        config: config(rounds).to_text().unwrap(),
        code: "bench".into(),
        environment: vec![],
        api_table: world.blobs.put(include_bytes!("../../configs/apis.tsv")).unwrap(),
        policies: vec![file(Role::Proposer), file(Role::Coder)],
    };
    start(&bus, first).unwrap();
    let engine = HashEngine { blobs: world.blobs.clone(), tokens };
    let limits = Limits { samples: 4096, judges: 64 };
    drive(&mut Shells::new(Box::new(engine), Arc::new(HashJudge), limits), &bus).unwrap();
    world
}

/// A run of at least about so many events, whose answers have so many tokens.
pub fn run_of(events: u64, tokens: usize) -> World {
    let round = rounds(2, 2).log.head().0.0 / 2;
    rounds(i64::try_from(events / round + 1).unwrap(), tokens)
}

/// The blobs and rules of such a run. Each reading checks the blob's hash.
pub struct Loaded(HashMap<BlobId, Arc<[u8]>>);

impl Loaded {
    pub fn new(blobs: &Shared) -> Self {
        Self(blobs.0.lock().unwrap().clone())
    }
}

impl Evidence for Loaded {
    fn blob(&self, id: BlobId) -> Result<Arc<[u8]>, String> {
        let bytes = self.0.get(&id).ok_or("missing")?;
        if Digest::of(bytes) != id {
            return Err("damaged".into());
        }
        Ok(bytes.clone())
    }

    fn holds(&self, id: BlobId, content: &[u8]) -> Result<(), String> {
        match self.0.get(&id) {
            Some(bytes) if **bytes == *content => Ok(()),
            Some(_) => Err("damaged".into()),
            None => Err("missing".into()),
        }
    }

    fn purity_policy(&self) -> u32 {
        PURITY_POLICY
    }

    fn module_source(
        &self,
        source: BlobId,
        tracked: &BTreeSet<String>,
    ) -> Result<SourceReport, String> {
        Ok(HashJudge.module_source(&text(self, source)?, tracked))
    }

    fn kernel_source(&self, source: BlobId) -> Result<Result<Backend, Failure>, String> {
        Ok(HashJudge.kernel_source(&text(self, source)?))
    }
}
