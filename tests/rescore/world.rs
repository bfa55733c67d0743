//! Worlds in which the two profiles disagree.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use actors::Shells;
use actors::ports::{
    Drawn, Engine, GenerateJob, Judge, MeasureJob, TrainJob, Trained, WorldFailed,
};
use actors::shells::{Limits, Turn, drive};
use events::config::{Rules, RunConfig};
use events::event::{Actor, Draft, Event, Finish, Recorded};
use events::ids::{Digest, GroupId, Seq};
use events::log::{Blobs, Log};
use events::outcome::*;
use events::rules::rescore::{Line, Rescored, Rescorer, Row, Rulebook};
use events::sample::Sample;
use store::Home;

use crate::common::{HashEngine, HashEvidence, HashJudge, World, config};

/// Measures what only the flat tolerance lets pass, and times: each kernel by a hash of its code.
pub struct GrayJudge;

fn dice(text: &str, sides: u64) -> u64 {
    u64::from(Digest::of(text.as_bytes()).0[0]) % sides
}

impl Judge for GrayJudge {
    fn purity_policy(&self) -> u32 {
        HashJudge.purity_policy()
    }

    fn module_source(&self, source: &str, tracked: &BTreeSet<String>) -> SourceReport {
        HashJudge.module_source(source, tracked)
    }

    fn run_module(&self, source: &str, seed: u64, trials: u32) -> Result<ModuleRun, WorldFailed> {
        let mut run = HashJudge.run_module(source, seed, trials)?;
        if let ModuleRun::Ran { depends_on_inputs, .. } = &mut run {
            *depends_on_inputs = Some(dice(&format!("depends {source}"), 4) > 0);
        }
        Ok(run)
    }

    fn kernel_source(&self, source: &str) -> Result<Backend, Failure> {
        HashJudge.kernel_source(source)
    }

    fn build(
        &self,
        source: &str,
        backend: Backend,
    ) -> Result<Result<Digest, Failure>, WorldFailed> {
        HashJudge.build(source, backend)
    }

    fn measure(&self, job: &MeasureJob) -> Result<Measurement, WorldFailed> {
        let mut measurement = HashJudge.measure(job)?;
        let code = &job.kernel_source;
        // Right, right by the flat tolerance only, wrong.
        let error = [0.0, 1e-3, 1e-3, 0.5][dice(code, 4) as usize];
        if let Execution::Ran { trials, timing, .. } = &mut measurement.execution {
            for stats in trials.iter_mut().flat_map(|trial| &mut trial.outputs) {
                stats.hull = vec![(1.0, error)];
            }
            if job.timing && error < 0.5 {
                let time = |name: &str| 100_000 + 1_000 * dice(&format!("{name} {code}"), 100);
                let first = ["a", "b", "c"].map(time);
                let later = [time("d"); 27];
                let candidate_ns = first.into_iter().chain(later).collect();
                let eager = Sides { candidate_ns, reference_ns: vec![200_000; 30] };
                *timing = Timing::Taken(Box::new(Times { calls: 3, eager, graph: None }));
            }
        }
        Ok(measurement)
    }
}

/// Writes the same for the same prompt, whatever the seeds and the weights: what two runs draw then differs
/// in nothing but the rules.
struct StillEngine(HashEngine);

impl Engine for StillEngine {
    fn generate(
        &mut self,
        job: &GenerateJob,
        each: &mut dyn FnMut(Drawn) -> ControlFlow<()>,
    ) -> Result<(), WorldFailed> {
        let one = |prompt: &str, index: usize| {
            let code = Digest::of(format!("{index} {prompt}").as_bytes()).short();
            let sample = Sample {
                prompt: prompt.to_owned(),
                prompt_tokens: vec![1, 2],
                text: format!("```python\ncode {code}\n```\n"),
                tokens: vec![2, 3],
                logprobs: vec![-0.5, -0.25],
                truncated_logprobs: vec![-0.5, -0.25],
                sampling: job.sampling,
            };
            (sample, Finish::Stop)
        };
        job.one_by_one(each, |prompt, index| one(&prompt.text, index));
        Ok(())
    }

    fn train(&mut self, job: &TrainJob) -> Result<Trained, WorldFailed> {
        self.0.train(job)
    }
}

/// Groups large enough to differ, timed.
pub fn gray_config(seed: u64, profile: Rules) -> RunConfig {
    let mut config = config(seed);
    config.judge.profile = profile;
    config.judge.timing = true;
    config.validator.rules = Rules::Paper;
    config.proposer.policy.batch_prompts = 4.try_into().unwrap();
    config.proposer.policy.group_size = 3.try_into().unwrap();
    config.proposer.coder_samples = 3.try_into().unwrap();
    config.coder.policy.group_size = 4.try_into().unwrap();
    config
}

/// A whole run of `config`. `still`: nothing that is drawn depends on what was rewarded.
pub fn run(config: RunConfig, still: bool) -> World {
    run_with(config, still, vec![])
}

/// The same with events of others after its start.
pub fn run_with(mut config: RunConfig, still: bool, others: Vec<Event>) -> World {
    let world = World::new();
    let hash = HashEngine { blobs: world.blobs.clone(), fails_every: 0, calls: 0 };
    let engine: Box<dyn Engine> = if still {
        config.sampler.weakness = 0.0.try_into().unwrap();
        config.coder.policy.batch_prompts = 60.try_into().unwrap();
        Box::new(StillEngine(hash))
    } else {
        Box::new(hash)
    };
    world.start(&config);
    let draft = |event| Draft { cause: None, actor: Actor::RunControl, event };
    world.log.append(others.into_iter().map(draft).collect()).unwrap();
    let limits = Limits { samples: 1000, judges: 2 };
    let mut shells = Shells::new(engine, Arc::new(GrayJudge), limits);
    assert_eq!(drive(&mut shells, &world.bus()).unwrap(), Turn::Idle);
    world
}

/// Goes on with a world whose log holds a part of a run.
pub fn go_on(world: &World) {
    let engine = HashEngine { blobs: world.blobs.clone(), fails_every: 0, calls: 0 };
    let limits = Limits { samples: 1000, judges: 2 };
    let mut shells = Shells::new(Box::new(engine), Arc::new(GrayJudge), limits);
    assert_eq!(drive(&mut shells, &world.bus()).unwrap(), Turn::Idle);
}

/// The world's groups and steps by the run's rules with `changes`.
pub fn rescored(
    world: &World,
    changes: &[&str],
) -> (BTreeMap<GroupId, Option<Vec<Line>>>, Vec<Row>) {
    let events = world.events();
    let Event::RunStarted { config, .. } = &events[0] else { panic!("no start") };
    let mut rules = Rulebook::of(&RunConfig::parse(config).unwrap());
    for change in changes {
        rules.set(change).unwrap();
    }
    let evidence = HashEvidence(&*world.blobs);
    let mut rescorer = Rescorer::new(rules, &evidence);
    let mut groups = BTreeMap::new();
    for (seq, event) in (1..).zip(&events) {
        let found = rescorer.see(event).unwrap();
        groups.extend(found.map(|Rescored { group, lines, .. }| (group, lines)));
        rescorer.apply(Seq(seq), event).unwrap();
    }
    (groups, rescorer.finish())
}

/// The world's log and blobs as a run in `home`.
pub fn save(world: &World, home: &Path) -> String {
    let home = Home::open(home).unwrap();
    let blobs = home.blobs().unwrap();
    let records: Vec<Recorded> = world.log.read_after(Seq(0), usize::MAX).unwrap();
    for id in records.iter().flat_map(|r| r.event.blobs()) {
        blobs.put(&world.blobs.get(id).unwrap()).unwrap();
    }
    let Event::RunStarted { run, .. } = records[0].event else { panic!("no start") };
    let draft = |r: Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    let log = home.create_run(run).unwrap();
    log.append(records.into_iter().map(draft).collect()).unwrap();
    run.to_string()
}
