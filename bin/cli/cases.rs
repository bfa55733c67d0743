//! Runs a folder of cases with known outcomes through the judge.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::judging::{Ruling, bytes, sorted, standalone};
use crate::exit::{Exit, Usage};
use crate::host::HostConfig;
use crate::judge::KeckJudge;
use crate::parallel::parallel;

/// `kernelzero judge-cases`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Holds `reference/NAME.py` and other folders of cases. A case begins with lines `# key: value`:
    /// `reference` names its task, `expect` and `accept` the outcomes that are right, `cpu` one that
    /// is right where there is no GPU.
    folder: PathBuf,
    /// Only cases whose `folder/name` holds this text.
    #[arg(long, default_value = "")]
    only: String,
    #[command(flatten)]
    ruling: Ruling,
    /// One JSON object for each case.
    #[arg(long)]
    json: bool,
}

/// One case file.
struct Case {
    name: String,
    module: String,
    source: Vec<u8>,
    header: BTreeMap<String, String>,
}

impl Case {
    /// Reads a case and its task; none where the file names no task.
    fn read(folder: &Path, path: &Path) -> Result<Option<Self>> {
        let source = bytes(path)?;
        let text = String::from_utf8_lossy(&source).into_owned();
        let lines = text.trim_start_matches('\u{feff}').lines();
        let header: BTreeMap<String, String> = lines
            .take_while(|line| line.starts_with('#'))
            .filter_map(|line| line.trim_start_matches("# ").split_once(": "))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let Some(task) = header.get("reference") else { return Ok(None) };
        let module = bytes(&folder.join("reference").join(format!("{task}.py")))?;
        let part =
            |p: Option<&std::ffi::OsStr>| p.unwrap_or_default().to_string_lossy().into_owned();
        let group = part(path.parent().and_then(Path::file_name));
        let name = format!("{group}/{}", part(path.file_stem()));
        let module = String::from_utf8_lossy(&module).into_owned();
        Ok(Some(Self { name, module, source, header }))
    }

    /// All outcomes that are right, the best one first.
    fn accepted(&self, on_cpu: bool) -> Vec<&str> {
        let keys: &[&str] =
            if on_cpu { &["expect", "accept", "cpu"] } else { &["expect", "accept"] };
        let values = keys.iter().filter_map(|key| self.header.get(*key));
        values.flat_map(|value| value.split([',', ' '])).filter(|word| !word.is_empty()).collect()
    }
}

fn all_cases(folder: &Path, only: &str) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for group in sorted(folder)?.iter().filter(|p| p.is_dir() && !p.ends_with("reference")) {
        for path in sorted(group)?.iter().filter(|p| p.extension().is_some_and(|e| e == "py")) {
            cases.extend(Case::read(folder, path)?.filter(|case| case.name.contains(only)));
        }
    }
    if cases.is_empty() {
        return Err(Usage(format!("{} holds no such cases", folder.display())).into());
    }
    Ok(cases)
}

/// What the judge says of a case.
fn found(judge: &KeckJudge, case: &Case, arguments: &Arguments) -> serde_json::Value {
    let Ok(source) = std::str::from_utf8(&case.source) else {
        return json!({ "outcome": "compile_error", "reason": "the file is not UTF-8" });
    };
    arguments.ruling.answer(judge, &case.module, source, arguments.ruling.seed)
}

/// `kernelzero judge-cases`.
pub fn judge_cases(host: &HostConfig, arguments: &Arguments) -> Result<Exit> {
    let cases = all_cases(&arguments.folder, &arguments.only)?;
    let judge = standalone(host)?;
    let on_cpu = !judge.has_gpu();
    let start = Instant::now();
    let right = parallel(host.judges(), cases.len(), |place| {
        let (case, began) = (&cases[place], Instant::now());
        let found = found(&judge, case, arguments);
        let word = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        let accepted = case.accepted(on_cpu);
        let outcome = word("outcome");
        let not_run = outcome == "no_device";
        let right = not_run || accepted.contains(&outcome.as_str());
        let mark = if not_run {
            "----"
        } else if right {
            "ok  "
        } else {
            "BAD "
        };
        let seconds = began.elapsed().as_secs_f64();
        if arguments.json {
            println!(
                "{}",
                json!({ "case": case.name, "expected": accepted, "found": found,
                                   "as_expected": right, "seconds": seconds })
            );
        } else {
            let reason: String = word("reason").replace('\n', " | ").chars().take(110).collect();
            let headers = found["headers"].as_str().map_or(String::new(), |h| format!("{h} "));
            let speedup = found["speedup"].as_f64().map_or(String::new(), |s| format!("{s:.2}x "));
            println!(
                "{mark} {:40} {:13} {outcome:13} {seconds:5.1} s  {headers}{speedup}{reason}",
                case.name, accepted[0]
            );
        }
        Ok((right, not_run))
    })?;
    let count = |f: fn(&&(bool, bool)) -> bool| right.iter().filter(f).count();
    let (good, not_run) = (count(|r| r.0), count(|r| r.1));
    if !arguments.json {
        println!(
            "{good} of {} as expected{}; {:?} profile, {}, {:.1} s, layers {}",
            cases.len(),
            if not_run > 0 {
                format!(" ({not_run} built, not run: no GPU)")
            } else {
                String::new()
            },
            arguments.ruling.profile,
            judge.device(),
            start.elapsed().as_secs_f64(),
            judge.layers().join(" "),
        );
    }
    Ok(if good == cases.len() { Exit::Ok } else { Exit::No })
}
