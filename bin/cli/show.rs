//! The causal chain of one thing, from API set to gradient step.
#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use events::event::{Event, Recorded, Scores};
use events::ids::{GroupId, Seq};
use events::log::Blobs;
use store::FileLog;

use super::{Which, inspect};
use crate::exit::{Exit, Usage};
use crate::{runs, shown};

/// `kernelzero show`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A set, module, kernel or group (its id or the beginning of it), or a position such as `#12`.
    id: String,
    #[command(flatten)]
    which: Which,
    /// Also print the code of modules and kernels.
    #[arg(long)]
    code: bool,
}

/// Who came from whom, by id as text: all kinds in one map, found by their beginning.
#[derive(Default)]
struct Family {
    parent: BTreeMap<String, String>,
    names: BTreeMap<String, Seq>,
}

/// Everything that an event is about, by id.
fn about(event: &Event) -> Vec<String> {
    let mut ids: Vec<String> = event.subject().iter().map(ToString::to_string).collect();
    if let Event::GroupScored { scores, .. } = event {
        match scores {
            Scores::Modules(scores) => ids.extend(scores.iter().map(|s| s.module.to_string())),
            Scores::Kernels(scores) => ids.extend(scores.iter().map(|s| s.kernel.to_string())),
        }
    }
    ids
}

impl Family {
    fn read(log: &FileLog) -> Result<Self> {
        let mut family = Self::default();
        log.scan(Seq(1), |recorded, _| {
            match &recorded.event {
                Event::ModuleProposed { module, set, .. } => {
                    family.parent.insert(module.to_string(), set.to_string());
                }
                Event::KernelWritten { kernel, module, .. } => {
                    family.parent.insert(kernel.to_string(), module.to_string());
                }
                _ => {}
            }
            for id in recorded.event.subject().iter().map(ToString::to_string) {
                family.names.entry(id).or_insert(recorded.seq);
            }
            ControlFlow::Continue(())
        })?;
        Ok(family)
    }

    /// Whether an id begins so.
    fn has(&self, text: &str) -> bool {
        let next = self.names.range(text.to_owned()..).next();
        next.is_some_and(|(id, _)| id.starts_with(text))
    }

    fn find(&self, text: &str) -> Result<String> {
        let fits: Vec<&String> = self
            .names
            .range(text.to_owned()..)
            .take_while(|(id, _)| id.starts_with(text))
            .map(|(id, _)| id)
            .collect();
        match fits.as_slice() {
            [one] => Ok((*one).clone()),
            [] => Err(Usage(format!(
                "nothing in this run has the id `{text}`: `kernelzero log` \
                                     shows ids"
            ))
            .into()),
            more => Err(Usage(format!("`{text}` is the beginning of {} ids", more.len())).into()),
        }
    }

    /// `id`, what it came from, and what came from it.
    fn of(&self, id: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::from([id.to_owned()]);
        let mut up = id;
        while let Some(parent) = self.parent.get(up) {
            found.insert(parent.clone());
            up = parent;
        }
        let mut down = BTreeSet::from([id.to_owned()]);
        loop {
            let more: BTreeSet<String> = self
                .parent
                .iter()
                .filter(|(child, parent)| down.contains(*parent) && !down.contains(*child))
                .map(|(child, _)| child.clone())
                .collect();
            if more.is_empty() {
                break;
            }
            down.extend(more);
        }
        found.extend(down);
        found
    }
}

/// `kernelzero show`.
pub fn show(home: &Path, arguments: &Arguments) -> Result<Exit> {
    let reader = runs::read(home, arguments.which.run)?;
    let family = Family::read(&reader.log)?;
    let digits = arguments.id.strip_prefix('#').unwrap_or(&arguments.id);
    // Ids may begin with digits, too: without its `#` a number is a position if there is such an event.
    if let Ok(position) = digits.parse::<u64>()
        && (digits != arguments.id || position <= reader.state.last.0 || !family.has(digits))
    {
        return one(&reader.log, Seq(position));
    }
    let id = family.find(&arguments.id)?;
    let wanted = family.of(&id);
    let mut groups: BTreeSet<GroupId> = BTreeSet::new();
    let mut steps = BTreeSet::new();
    let mut sources = Vec::new();
    reader.log.scan(Seq(1), |recorded, _| {
        let direct = about(&recorded.event).iter().any(|id| wanted.contains(id));
        let follows = match &recorded.event {
            Event::GroupScored { group, .. } if direct => groups.insert(*group),
            Event::StepStarted { groups: in_step, step, .. } => {
                in_step.iter().any(|group| groups.contains(group)) && steps.insert(*step)
            }
            Event::StepTaken { step, .. } => steps.contains(step),
            _ => false,
        };
        if direct || follows {
            println!("{}", inspect::line(recorded));
            sources.extend(source_of(recorded));
        }
        ControlFlow::Continue(())
    })?;
    if arguments.code {
        for (seq, blob) in sources {
            let code = reader.blobs.get(blob)?;
            println!("\n--- {seq}\n{}", shown::lines(&String::from_utf8_lossy(&code)));
        }
    }
    Ok(Exit::Ok)
}

fn source_of(recorded: &Recorded) -> Option<(Seq, events::ids::BlobId)> {
    match &recorded.event {
        Event::ModuleProposed { answer, .. } | Event::KernelWritten { answer, .. } => {
            answer.source.map(|blob| (recorded.seq, blob))
        }
        _ => None,
    }
}

/// One event in full.
fn one(log: &FileLog, seq: Seq) -> Result<Exit> {
    match log.get(seq)? {
        Some(recorded) => {
            println!("{}", serde_json::to_string_pretty(&recorded)?);
            Ok(Exit::Ok)
        }
        None => Err(Usage(format!("there is no event {seq} in this run")).into()),
    }
}
