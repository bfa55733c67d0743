//! Making judged pairs, and handing training over to the engine.
#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use actors::ports::{Judge, MeasureJob};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use events::config::{Rules, ValidatorConfig};
use events::event::Validity;
use events::ids::Digest;
use events::outcome::Backend;
use events::rules::validity::validity;
use events::rules::verdict::verdict;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use teacher::{Pair, Split, draw, pair, split_of};

use super::judging::Standalone;
use crate::exit::Exit;
use crate::host::HostConfig;
use crate::judge::{Judged, KeckJudge};

/// `kernelzero distill`.
#[derive(Debug, Args)]
pub struct DistillArguments {
    /// Folder for `proposer.jsonl`, `coder.jsonl`, `held-out.jsonl` and `report.json`.
    #[arg(long)]
    out: PathBuf,
    /// Training pairs wanted.
    #[arg(long, default_value_t = 20_000)]
    pairs: u64,
    /// Held-out pairs wanted.
    #[arg(long, default_value_t = 400)]
    held_out: u64,
    /// Seed of the teacher.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End after this time with the pairs there are.
    #[arg(long)]
    max_seconds: Option<u64>,
}

/// Where pairs go, and how many are still wanted.
struct Sink {
    proposer: BufWriter<std::fs::File>,
    coder: BufWriter<std::fs::File>,
    held_out: BufWriter<std::fs::File>,
    wanted: [u64; 2],
    seen: BTreeSet<Digest>,
    /// How often the judge refused a pair, by reason.
    refused: BTreeMap<String, u64>,
}

impl Sink {
    fn open(arguments: &DistillArguments) -> Result<Self> {
        let create = |name: &str| -> Result<BufWriter<std::fs::File>> {
            let path = arguments.out.join(name);
            let file = std::fs::File::create(&path);
            Ok(BufWriter::new(file.with_context(|| format!("creating {}", path.display()))?))
        };
        Ok(Self {
            proposer: create("proposer.jsonl")?,
            coder: create("coder.jsonl")?,
            held_out: create("held-out.jsonl")?,
            wanted: [arguments.pairs, arguments.held_out],
            seen: BTreeSet::new(),
            refused: BTreeMap::new(),
        })
    }

    /// Whether the pair is new and of a part that still wants some.
    fn wants(&mut self, pair: &Pair, split: Split) -> bool {
        let left = self.wanted[usize::from(split == Split::HeldOut)];
        left > 0 && self.seen.insert(Digest::of(pair.module.as_bytes()))
    }

    fn keep(&mut self, seed: u64, pair: &Pair, split: Split) -> Result<()> {
        let left = &mut self.wanted[usize::from(split == Split::HeldOut)];
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        let names: Vec<&str> = pair.apis.iter().map(String::as_str).collect();
        let asked = teacher::shuffled(seed, &names);
        match split {
            Split::Train => {
                let prompt = teacher::proposer_prompt(&asked);
                let line = json!({ "prompt": prompt, "completion": pair.proposer_answer });
                writeln!(self.proposer, "{line}")?;
                let prompt = teacher::coder_prompt(&pair.module);
                let line = json!({ "prompt": prompt, "completion": pair.coder_answer });
                writeln!(self.coder, "{line}")?;
            }
            Split::HeldOut => {
                let line = json!({ "apis": asked, "module": pair.module,
                                   "signature": pair.signature });
                writeln!(self.held_out, "{line}")?;
            }
        }
        Ok(())
    }
}

/// Why the judge refuses a pair, or nothing.
fn refused(judge: &KeckJudge, pair: &Pair, seed: u64) -> Result<Option<String>> {
    let tracked = pair.apis.iter().cloned().collect();
    let trials = 3;
    let rules =
        ValidatorConfig { rules: Rules::Strict, trials: 3.try_into().map_err(anyhow::Error::msg)? };
    let report = judge.module_report(Some(&pair.module), &pair.apis, &tracked, (seed, trials))?;
    if let Validity::Invalid { stage, reason } = validity(&report, &pair.apis, &rules) {
        return Ok(Some(format!("module {stage:?}: {reason}")));
    }
    let job = MeasureJob {
        module_source: pair.module.clone(),
        kernel_source: pair.kernel.clone(),
        backend: Backend::Triton,
        seed,
        trials,
        timing: false,
    };
    Ok(match judge.pair(&job)? {
        Judged::Refused(failure) => Some(format!("kernel {:?}: {}", failure.kind, failure.detail)),
        Judged::Measured(measurement) => match verdict(&measurement, Rules::Strict) {
            Some(verdict) if verdict.is_correct() => None,
            other => Some(format!("kernel {other:?}")),
        },
    })
}

/// `kernelzero distill`.
pub fn distill(host: &HostConfig, arguments: &DistillArguments) -> Result<Exit> {
    std::fs::create_dir_all(&arguments.out)?;
    let standalone = Standalone::new(host)?;
    let sink = Mutex::new(Sink::open(arguments)?);
    let next = AtomicU64::new(0);
    let bar = ProgressBar::new(arguments.pairs + arguments.held_out);
    let style = "{bar:30} {pos}/{len} pairs, {per_sec}, {eta} left";
    bar.set_style(ProgressStyle::with_template(style)?);
    let workers = host.judges();
    let deadline = arguments.max_seconds.map(|s| Instant::now() + Duration::from_secs(s));
    let pace = Pace { seed: arguments.seed, next: &next, deadline };
    let judge = &standalone.judge;
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let work = || worker(&pace, &sink, judge, &bar);
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let panicked = || Err(anyhow!("a worker ended without a result"));
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())).collect()
    });
    bar.finish_and_clear();
    results.into_iter().collect::<Result<()>>()?;
    let mut sink = sink.into_inner().map_err(|_| anyhow!("a worker failed"))?;
    sink.proposer.flush()?;
    sink.coder.flush()?;
    sink.held_out.flush()?;
    finish(arguments, &sink, next.into_inner())
}

/// Which pair is next, and until when.
struct Pace<'a> {
    seed: u64,
    next: &'a AtomicU64,
    deadline: Option<Instant>,
}

fn worker(pace: &Pace<'_>, sink: &Mutex<Sink>, judge: &KeckJudge, bar: &ProgressBar) -> Result<()> {
    let sink = || sink.lock().map_err(|_| anyhow!("another worker failed"));
    loop {
        let late = pace.deadline.is_some_and(|deadline| Instant::now() > deadline);
        if late || sink()?.wanted == [0, 0] {
            return Ok(());
        }
        let index = pace.next.fetch_add(1, Ordering::Relaxed);
        let seed = pace.seed.wrapping_mul(1_000_000_007).wrapping_add(index);
        let set = draw(seed);
        let made = pair(seed, &set)?;
        let split = split_of(&set, &made.signature);
        if !sink()?.wants(&made, split) {
            continue;
        }
        match refused(judge, &made, seed)? {
            None => {
                sink()?.keep(seed, &made, split)?;
                bar.inc(1);
            }
            Some(reason) => {
                let short: String = reason.chars().take(60).collect();
                *sink()?.refused.entry(short).or_default() += 1;
            }
        }
    }
}

fn hash_of(path: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open(path)?)?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn finish(arguments: &DistillArguments, sink: &Sink, tried: u64) -> Result<Exit> {
    let mut files = BTreeMap::new();
    for name in ["proposer.jsonl", "coder.jsonl", "held-out.jsonl"] {
        files.insert(name, hash_of(&arguments.out.join(name))?);
    }
    let report = json!({
        "seed": arguments.seed,
        "pairs": arguments.pairs - sink.wanted[0], "held-out": arguments.held_out - sink.wanted[1],
        "tried": tried, "refused": sink.refused, "blake3": files,
        "apis": teacher::apis().len(),
    });
    std::fs::write(arguments.out.join("report.json"), format!("{report:#}\n"))?;
    println!("{report:#}");
    Ok(Exit::Ok)
}

/// `kernelzero sft`.
pub fn sft(host: &HostConfig, arguments: &[String]) -> Result<Exit> {
    let error = Command::new(host.engine()?)
        .arg("sft")
        .args(arguments)
        .env("LD_LIBRARY_PATH", host.torch_libraries()?)
        .exec();
    Err(error).context("starting the engine")
}
