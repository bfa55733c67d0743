//! `kernelzero taint`: what something found wrong has fed.
#![allow(clippy::print_stdout)]

use std::path::Path;

use anyhow::Result;
use clap::Args;
use events::ids::{KernelId, ModuleId};
use events::rules::taint::{JudgedBy, Rule, Suspect, Tainted};
use serde_json::json;

use super::Which;
use crate::exit::{Exit, Usage};
use crate::rescore::Record;

/// `kernelzero taint`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    wrong: Wrong,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// What is found wrong; each may be given more than once.
#[derive(Debug, Args)]
pub struct Wrong {
    /// A kernel.
    #[arg(long, value_name = "ID")]
    kernel: Vec<KernelId>,
    /// A module, with all kernels written for it.
    #[arg(long, value_name = "ID")]
    module: Vec<ModuleId>,
    /// All that passes or fails by a rule: `correct`, `wrong-value`, a kind of failure (`impure`,
    /// `timeout`), a fault of the task (`degenerate`), a stage of validation (`stable`), or words of a
    /// refusal's evidence.
    #[arg(long, value_name = "WORD")]
    rule: Vec<String>,
    /// All that was measured by a judge found wrong: `device=NAME`, `headers=fast|full`, `without=LAYER`.
    #[arg(long, value_name = "WHAT")]
    judge: Vec<String>,
    /// All that other rules judge otherwise or cannot tell; keys are those of `rescore`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// `kernelzero taint`.
pub fn taint(home: &Path, arguments: &Arguments) -> Result<Exit> {
    let record = Record::open(home, arguments.which.run)?;
    let found = arguments.wrong.trace(&record)?;
    if arguments.json {
        println!("{:#}", json!({ "run": record.run, "tainted": found }));
    } else {
        print(&record, &found);
    }
    Ok(Exit::Ok)
}

impl Wrong {
    /// Follows all of it through a run.
    pub fn trace(&self, record: &Record) -> Result<Tainted> {
        let mut suspects: Vec<Suspect> = Vec::new();
        suspects.extend(self.kernel.iter().copied().map(Suspect::Kernel));
        suspects.extend(self.module.iter().copied().map(Suspect::Module));
        for text in &self.rule {
            suspects.push(Suspect::rule(text).map_err(|e| Usage(e.to_string()))?);
        }
        for text in &self.judge {
            suspects.push(Suspect::judge(text).map_err(|e| Usage(e.to_string()))?);
        }
        if self.is_empty() {
            let text = "say what is wrong: --kernel ID, --module ID, --rule WORD, --judge WHAT or --set \
                        KEY=VALUE";
            return Err(Usage(text.to_owned()).into());
        }
        let others = (!self.set.is_empty()).then(|| record.rules(&self.set)).transpose()?;
        for suspect in &suspects {
            known(record, suspect)?;
        }
        let says = suspects.iter().find_map(|suspect| match suspect {
            Suspect::Rule(Rule::Says(text)) => Some(text.clone()),
            _ => None,
        });
        let found = record.taint(suspects, others)?;
        exist(record, self, &found)?;
        if let Some(text) = says.filter(|_| found.kernels.is_empty() && found.modules.is_empty()) {
            let text = format!(
                "--rule {text}: it is no verdict, and no refusal in run {} says it; verdicts are correct, \
                 wrong-value, a kind of failure such as impure, a task's fault or a stage of validation",
                record.run
            );
            return Err(Usage(text).into());
        }
        Ok(found)
    }

    /// Whether nothing was named.
    pub fn is_empty(&self) -> bool {
        let Self { kernel, module, rule, judge, set } = self;
        let named = kernel.len() + module.len() + rule.len() + judge.len() + set.len();
        named == 0
    }

    /// In a few words.
    pub fn words(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        words.extend(self.kernel.iter().map(|id| format!("kernel {id}")));
        words.extend(self.module.iter().map(|id| format!("module {id}")));
        words.extend(self.rule.iter().map(|rule| format!("rule {rule}")));
        words.extend(self.judge.iter().map(|judge| format!("judge {judge}")));
        words.extend(self.set.iter().map(|set| format!("other rules {set}")));
        words.join(", ")
    }
}

/// A device that no measurement names and a layer that there is not are errors: else a slip of the pen
/// says that nothing is tainted, or that all is.
fn known(record: &Record, suspect: &Suspect) -> Result<()> {
    let wrong = match suspect {
        Suspect::Judge(JudgedBy::Device(name)) => {
            let named = record.devices()?;
            let named: Vec<&str> = named.iter().map(String::as_str).collect();
            (!named.contains(&name.as_str())).then(|| {
                format!(
                    "device={name}: the measurements of run {} name {}",
                    record.run,
                    named.join(", ")
                )
            })
        }
        Suspect::Judge(JudgedBy::Without(name)) => (!keck::LAYERS.contains(&name.as_str()))
            .then(|| format!("without={name}: layers are {}", keck::LAYERS.join(", "))),
        _ => None,
    };
    match wrong {
        Some(text) => Err(Usage(format!("--judge {text}")).into()),
        None => Ok(()),
    }
}

/// An id that the run does not have is an error and not an empty list.
fn exist(record: &Record, wrong: &Wrong, found: &Tainted) -> Result<()> {
    let kernel = wrong.kernel.iter().find(|id| !found.kernels.contains(id));
    let module = wrong.module.iter().find(|id| !found.modules.contains(id));
    let missing = kernel
        .map(|id| format!("--kernel {id}: there is no such kernel"))
        .or(module.map(|id| format!("--module {id}: there is no such module")));
    match missing {
        Some(what) => {
            let text = format!("{what} in run {}: `kernelzero log` shows ids", record.run);
            Err(Usage(text).into())
        }
        None => Ok(()),
    }
}

fn print(record: &Record, found: &Tainted) {
    let (modules, kernels) = (found.modules.len(), found.kernels.len());
    println!("run {}: {modules} modules and {kernels} kernels are tainted", record.run);
    let advantages: u64 = found.groups.iter().map(|group| group.advantages).sum();
    let rewards: usize = found.groups.iter().map(|group| group.rewards.len()).sum();
    println!(
        "rewards fed: {rewards}, and {advantages} advantages in {} groups",
        found.groups.len()
    );
    for group in &found.groups {
        println!("  {:<7} {}  group {}", group.seq, group.step, group.group);
        for (id, reward, advantage) in &group.rewards {
            println!("            {id}  reward {reward:.4}  advantage {advantage:+.4}");
        }
    }
    println!("gradient steps fed: {}", found.steps.len());
    for step in &found.steps {
        let after = step.after.map_or("not taken".to_owned(), |after| after.to_string());
        println!(
            "  {:<7} {}  {} of {} groups, {:.1} % of |advantage| ({:.1} % its own)  {} → {after}",
            step.seq,
            step.step,
            step.groups.0,
            step.groups.1,
            100.0 * step.share,
            100.0 * step.own_share,
            step.before,
        );
    }
    println!("later steps on weights that were fed: {}", found.downstream);
    let Some(clean) = &found.clean else {
        println!("all checkpoints are clean");
        return;
    };
    let weights: Vec<String> = clean.weights.iter().map(ToString::to_string).collect();
    println!("last clean: {} at {}", weights.join(" and "), clean.seq);
    println!(
        "  a clean branch: kernelzero restart --run {} --from-clean, and the same arguments",
        record.run
    );
    println!(
        "  the round again as it is: kernelzero restart --run {} --round {}",
        record.run, clean.round
    );
}
