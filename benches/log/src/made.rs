//! The events that are measured: runs made by the actors themselves, with an engine and a judge of
//! hashes whose measurements have the size of real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use actors::ports::{Judge, MeasureJob, WorldFailed};
use actors::shells::{Limits, Start, drive, start};
use actors::{Bus, Shells};
use anyhow::Result;
use events::event::{Draft, InitialPolicy, Recorded};
use events::ids::{BlobId, Digest, Role, RunId, Seq};
use events::log::{Blobs, Log, LogError};
use events::outcome::{Backend, Execution, Failure, Measurement, ModuleRun, SourceReport};
use store::{Home, MemoryBlobs, MemoryLog};

use crate::common::{HashEngine, HashJudge, config};

/// The judge of hashes with what a real measurement holds beside: layers, hulls with corners.
struct WordyJudge;

impl Judge for WordyJudge {
    fn purity_policy(&self) -> u32 {
        HashJudge.purity_policy()
    }

    fn module_source(&self, source: &str, tracked: &BTreeSet<String>) -> SourceReport {
        HashJudge.module_source(source, tracked)
    }

    fn run_module(&self, source: &str, seed: u64, trials: u32) -> Result<ModuleRun, WorldFailed> {
        HashJudge.run_module(source, seed, trials)
    }

    fn kernel_source(&self, source: &str) -> Result<Backend, Failure> {
        HashJudge.kernel_source(source)
    }

    fn build(&self, source: &str, to: Backend) -> Result<Result<Digest, Failure>, WorldFailed> {
        HashJudge.build(source, to)
    }

    fn measure(&self, job: &MeasureJob) -> Result<Measurement, WorldFailed> {
        let mut measured = HashJudge.measure(job)?;
        let layers = ["seccomp", "landlock", "namespaces", "rlimits", "parent-death", "users"];
        measured.layers = layers.map(Into::into).to_vec();
        measured.device = "NVIDIA H200".into();
        if let Execution::Ran { trials, .. } = &mut measured.execution {
            for output in trials.iter_mut().flat_map(|trial| &mut trial.outputs) {
                let (_, error) = output.hull[0];
                output.hull = (0..7).map(|at| (1.0 + f64::from(at), error)).collect();
            }
        }
        Ok(measured)
    }
}

/// Blobs of the last steps: older ones are asked for by nobody.
#[derive(Default)]
struct RecentBlobs {
    /// Newer ones, and those before them.
    kept: Mutex<[BTreeMap<BlobId, Arc<[u8]>>; 2]>,
    first: MemoryBlobs,
}

impl RecentBlobs {
    const MOST: usize = 200_000;

    fn find(&self, id: BlobId) -> Option<Arc<[u8]>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find_map(|blobs| blobs.get(&id).cloned())
    }
}

impl Blobs for RecentBlobs {
    fn put(&self, bytes: &[u8]) -> Result<BlobId, LogError> {
        let id = Digest::of(bytes);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept[0].len() >= Self::MOST {
            kept.swap(0, 1);
            kept[0].clear();
        }
        kept[0].insert(id, bytes.into());
        Ok(id)
    }

    fn get(&self, id: BlobId) -> Result<Vec<u8>, LogError> {
        self.find(id).map_or_else(|| self.first.get(id), |bytes| Ok(bytes.to_vec()))
    }

    fn has(&self, id: BlobId) -> bool {
        self.find(id).is_some() || self.first.has(id)
    }
}

/// Runs `rounds` rounds with steps of 16 API sets of 8 modules into `log`.
fn run(log: Arc<dyn Log>, rounds: u64) -> Result<()> {
    let mut config = config(7);
    for policy in [&mut config.proposer.policy, &mut config.coder.policy] {
        policy.batch_prompts = 16.try_into().map_err(anyhow::Error::msg)?;
        policy.group_size = 8.try_into().map_err(anyhow::Error::msg)?;
    }
    config.rounds = i64::try_from(rounds)?.try_into().map_err(anyhow::Error::msg)?;
    let blobs = Arc::new(RecentBlobs::default());
    let file = |role: Role| -> Result<InitialPolicy> {
        let blob = blobs.first.put(role.to_string().as_bytes())?;
        Ok(InitialPolicy { role, files: vec![("model.safetensors".to_owned(), blob)] })
    };
    let first = Start {
        run: RunId::new(1, [3; 10]),
        config: config.to_text()?,
        code: "bench".into(),
        environment: vec![],
        api_table: blobs.first.put(b"a.x\t5\na.y\t5\na.z\t5\na.w\t5\n")?,
        policies: vec![file(Role::Proposer)?, file(Role::Coder)?],
    };
    let bus = Arc::new(Bus::open(log.clone(), blobs.clone())?);
    start(&bus, first)?;
    let engine = HashEngine { blobs: Arc::new(MemoryBlobs::new()), fails_every: 0, calls: 0 };
    let limits = Limits { samples: 4096, judges: 64 };
    drive(&mut Shells::new(Box::new(engine), Arc::new(WordyJudge), limits), &bus)?;
    Ok(())
}

/// Some ten thousand events of all kinds, with their sizes said.
pub fn mix() -> Result<Vec<Draft>> {
    let log = Arc::new(MemoryLog::new());
    run(log.clone(), 8)?;
    let records = log.read_after(Seq(0), usize::MAX)?;
    let mut kinds: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut bytes = 0;
    for record in &records {
        let length = store::codec::encode(record).map_or(0, |stored| stored.len() as u64);
        let kind = kinds.entry(record.event.name()).or_default();
        *kind = (kind.0 + 1, kind.1 + length);
        bytes += length;
    }
    println!(
        "events     {} bytes each (payload), {} kinds:",
        bytes / records.len() as u64,
        kinds.len()
    );
    for (name, (count, bytes)) in kinds.iter().filter(|(_, (count, _))| *count > 100) {
        let share = 100.0 * *count as f64 / records.len() as f64;
        println!("           {share:>5.1} %  {name:<16} {:>4} bytes", bytes / count);
    }
    Ok(records.into_iter().map(draft).collect())
}

/// A run of about `events` events in files; made in memory, where no append waits for a disk.
pub fn long(folder: &Path, events: u64) -> Result<()> {
    let (begun, two) = (Instant::now(), Arc::new(MemoryLog::new()));
    run(two.clone(), 2)?;
    let made = Arc::new(MemoryLog::new());
    run(made.clone(), 1 + 2 * events / two.head().0.0)?;
    let log = Home::open(folder)?.create_run(RunId::new(1, [3; 10]))?;
    let mut after = Seq(0);
    loop {
        let read = made.read_after(after, 1000)?;
        let Some(last) = read.last() else { break };
        after = last.seq;
        log.append(read.into_iter().map(draft).collect())?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("long run   {} events, made by the actors in {seconds:.0} s", log.head().0.0);
    Ok(())
}

fn draft(record: Recorded) -> Draft {
    Draft { cause: record.cause, actor: record.actor, event: record.event }
}
