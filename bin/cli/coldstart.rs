//! Making judged pairs, and handing training over to the engine.
#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
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
use serde_json::{Value, json};
use teacher::{Pair, Split, draw, pair, split_of};

use super::judging::standalone;
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

/// One drawn pair: its place among all that were drawn, its seed and what it is.
struct Drawn {
    place: u64,
    seed: u64,
    pair: Pair,
    held_out: bool,
}

/// Draws pairs in one order, whoever asks: what is kept depends on the seed alone, not on which
/// judge is done first.
struct Draws {
    first_seed: u64,
    next: u64,
    seen: BTreeSet<Digest>,
    /// Still wanted: for training, held out.
    wanted: [u64; 2],
    kept: BTreeMap<u64, Drawn>,
    /// How often the judge refused a pair, by reason.
    refused: BTreeMap<String, u64>,
    deadline: Option<Instant>,
}

impl Draws {
    fn new(arguments: &DistillArguments) -> Self {
        Self {
            first_seed: arguments.seed.wrapping_mul(1_000_000_007),
            next: 0,
            seen: BTreeSet::new(),
            wanted: [arguments.pairs, arguments.held_out],
            kept: BTreeMap::new(),
            refused: BTreeMap::new(),
            deadline: arguments.max_seconds.map(|s| Instant::now() + Duration::from_secs(s)),
        }
    }

    /// The next new pair of a part that still wants some; none if there are enough or it is late.
    fn draw(&mut self) -> Result<Option<Drawn>> {
        while self.wanted != [0, 0] && self.deadline.is_none_or(|end| Instant::now() < end) {
            let place = self.next;
            self.next += 1;
            let seed = self.first_seed.wrapping_add(place);
            let set = draw(seed);
            let pair = pair(seed, &set)?;
            let held_out = match split_of(&set, &pair.signature) {
                Split::Train => false,
                Split::HeldOut => true,
                Split::Neither => continue,
            };
            let new = self.seen.insert(Digest::of(pair.module.as_bytes()));
            if new && self.wanted[usize::from(held_out)] > 0 {
                return Ok(Some(Drawn { place, seed, pair, held_out }));
            }
        }
        Ok(None)
    }

    fn keep(&mut self, drawn: Drawn) {
        let wanted = &mut self.wanted[usize::from(drawn.held_out)];
        *wanted = wanted.saturating_sub(1);
        self.kept.insert(drawn.place, drawn);
    }

    /// The first ones of a part in the order of drawing, as many as are asked for.
    fn part(&self, held_out: bool, most: u64) -> impl Iterator<Item = &Drawn> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.kept.values().filter(move |d| d.held_out == held_out).take(most)
    }
}

/// A line of `proposer.jsonl`, `coder.jsonl` or `held-out.jsonl`.
fn line(name: &str, drawn: &Drawn) -> Value {
    let pair = &drawn.pair;
    let names: Vec<&str> = pair.apis.iter().map(String::as_str).collect();
    let asked = teacher::shuffled(drawn.seed, &names);
    match name {
        "proposer.jsonl" => json!({ "prompt": teacher::proposer_prompt(&asked),
                                    "completion": pair.proposer_answer }),
        "coder.jsonl" => json!({ "prompt": teacher::coder_prompt(&pair.module),
                                 "completion": pair.coder_answer }),
        _ => json!({ "apis": asked, "module": pair.module, "signature": pair.signature }),
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
    std::fs::create_dir_all(&arguments.out)
        .with_context(|| format!("creating {}", arguments.out.display()))?;
    let judge = standalone(host)?;
    let draws = Mutex::new(Draws::new(arguments));
    let bar = ProgressBar::new(arguments.pairs + arguments.held_out);
    let style = "{bar:30} {pos}/{len} pairs, {per_sec}, {eta} left";
    bar.set_style(ProgressStyle::with_template(style)?);
    std::thread::scope(|scope| {
        let work = || judge_draws(&draws, &judge, &bar);
        let threads: Vec<_> = (0..host.judges()).map(|_| scope.spawn(work)).collect();
        let panicked = || Err(anyhow!("a worker ended without a result"));
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| panicked()))
    })?;
    bar.finish_and_clear();
    let draws = draws.into_inner().map_err(|_| anyhow!("a worker failed"))?;
    write_all(arguments, &draws)
}

fn judge_draws(draws: &Mutex<Draws>, judge: &KeckJudge, bar: &ProgressBar) -> Result<()> {
    let draws = || draws.lock().map_err(|_| anyhow!("another worker failed"));
    loop {
        let Some(drawn) = draws()?.draw()? else { return Ok(()) };
        match refused(judge, &drawn.pair, drawn.seed)? {
            None => {
                draws()?.keep(drawn);
                bar.inc(1);
            }
            Some(reason) => {
                let short: String = reason.chars().take(60).collect();
                *draws()?.refused.entry(short).or_default() += 1;
            }
        }
    }
}

fn write_all(arguments: &DistillArguments, draws: &Draws) -> Result<Exit> {
    let parts = [
        ("proposer.jsonl", false, arguments.pairs),
        ("coder.jsonl", false, arguments.pairs),
        ("held-out.jsonl", true, arguments.held_out),
    ];
    let mut files = BTreeMap::new();
    for (name, held_out, most) in parts {
        let mut text = String::new();
        let mut lines = 0u64;
        for drawn in draws.part(held_out, most) {
            text.push_str(&line(name, drawn).to_string());
            text.push('\n');
            lines += 1;
        }
        let path = arguments.out.join(name);
        std::fs::write(&path, &text).with_context(|| format!("writing {}", path.display()))?;
        let blake3 = blake3::hash(text.as_bytes()).to_hex().to_string();
        files.insert(name, json!({ "lines": lines, "blake3": blake3 }));
    }
    let report = json!({
        "seed": arguments.seed, "drawn": draws.next, "refused": draws.refused, "files": files,
        "apis": teacher::apis().len(),
    });
    let path = arguments.out.join("report.json");
    std::fs::write(&path, format!("{report:#}\n"))
        .with_context(|| format!("writing {}", path.display()))?;
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
