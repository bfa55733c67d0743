//! What a run's scores would be by other rules, from what was measured. Samples stay as they were drawn:
//! the rewards, advantages and batches are those that the other rules give *for them*. What a policy
//! trained on other rewards would have drawn, only a run can tell.
//!
//! Not followed: the weights by which API sets are drawn (they rest on right kernels, too).

mod lines;
mod report;
mod settings;

use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Event, Scores, Validity, Verdict};
use crate::ids::{GroupId, KernelId, ModuleId, Role, StepRef};
use crate::outcome::{ModuleReport, ModuleRun};
use crate::rules::audit::Evidence;
use crate::rules::score::groups_of_step;
use crate::rules::validity::validity;
use crate::rules::work::{coder_batch, tasks};
use crate::state::{PoolEntry, Position, RunState};

pub use lines::{Line, Reward, recorded};
use lines::{Seen, Standing};
pub use report::{Batch, Flips, Rewards, Row, Signal};
pub use settings::{Purity, Rulebook};

/// One group scored by other rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Rescored {
    /// Which.
    pub group: GroupId,
    /// Its step.
    pub step: StepRef,
    /// Its samples; `None` if its module is not valid by the other rules, so that there would be no group.
    pub lines: Option<Vec<Line>>,
}

/// Scores a run again while its events go by.
pub struct Rescorer<'a> {
    rules: Rulebook,
    evidence: &'a dyn Evidence,
    state: RunState,
    /// Modules whose validity is not as recorded; `None` is unknown.
    other: BTreeMap<ModuleId, Option<bool>>,
    /// The Coder's pool by the other rules, and whether all in it is known.
    pool: Vec<PoolEntry>,
    pool_known: bool,
    /// Groups of the open step: whether they have a signal, `None` if unknown.
    signals: BTreeMap<GroupId, Option<bool>>,
    row: Option<Row>,
    rows: Vec<Row>,
}

impl<'a> Rescorer<'a> {
    /// Before the first event.
    pub fn new(rules: Rulebook, evidence: &'a dyn Evidence) -> Self {
        Self {
            rules,
            evidence,
            state: RunState::default(),
            other: BTreeMap::new(),
            pool: Vec::new(),
            pool_known: true,
            signals: BTreeMap::new(),
            row: None,
            rows: Vec::new(),
        }
    }

    /// The fold of what went by.
    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// What changed in each step, the open one last.
    pub fn finish(mut self) -> Vec<Row> {
        self.rows.extend(self.row);
        self.rows
    }

    /// Scores what `event` scores. The caller applies the event to [`Rescorer::state`] by `apply`.
    pub fn see(&mut self, event: &Event) -> Result<Option<Rescored>, String> {
        let Position::InPhase { step, .. } = self.state.position else { return Ok(None) };
        match event {
            Event::ModuleValidated { module, report, validity } => {
                self.validated(step, *module, report, validity);
            }
            Event::GroupScored { group, step, scores } => {
                return self.scored(*group, *step, scores).map(Some);
            }
            Event::StepStarted { step, groups, .. } => self.started(*step, groups),
            Event::StepTaken { .. } => {
                self.rows.extend(self.row.take());
                self.signals.clear();
            }
            _ => {}
        }
        Ok(None)
    }

    /// Folds the event. Where the run's own settings change, the rules follow.
    pub fn apply(
        &mut self,
        seq: crate::ids::Seq,
        event: &Event,
    ) -> Result<(), crate::state::Illegal> {
        let before = self.state.settings;
        self.state.apply(seq, event)?;
        if let (true, Some(config)) = (self.state.settings != before, &self.state.config) {
            self.rules.follow(config).map_err(|error| crate::state::Illegal {
                seq,
                event: event.name(),
                why: error.to_string(),
            })?;
        }
        Ok(())
    }

    fn row(&mut self, step: StepRef) -> &mut Row {
        self.row.get_or_insert_with(|| Row::new(step))
    }

    fn validated(
        &mut self,
        step: StepRef,
        module: ModuleId,
        report: &ModuleReport,
        recorded: &Validity,
    ) {
        let open = &self.state.open;
        let set = open.modules.get(&module).and_then(|entry| open.sets.get(&entry.set));
        let asked = set.map(|set| set.apis.as_slice()).unwrap_or_default();
        let after = standing(report, asked, &self.rules);
        let before = *recorded == Validity::Valid;
        let valid = after.as_ref().map(|validity| *validity == Validity::Valid);
        if valid != Some(before) {
            self.other.insert(module, valid);
        }
        self.row(step).modules.count(before, valid, after.as_ref() == Some(recorded));
    }

    fn scored(
        &mut self,
        group: GroupId,
        step: StepRef,
        scores: &Scores,
    ) -> Result<Rescored, String> {
        let lines = match scores {
            Scores::Modules(scores) => {
                let member = |score: &crate::event::ModuleScore| {
                    Ok((score.module, self.module(score.module, &score.verdicts)?))
                };
                let members = scores.iter().map(member).collect::<Result<Vec<_>, String>>()?;
                for (module, standing) in &members {
                    self.join_pool(step.round, *module, standing);
                }
                Some(lines::modules(members, &self.rules))
            }
            Scores::Kernels(scores) => {
                let ids: Vec<KernelId> = scores.iter().map(|score| score.kernel).collect();
                self.kernels(step, &ids)?.map(|members| lines::kernels(members, &self.rules))
            }
        };
        self.compare(group, step, scores, lines.as_deref());
        Ok(Rescored { group, step, lines })
    }

    /// A module of a Proposer group. `drawn`: verdicts as recorded, one for each kernel it has.
    fn module(&self, module: ModuleId, drawn: &[Verdict]) -> Result<Standing, String> {
        if self.state.excluded.modules.contains(&module) {
            let seen = |verdict: &Verdict| Seen { verdict: Some(verdict.clone()), untimed: false };
            return Ok(Standing::Valid(drawn.iter().map(seen).collect()));
        }
        match self.other.get(&module) {
            Some(Some(false)) => return Ok(Standing::Invalid),
            Some(Some(true) | None) => return Ok(Standing::Unknown),
            None if drawn.is_empty() => return Ok(Standing::Invalid),
            None => {}
        }
        let kernels = self.state.open.kernels.range((module, 0)..=(module, u32::MAX));
        let seen = kernels.map(|(_, kernel)| self.seen(*kernel, false));
        seen.collect::<Result<_, String>>().map(Standing::Valid)
    }

    /// The kernels of a Coder group; `None` if its module is not valid now.
    fn kernels(
        &self,
        step: StepRef,
        ids: &[KernelId],
    ) -> Result<Option<Vec<(KernelId, Seen)>>, String> {
        let timed = step.role == Role::Coder
            && self.state.config.as_ref().is_some_and(|config| config.judge.timing);
        let module = ids.first().and_then(|id| self.state.open.kernel.get(id)).map(|k| k.module);
        let standing = module.and_then(|module| self.other.get(&module)).copied();
        if standing == Some(Some(false)) {
            return Ok(None);
        }
        let member = |id: &KernelId| {
            let mut seen = self.seen(*id, timed)?;
            // Whether there would be such a kernel is not known.
            if standing == Some(None) {
                seen.verdict = None;
            }
            Ok((*id, seen))
        };
        ids.iter().map(member).collect::<Result<_, String>>().map(Some)
    }

    fn seen(&self, kernel: KernelId, timed: bool) -> Result<Seen, String> {
        if self.state.excluded.kernels.contains(&kernel) {
            return Ok(Seen { verdict: Some(Verdict::Excluded), untimed: false });
        }
        match self.state.open.kernel.get(&kernel) {
            Some(entry) => lines::seen(entry, &self.rules, self.evidence, timed),
            None => Ok(Seen { verdict: None, untimed: false }),
        }
    }

    fn join_pool(&mut self, round: u32, module: ModuleId, standing: &Standing) {
        let verdicts: Option<Vec<Verdict>> = match standing {
            Standing::Invalid => return,
            Standing::Unknown => None,
            Standing::Valid(seen) => seen.iter().map(|seen| seen.verdict.clone()).collect(),
        };
        let Some(verdicts) = verdicts else {
            self.pool_known = false;
            return;
        };
        if let Some(entry) = PoolEntry::of(&self.state, round, module, &verdicts) {
            let capacity = self.rules.config.coder.pool.capacity.get() as usize;
            entry.join(&mut self.pool, capacity);
        }
    }

    /// Counts one group.
    fn compare(&mut self, group: GroupId, step: StepRef, scores: &Scores, lines: Option<&[Line]>) {
        let signal = lines.map(|lines| {
            let each = lines.iter().map(|line| line.advantage);
            let known: Option<Vec<f64>> = each.collect();
            known.map(|advantages| advantages.iter().any(|advantage| *advantage != 0.0))
        });
        // A group that would not be is as one without a signal.
        self.signals.insert(group, signal.unwrap_or(Some(false)));
        let row = self.row(step);
        row.signal.all += 1;
        row.signal.before += u64::from(scores.has_signal());
        row.signal.after += u64::from(signal == Some(Some(true)));
        row.signal.unknown += u64::from(signal == Some(None));
        row.signal.dropped += u64::from(signal.is_none());
        for (place, before) in recorded(scores).iter().enumerate() {
            let Some(after) = lines.and_then(|lines| lines.get(place)) else { continue };
            row.rewards.line(before, after);
            // Kernels of a module that is not valid now have no verdict; the module's flip says it.
            for (verdict, now) in before.verdicts.iter().flatten().zip(&after.verdicts) {
                row.kernels.verdict(verdict, now.as_ref());
            }
        }
    }

    fn started(&mut self, step: StepRef, before: &[GroupId]) {
        let groups = groups_of_step(&self.state).unwrap_or_default();
        let mut batch = Batch { before: before.len() as u64, ..Batch::default() };
        let mut chosen: Vec<bool> = vec![true; groups.len()];
        if step.role == Role::Coder {
            batch.selection_unknown = !self.pool_known;
            if self.pool_known {
                let wanted = coder_batch(&self.pool, &self.rules.config, step);
                let wanted: BTreeSet<ModuleId> = wanted.iter().map(|entry| entry.module).collect();
                let drawn: Vec<ModuleId> = tasks(&self.state).iter().map(|t| t.module).collect();
                chosen = drawn.iter().map(|module| wanted.contains(module)).collect();
                batch.not_drawn = wanted.iter().filter(|m| !drawn.contains(m)).count() as u64;
            }
        }
        let before: BTreeSet<&GroupId> = before.iter().collect();
        for (group, chosen) in groups.iter().zip(chosen) {
            let now = if chosen { self.signals.get(group).copied().flatten() } else { Some(false) };
            match (before.contains(group), now) {
                (_, None) => batch.unknown += 1,
                (false, Some(true)) => batch.entered.push(*group),
                (true, Some(false)) => batch.left.push(*group),
                (true, Some(true)) | (false, Some(false)) => {}
            }
        }
        self.row(step).batch = batch;
    }
}

/// Validity by other rules; `None` if they want more trials than were made.
fn standing(report: &ModuleReport, asked: &[String], rules: &Rulebook) -> Option<Validity> {
    let mut config = rules.config.validator.clone();
    let mut report = report.clone();
    let mut lacking = false;
    if let ModuleRun::Ran { trials, .. } = &mut report.run {
        let wanted = config.trials.get() as usize;
        lacking = trials.len() < wanted;
        trials.truncate(wanted);
        if let Ok(made) = crate::config::Positive::try_from(trials.len() as i64) {
            config.trials = if lacking { made } else { config.trials };
        }
    }
    let found = validity(&report, asked, &config);
    (!lacking || found != Validity::Valid).then_some(found)
}
