//! Reads a recorded run and scores it again by other rules, or follows what is tainted. Runs nothing.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow};
use events::config::RunConfig;
use events::event::{Event, Recorded};
use events::ids::{RunId, Seq};
use events::rules::rescore::{Rescorer, Row, Rulebook};
use events::rules::taint::{Suspect, Tainted, Tracer};
use store::{BlobDir, FileLog};

use crate::audit::Stored;
use crate::exit::Usage;
use crate::runs::{home_to_read, log_to_read, pick};

/// A recorded run, opened for reading, and its settings.
pub struct Record {
    /// Its name.
    pub run: RunId,
    /// Its settings.
    pub config: RunConfig,
    home: PathBuf,
    log: FileLog,
    blobs: BlobDir,
}

impl Record {
    /// Opens the run named, or the newest.
    pub fn open(dir: &Path, named: Option<RunId>) -> Result<Self> {
        let home = home_to_read(dir)?;
        let run = pick(&home, named)?;
        let log = log_to_read(&home, run)?;
        match log.get(Seq(1))?.map(|recorded| recorded.event) {
            Some(Event::RunStarted { config, .. }) => {
                let (config, blobs) = (RunConfig::parse(&config)?, home.blobs_to_read()?);
                Ok(Self { run, config, home: dir.to_owned(), log, blobs })
            }
            Some(_) => Err(Usage(format!(
                "{run} in {} is a log of the judge's service, not a run: name a run with --run",
                dir.display()
            ))
            .into()),
            None => Err(empty(run, dir).into()),
        }
    }

    /// The rules of the run with `changes` (`key=value` each).
    pub fn rules(&self, changes: &[String]) -> Result<Rulebook> {
        let mut rules = Rulebook::of(&self.config);
        for change in changes {
            rules.set(change).map_err(|e| Usage(format!("--set {e}")))?;
        }
        rules.check().map_err(|e| Usage(format!("--set {e}")))?;
        Ok(rules)
    }

    /// The devices that its measurements name.
    pub fn devices(&self) -> Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        self.each(|recorded| {
            if let Event::KernelMeasured { measurement, .. } = &recorded.event {
                found.insert(measurement.device.to_string());
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Scores the run by `rules`.
    pub fn rescore(&self, rules: Rulebook) -> Result<Vec<Row>> {
        let evidence = Stored::new(self.blobs.clone());
        let mut rescorer = Rescorer::new(rules, &evidence);
        self.each(|recorded| {
            rescorer.see(&recorded.event).map_err(|e| at(recorded, &e))?;
            Ok(rescorer.apply(recorded.seq, &recorded.event)?)
        })?;
        let rows = rescorer.finish();
        if rows.iter().all(|row| row.signal.all == 0) {
            return Err(empty(self.run, &self.home).into());
        }
        Ok(rows)
    }

    /// Follows what `suspects` and what `others` score otherwise have fed.
    pub fn taint(&self, suspects: Vec<Suspect>, others: Option<Rulebook>) -> Result<Tainted> {
        let evidence = Stored::new(self.blobs.clone());
        let mut tracer = Tracer::new(suspects);
        let judged = others.is_some();
        let mut rescorer = Rescorer::new(others.unwrap_or(Rulebook::of(&self.config)), &evidence);
        self.each(|recorded| {
            let event = &recorded.event;
            if judged {
                let rescored = rescorer.see(event).map_err(|e| at(recorded, &e))?;
                if let (Some(rescored), Event::GroupScored { scores, .. }) = (rescored, event) {
                    tracer.differs(rescorer.state(), scores, &rescored);
                }
            }
            tracer.see(rescorer.state(), recorded.seq, event);
            Ok(rescorer.apply(recorded.seq, event)?)
        })?;
        if rescorer.state().totals.groups.is_empty() {
            return Err(empty(self.run, &self.home).into());
        }
        Ok(tracer.finish())
    }

    /// What a branch that goes on from the last clean checkpoint begins with: where it leaves the run, and
    /// what it excludes. `None`: no gradient step was fed.
    ///
    /// It leaves before the first score that the first tainted step rests on: the weights there are the
    /// last clean ones, and all samples drawn until then are kept. What is excluded is so by its id
    /// where the branch shares it, and by its code wherever that comes again.
    pub fn clean(&self, found: &Tainted, reason: String) -> Result<Option<(Seq, Event)>> {
        let Some(first) = found.steps.first() else { return Ok(None) };
        let scored = found.groups.iter().filter(|group| group.step == first.step);
        let Some(scored) = scored.map(|group| group.seq).min() else { return Ok(None) };
        let at = Seq(scored.0 - 1);
        let (mut modules, mut kernels, mut sources) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        self.each(|recorded| {
            let shared = recorded.seq <= at;
            match &recorded.event {
                Event::ModuleProposed { module, answer, .. } if found.modules.contains(module) => {
                    modules.extend(shared.then_some(*module));
                    sources.extend(answer.source);
                }
                Event::KernelWritten { kernel, module, answer, .. }
                    if found.kernels.contains(kernel) =>
                {
                    kernels.extend(shared.then_some(*kernel));
                    // A kernel that is tainted by its module only is no cheat itself.
                    let own = !found.modules.contains(module);
                    sources.extend(answer.source.filter(|_| own));
                }
                _ => {}
            }
            Ok(())
        })?;
        let excluded = Event::SamplesExcluded {
            modules: modules.into_iter().collect(),
            kernels: kernels.into_iter().collect(),
            sources: sources.into_iter().collect(),
            reason,
        };
        Ok(Some((at, excluded)))
    }

    fn each(&self, mut act: impl FnMut(&Recorded) -> Result<()>) -> Result<()> {
        let mut failed = None;
        self.log.scan(Seq(1), |recorded, _| match act(recorded) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), Err)
    }
}

fn at(recorded: &Recorded, why: &str) -> Error {
    anyhow!("{} {}: {why}", recorded.seq, recorded.event.name())
}

fn empty(run: RunId, home: &Path) -> Usage {
    Usage(format!(
        "run {run} in {} has no scored group yet, so nothing can be scored again or followed: go on with it \
         (`kernelzero run`), or name another with --run",
        home.display()
    ))
}
