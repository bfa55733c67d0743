//! The judge alone.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};

use actors::ports::{Judge, MeasureJob};
use anyhow::Result;
use clap::Args;
use events::config::ValidatorConfig;
use events::event::Validity;
use events::outcome::Backend;
use events::rules::validity::validity;
use serde_json::{Value, json};

use super::Profile;
use crate::exit::{Exit, Usage};
use crate::host::HostConfig;
use crate::judge::{KeckJudge, from_source, settings};

/// `kernelzero judge`.
#[derive(Debug, Args)]
pub struct JudgeArguments {
    /// The reference: `Model`, `get_inputs`, `get_init_inputs`.
    reference: PathBuf,
    /// The candidate: `ModelNew`, or a model's answer that holds it in a fenced block.
    candidate: PathBuf,
    /// Which rules decide.
    #[arg(long, value_enum, default_value = "strict")]
    profile: Profile,
    /// Seed of the inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Comparisons on fresh inputs.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    trials: u32,
    /// Also time both, where there is a GPU.
    #[arg(long)]
    timing: bool,
    /// Also say what a profiler sees of a right kernel and its reference: kernels with times,
    /// registers and shared memory, bytes and operations against what the device reaches.
    #[arg(long)]
    evidence: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// `kernelzero validate`.
#[derive(Debug, Args)]
pub struct ValidateArguments {
    /// The module: `Model`, `get_inputs`, `get_init_inputs`.
    module: PathBuf,
    /// APIs that it must use, such as `torch.exp`.
    #[arg(long, value_delimiter = ',')]
    apis: Vec<String>,
    /// Which rules decide.
    #[arg(long, value_enum, default_value = "strict")]
    rules: Profile,
    /// Seed of the inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Random inputs tried.
    #[arg(long, default_value_t = 3)]
    trials: u32,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// How many candidates at once are judged.
#[derive(Debug, Args)]
pub(super) struct Ruling {
    /// Which rules decide.
    #[arg(long, value_enum, default_value = "strict")]
    pub(super) profile: Profile,
    /// Seed of the inputs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Comparisons on fresh inputs.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub trials: u32,
    /// Also time both, where there is a GPU.
    #[arg(long)]
    pub timing: bool,
}

impl Ruling {
    /// What `judge` says of one pair.
    pub fn answer(&self, judge: &KeckJudge, reference: &str, candidate: &str, seed: u64) -> Value {
        let job = MeasureJob {
            module_source: reference.to_owned(),
            kernel_source: candidate.to_owned(),
            // Read from the candidate's source.
            backend: Backend::Triton,
            seed,
            trials: self.trials,
            timing: self.timing,
        };
        judge.answer(&job, self.profile.into(), None)
    }
}

/// A judge for this process. Its folder is removed at its end, or by the next one if it was killed.
pub fn standalone(host: &HostConfig) -> Result<KeckJudge> {
    KeckJudge::new(host, &std::env::temp_dir())
}

/// The content of a file that the user named.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    Ok(std::fs::read(path).map_err(|e| Usage(format!("cannot read {}: {e}", path.display())))?)
}

/// The paths in a folder that the user named, in order.
pub fn sorted(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .map_err(|e| Usage(format!("cannot read the folder {}: {e}", folder.display())))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn source(path: &Path) -> Result<String> {
    let text = String::from_utf8(bytes(path)?);
    Ok(text.map_err(|e| Usage(format!("{} is not UTF-8: {e}", path.display())))?)
}

/// `kernelzero judge`.
pub fn judge(host: &HostConfig, arguments: &JudgeArguments) -> Result<Exit> {
    let judge = standalone(host)?;
    let job = MeasureJob {
        module_source: source(&arguments.reference)?,
        kernel_source: from_source(&source(&arguments.candidate)?),
        // Read from the candidate's source.
        backend: Backend::Triton,
        seed: arguments.seed,
        trials: arguments.trials,
        timing: arguments.timing,
    };
    let mut object = judge.answer(&job, arguments.profile.into(), None);
    if arguments.evidence && object["outcome"] == "correct" {
        object["evidence"] = judge.evidence(&job).map_err(|failure| anyhow::anyhow!(failure.0))?;
    }
    if arguments.json {
        println!("{object:#}");
    } else {
        println!(
            "{}: {}",
            object["outcome"].as_str().unwrap_or_default(),
            object["reason"].as_str().unwrap_or_default()
        );
        if let Some(speedup) = object["speedup"].as_f64() {
            println!("speed-up over eager: {speedup:.3}");
        }
        if !object["evidence"].is_null() {
            println!("{:#}", object["evidence"]);
        }
    }
    Ok(match object["outcome"].as_str() {
        Some("correct") => Exit::Ok,
        Some("judge_error") => Exit::World,
        _ => Exit::No,
    })
}

/// `kernelzero validate`.
pub fn validate(host: &HostConfig, arguments: &ValidateArguments) -> Result<Exit> {
    let code = source(&arguments.module)?;
    let judge = standalone(host)?;
    let tracked = arguments.apis.iter().cloned().collect();
    let draw = (arguments.seed, arguments.trials);
    let report = judge.module_report(Some(&code), &arguments.apis, &tracked, draw);
    let report = report.map_err(anyhow::Error::msg)?;
    let trials = arguments.trials.max(1);
    let rules = ValidatorConfig {
        rules: arguments.rules.into(),
        trials: i64::from(trials).try_into().map_err(Usage)?,
    };
    let found = validity(&report, &arguments.apis, &rules);
    if arguments.json {
        println!("{:#}", json!({ "validity": found, "report": report }));
    } else {
        match &found {
            Validity::Valid => println!("valid"),
            Validity::Invalid { stage, reason } => println!("invalid ({stage:?}): {reason}"),
        }
    }
    Ok(if found == Validity::Valid { Exit::Ok } else { Exit::No })
}

/// `kernelzero doctor`.
pub fn doctor(host: &HostConfig, as_json: bool) -> Result<Exit> {
    let mut checks = vec![found("engine", host.engine()), found("torch", host.torch_libraries())];
    match host.python() {
        Ok(python) => {
            checks.push(found("python", Ok(python)));
            for check in keck::doctor(&settings(host, &std::env::temp_dir())?) {
                checks.push(json!({ "name": check.name, "ok": check.ok, "detail": check.detail,
                                    "fix": check.fix }));
            }
            checks.push(match standalone(host) {
                Ok(judge) => json!({ "name": "judge", "ok": true, "fix": "",
                                     "detail": judge.layers().join(", ") }),
                Err(error) => found("judge", Err(error)),
            });
        }
        Err(error) => checks.push(found("python", Err(error))),
    }
    let well = checks.iter().all(|check| check["ok"] == true);
    if as_json {
        println!("{:#}", json!({ "ok": well, "checks": checks }));
    } else {
        for check in &checks {
            let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
            let mark = if check["ok"] == true { "ok  " } else { "FAIL" };
            println!("{mark} {:<12} {}", text("name"), text("detail"));
            if check["ok"] != true && !text("fix").is_empty() {
                println!("     {:<12} fix: {}", "", text("fix"));
            }
        }
    }
    Ok(if well { Exit::Ok } else { Exit::No })
}

fn found(name: &str, path: Result<PathBuf>) -> serde_json::Value {
    match path {
        Ok(path) => json!({ "name": name, "ok": true, "detail": path, "fix": "" }),
        Err(error) => json!({ "name": name, "ok": false, "detail": "", "fix": error.to_string() }),
    }
}
