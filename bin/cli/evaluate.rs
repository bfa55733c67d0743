//! How often the policies of a config are right on what they were never trained on.
#![allow(clippy::print_stdout)]

use std::ops::ControlFlow;
use std::path::PathBuf;

use actors::ports::{Engine, GenerateJob, Judge, MeasureJob, Prompt, Weights};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use events::config::{PolicyConfig, RunConfig};
use events::event::Validity;
use events::ids::{PolicyVersion, Role, StepRef, seed_at};
use events::rules::prompt;
use events::rules::validity::validity;
use events::rules::verdict::verdict;
use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::{Value, json};
use store::Home;

use super::judging::standalone;
use crate::engine::ChildEngine;
use crate::exit::{Exit, Usage};
use crate::host::HostConfig;
use crate::judge::{Judged, KeckJudge};
use crate::parallel::parallel;
use crate::plan::Plan;

/// `kernelzero evaluate`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Names the policies, the prompts, the sampling and the rules.
    #[arg(long)]
    config: PathBuf,
    /// Held-out items as `kernelzero distill` writes them.
    #[arg(long)]
    held_out: PathBuf,
    /// At most this many items.
    #[arg(long, default_value_t = 300)]
    limit: usize,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Item {
    apis: Vec<String>,
    module: String,
}

/// Right ones of all, with the lower end of the 95 % Wilson interval.
struct Rate {
    right: usize,
    all: usize,
    reasons: std::collections::BTreeMap<String, usize>,
}

impl Rate {
    fn of(outcomes: &[Result<(), String>]) -> Self {
        let mut reasons = std::collections::BTreeMap::new();
        for reason in outcomes.iter().filter_map(|o| o.as_ref().err()) {
            let short: String = reason.chars().take(70).collect();
            *reasons.entry(short).or_insert(0) += 1;
        }
        let right = outcomes.iter().filter(|o| o.is_ok()).count();
        Self { right, all: outcomes.len(), reasons }
    }

    fn share(&self) -> f64 {
        self.right as f64 / self.all.max(1) as f64
    }

    fn lower(&self) -> f64 {
        let (z, n, p) = (1.959_964_f64, self.all.max(1) as f64, self.share());
        let centre = p + z * z / (2.0 * n);
        let half = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
        ((centre - half) / (1.0 + z * z / n)).max(0.0)
    }

    fn json(&self) -> Value {
        json!({ "right": self.right, "all": self.all, "share": self.share(),
                "lower-95": self.lower(), "reasons": self.reasons })
    }

    fn line(&self, what: &str) -> String {
        format!(
            "{what}: {} of {} ({:.1} %, lower 95 % bound {:.1} %)",
            self.right,
            self.all,
            100.0 * self.share(),
            100.0 * self.lower()
        )
    }
}

/// One answer for each prompt, drawn in batches.
fn answers(
    engine: &mut ChildEngine,
    weights: &Weights,
    policy: &PolicyConfig,
    prompts: &[String],
    seed: u64,
) -> Result<Vec<String>> {
    let role = weights.policy.role;
    let step = StepRef { round: 0, role, step: 0 };
    let bar = ProgressBar::new(prompts.len() as u64).with_message(format!("{role}"));
    let mut texts = Vec::with_capacity(prompts.len());
    for (chunk, batch) in (0u32..).zip(prompts.chunks(64)) {
        let prompt = |(place, text): (u32, &String)| Prompt {
            text: text.clone(),
            seeds: vec![seed_at(seed, "evaluation", step, chunk * 64 + place)],
        };
        let job = GenerateJob {
            weights: weights.clone(),
            prompts: (0..).zip(batch).map(prompt).collect(),
            sampling: policy.sampling(),
            max_prompt_tokens: policy.max_prompt_tokens.get(),
            max_output_tokens: policy.max_output_tokens.get(),
        };
        let mut drawn = vec![None; batch.len()];
        engine.generate(&job, &mut |one| {
            drawn[one.prompt] = Some(one.sample.text);
            ControlFlow::Continue(())
        })?;
        let all: Option<Vec<String>> = drawn.into_iter().collect();
        texts.extend(all.context("the engine left out samples")?);
        bar.inc(batch.len() as u64);
    }
    bar.finish_and_clear();
    Ok(texts)
}

fn module_outcome(
    judge: &KeckJudge,
    config: &RunConfig,
    item: &Item,
    answer: &str,
) -> Result<Result<(), String>> {
    let tracked = item.apis.iter().cloned().collect();
    let draw = (1, config.validator.trials.get());
    let code = config.extractor.code(answer, Role::Proposer);
    let report = judge.module_report(code.as_deref(), &item.apis, &tracked, draw)?;
    Ok(match validity(&report, &item.apis, &config.validator) {
        Validity::Valid => Ok(()),
        Validity::Invalid { stage, reason } => Err(format!("{stage:?}: {reason}")),
    })
}

fn kernel_outcome(
    judge: &KeckJudge,
    config: &RunConfig,
    item: &Item,
    answer: &str,
) -> Result<Result<(), String>> {
    let Some(code) = config.extractor.code(answer, Role::Coder) else {
        return Ok(Err("no code".to_owned()));
    };
    let job = MeasureJob {
        module_source: item.module.clone(),
        kernel_source: code,
        backend: config.judge.backend,
        seed: 1,
        trials: config.judge.trials.get(),
        timing: false,
    };
    Ok(match judge.pair(&job)? {
        Judged::Refused(failure) => Err(format!("{:?}: {}", failure.kind, failure.detail)),
        Judged::Measured(measurement) => match verdict(&measurement, config.judge.profile) {
            Some(verdict) if verdict.is_correct() => Ok(()),
            other => Err(format!("{other:?}")),
        },
    })
}

/// `kernelzero evaluate`.
pub fn evaluate(host: &HostConfig, arguments: &Arguments) -> Result<Exit> {
    let plan = Plan::read(&arguments.config)?;
    let config = &plan.config;
    let path = &arguments.held_out;
    let text = std::fs::read_to_string(path)
        .map_err(|e| Usage(format!("cannot read {}: {e}", path.display())))?;
    let items: Result<Vec<Item>, _> =
        text.lines().take(arguments.limit).map(serde_json::from_str).collect();
    let items = items.map_err(|e| Usage(format!("{}: {e}", path.display())))?;
    let judge = standalone(host)?;
    let scratch = keck::Scratch::new(&std::env::temp_dir())?;
    let folder = scratch.path().join("models");
    let home = Home::open(&folder)?;
    let blobs = home.blobs().context("opening a store for the policies")?;
    let mut engine = ChildEngine::new(host, home.blobs()?, &folder)?;
    let mut rates = Vec::new();
    for role in [Role::Proposer, Role::Coder] {
        let files = plan.store_policy(role, &blobs)?;
        let weights = Weights { policy: PolicyVersion { role, steps: 0 }, files, adapter: None };
        let (policy, prompts): (_, Vec<String>) = match role {
            Role::Proposer => {
                let policy = &config.proposer.policy;
                let ask = |item: &Item| prompt::for_apis(&policy.prompt, &item.apis);
                (policy, items.iter().map(ask).collect())
            }
            Role::Coder => {
                let policy = &config.coder.policy;
                let ask = |item: &Item| prompt::for_module(&policy.prompt, &item.module);
                (policy, items.iter().map(ask).collect())
            }
        };
        let texts = answers(&mut engine, &weights, policy, &prompts, config.seed.get())?;
        let outcomes = parallel(host.judges(), items.len().min(texts.len()), |place| {
            let (item, text) = (&items[place], &texts[place]);
            match role {
                Role::Proposer => module_outcome(&judge, config, item, text),
                Role::Coder => kernel_outcome(&judge, config, item, text),
            }
        })?;
        rates.push(Rate::of(&outcomes));
    }
    let [modules, kernels] = rates.as_slice() else { return Err(anyhow!("two rates expected")) };
    if arguments.json {
        println!(
            "{:#}",
            json!({ "valid-modules": modules.json(), "right-kernels": kernels.json() })
        );
    } else {
        println!("{}", modules.line("valid modules"));
        println!("{}", kernels.line("right kernels"));
    }
    Ok(Exit::Ok)
}
