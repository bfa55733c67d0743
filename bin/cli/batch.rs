//! Many pairs through the judge: parallel, with progress, and taken up again where it was ended.
#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use events::ids::Digest;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::{Value, json};

use super::judging::{Ruling, bytes, sorted, standalone};
use crate::exit::{Exit, Usage};
use crate::host::HostConfig;
use crate::judge::from_answer;
use crate::parallel::parallel;

/// `kernelzero judge-batch`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A JSONL file of {"id", "reference" or "reference_file", "candidate" or "candidate_file" or
    /// "answer", "seed" if it is another}, or a folder of folders that hold `reference.py` and any number of other `.py`
    /// files. File names are relative to the JSONL file; an answer is text with a fenced block.
    input: PathBuf,
    /// One JSON object a line for each pair. What stands there already is not judged again.
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    ruling: Ruling,
}

/// A line of the input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    reference: Option<String>,
    reference_file: Option<PathBuf>,
    candidate: Option<String>,
    candidate_file: Option<PathBuf>,
    answer: Option<String>,
    /// In place of `--seed`.
    seed: Option<u64>,
}

/// What is to be judged; a candidate that could not be had is judged as having no code.
struct Pair {
    id: String,
    reference: String,
    candidate: String,
    seed: u64,
    /// Of everything that the outcome depends on.
    key: String,
}

impl Arguments {
    fn pair(&self, id: String, reference: String, candidate: String, seed: Option<u64>) -> Pair {
        let Ruling { profile, trials, timing, .. } = &self.ruling;
        let seed = seed.unwrap_or(self.ruling.seed);
        let settings = format!("{profile:?}/{seed}/{trials}/{timing}");
        let parts = [reference.as_str(), candidate.as_str(), settings.as_str()];
        let key = Digest::of(parts.join("\0").as_bytes()).hex();
        Pair { id, reference, candidate, seed, key }
    }

    fn pairs(&self) -> Result<Vec<Pair>> {
        let pairs = if self.input.is_dir() { self.folder()? } else { self.lines()? };
        let mut seen = BTreeSet::new();
        if let Some(twice) = pairs.iter().find(|pair| !seen.insert(&pair.id)) {
            return Err(Usage(format!(
                "{}: the id {} is there twice",
                self.input.display(),
                twice.id
            ))
            .into());
        }
        if pairs.is_empty() {
            return Err(Usage(format!("{} holds nothing to judge", self.input.display())).into());
        }
        Ok(pairs)
    }

    fn lines(&self) -> Result<Vec<Pair>> {
        let text = String::from_utf8_lossy(&bytes(&self.input)?).into_owned();
        let base = self.input.parent().unwrap_or(Path::new("."));
        let mut pairs = Vec::new();
        for (number, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let wrong =
                |what: String| Usage(format!("{} line {number}: {what}", self.input.display()));
            let line: Line = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
            let read = |file: PathBuf| lossy(&base.join(file)).map_err(|e| wrong(format!("{e:#}")));
            let reference = match (line.reference, line.reference_file) {
                (Some(source), None) => source,
                (None, Some(file)) => read(file)?,
                _ => return Err(wrong("give one of reference, reference_file".into()).into()),
            };
            let candidate = match (line.candidate, line.candidate_file, line.answer) {
                (Some(source), None, None) => source,
                (None, Some(file), None) => read(file)?,
                (None, None, Some(answer)) => from_answer(&answer),
                _ => {
                    let what = "give one of candidate, candidate_file, answer";
                    return Err(wrong(what.into()).into());
                }
            };
            pairs.push(self.pair(line.id, reference, candidate, line.seed));
        }
        Ok(pairs)
    }

    fn folder(&self) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        for task in sorted(&self.input)?.iter().filter(|path| path.join("reference.py").is_file()) {
            let reference = lossy(&task.join("reference.py"))?;
            for file in sorted(task)?.iter().filter(|p| p.extension().is_some_and(|e| e == "py")) {
                if !file.ends_with("reference.py") {
                    let id = file.strip_prefix(&self.input).unwrap_or(file).display().to_string();
                    pairs.push(self.pair(id, reference.clone(), lossy(file)?, None));
                }
            }
        }
        Ok(pairs)
    }

    /// The output, which is this batch's alone.
    fn output(&self) -> Result<File> {
        let opening = || format!("opening {}", self.out.display());
        let out = OpenOptions::new().create(true).append(true).open(&self.out);
        let out = out.with_context(opening)?;
        match out.try_lock() {
            Ok(()) => Ok(out),
            Err(TryLockError::WouldBlock) => {
                let whose = format!("another batch writes {}", self.out.display());
                Err(Usage(format!("{whose}: wait for it, or give another --out")).into())
            }
            Err(TryLockError::Error(error)) => Err(error).with_context(opening),
        }
    }

    /// Results that stand in the output already, by id. A last line that was cut off is dropped.
    fn known(&self) -> Result<BTreeMap<String, Value>> {
        let Ok(text) = std::fs::read_to_string(&self.out) else { return Ok(BTreeMap::new()) };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            std::fs::write(&self.out, &text[..whole])
                .with_context(|| format!("writing {}", self.out.display()))?;
        }
        let mut known = BTreeMap::new();
        for (number, line) in (1..).zip(text[..whole].lines()) {
            let wrong = |e| Usage(format!("{} line {number}: {e}", self.out.display()));
            let value: Value = serde_json::from_str(line).map_err(wrong)?;
            if value["outcome"] != "judge_error" {
                known.insert(value["id"].as_str().unwrap_or_default().to_owned(), value);
            }
        }
        Ok(known)
    }
}

/// A source that may not be UTF-8: the judge refuses what does not parse.
fn lossy(path: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&bytes(path)?).into_owned())
}

/// `kernelzero judge-batch`.
pub fn judge_batch(host: &HostConfig, arguments: &Arguments) -> Result<Exit> {
    let pairs = arguments.pairs()?;
    let out = arguments.output()?;
    let known = arguments.known()?;
    let judged = |pair: &Pair| known.get(&pair.id).is_some_and(|value| value["key"] == *pair.key);
    let left: Vec<&Pair> = pairs.iter().filter(|pair| !judged(pair)).collect();
    let out = Mutex::new(out);
    let judge = standalone(host)?;
    let bar = ProgressBar::new(pairs.len() as u64).with_position((pairs.len() - left.len()) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len}, {per_sec}, {eta} left")?);
    let outcomes = parallel(host.judges(), left.len(), |place| {
        let pair = left[place];
        let mut found =
            arguments.ruling.answer(&judge, &pair.reference, &pair.candidate, pair.seed);
        found["id"] = json!(pair.id);
        found["key"] = json!(pair.key);
        let line = format!("{found}\n");
        let mut out = out.lock().map_err(|_| anyhow!("another worker failed"))?;
        out.write_all(line.as_bytes())
            .with_context(|| format!("writing {}", arguments.out.display()))?;
        bar.inc(1);
        Ok(found["outcome"].as_str().unwrap_or_default().to_owned())
    })?;
    bar.finish_and_clear();
    let before = pairs.iter().filter(|pair| judged(pair)).filter_map(|pair| known.get(&pair.id));
    let before = before.filter_map(|value| value["outcome"].as_str().map(str::to_owned));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for outcome in outcomes.into_iter().chain(before) {
        *counts.entry(outcome).or_default() += 1;
    }
    println!(
        "{}",
        json!({ "judged": left.len(), "known": pairs.len() - left.len(), "outcomes": counts })
    );
    let failed = counts.contains_key("judge_error");
    Ok(if failed { Exit::World } else { Exit::Ok })
}
