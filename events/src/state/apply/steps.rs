//! Scores of groups, and gradient steps.

use std::collections::BTreeMap;

use super::settings::opened;
use super::{Outcome, in_step, open_role, refuse, require};
use crate::config::Ties;
use crate::event::{ModuleScore, Scores, Update, Validity, Verdict};
use crate::ids::{ApiSetId, GroupId, ModuleId, PolicyVersion, RunId, Seq, StepRef};
use crate::state::{OpenStep, PoolEntry, Position, RunState, ScoredGroup, Tally};

pub(super) fn scored(
    state: &mut RunState,
    seq: Seq,
    group: GroupId,
    step: StepRef,
    scores: &Scores,
) -> Outcome {
    in_step(state, step)?;
    let mut members = Vec::new();
    match scores {
        Scores::Modules(scores) => {
            for score in scores {
                let Some(entry) = state.open.modules.get(&score.module) else {
                    return refuse("a member is not in the open step");
                };
                members.push((score.advantage, entry.sample));
                let apis = state.open.sets.get(&entry.set).map_or(&[][..], |s| s.apis.as_slice());
                for verdict in score.verdicts.iter().filter(|v| v.is_judged()) {
                    state.totals.kernels.add(verdict.is_correct());
                    tally(&mut state.tallies, apis, verdict.is_correct());
                }
                pool(state, step.round, score);
            }
        }
        Scores::Kernels(scores) => {
            // A group has one module.
            let mut of: Option<(ModuleId, &[String])> = None;
            for score in scores {
                let Some(entry) = state.open.kernel.get(&score.kernel) else {
                    return refuse("a member is not in the open step");
                };
                members.push((score.advantage, entry.sample));
                if of.as_ref().is_none_or(|(module, _)| *module != entry.module) {
                    let found = state.pool.iter().rev().find(|p| p.module == entry.module);
                    of = Some((entry.module, found.map_or(&[], |p| p.apis.as_slice())));
                }
                let apis = of.map_or(&[][..], |(_, apis)| apis);
                if score.verdict.is_judged() {
                    state.totals.kernels.add(score.verdict.is_correct());
                    tally(&mut state.tallies, apis, score.verdict.is_correct());
                }
            }
        }
    }
    state.totals.groups.entry(step.role).or_default().add(scores.has_signal());
    let again = state.open.scored.insert(group, ScoredGroup { seq, members });
    require(again.is_none(), "the group was scored already")
}

fn tally(tallies: &mut BTreeMap<String, Tally>, apis: &[String], right: bool) {
    for api in apis {
        match tallies.get_mut(api) {
            Some(tally) => tally.add(right),
            None => tallies.entry(api.clone()).or_default().add(right),
        }
    }
}

/// A valid module becomes one that the Coder may train on.
fn pool(state: &mut RunState, round: u32, score: &ModuleScore) {
    let Some(entry) = PoolEntry::of(state, round, score.module, &score.verdicts) else { return };
    let capacity =
        state.config.as_ref().map_or(usize::MAX, |c| c.coder.pool.capacity.get() as usize);
    entry.join(&mut state.pool, capacity);
}

impl PoolEntry {
    /// What `module` of the open step becomes once its kernels have these verdicts: a task for the
    /// Coder, if it is valid and any of them was judged.
    pub fn of(
        state: &RunState,
        round: u32,
        module: ModuleId,
        verdicts: &[Verdict],
    ) -> Option<Self> {
        let entry = state.open.modules.get(&module)?;
        let Some((validated, Validity::Valid)) = entry.validity else { return None };
        let source = entry.source?;
        let judged = verdicts.iter().filter(|v| v.is_judged()).count();
        let correct = verdicts.iter().filter(|v| v.is_correct()).count();
        let (step, set) = (open_role(state)?, state.open.sets.get(&entry.set)?);
        let index = set.modules.iter().find(|(_, other)| **other == module).map(|(at, _)| *at)?;
        let run = match state.config.as_ref()?.coder.pool.ties {
            Ties::RunId => *state.lineage.first()?,
            Ties::Coordinates => RunId::new(0, [0; 10]),
        };
        let first = ApiSetId::at(run, step, entry.set);
        (judged > 0).then_some(PoolEntry {
            module,
            rank: ModuleId::at(first, step, index),
            source,
            validated,
            apis: set.apis.clone(),
            round,
            correct: correct as u32,
            of: judged as u32,
        })
    }

    /// Adds it to a pool, whose oldest entry makes room.
    pub fn join(self, pool: &mut Vec<PoolEntry>, capacity: usize) {
        pool.push(self);
        if pool.len() > capacity {
            pool.remove(0);
        }
    }
}

pub(super) fn started(
    state: &mut RunState,
    seq: Seq,
    step: StepRef,
    before: PolicyVersion,
    groups: Vec<GroupId>,
) -> Outcome {
    in_step(state, step)?;
    require(state.version(step.role) == before, "these are not the weights in use")?;
    let known = groups.iter().all(|group| state.open.scored.contains_key(group));
    require(known, "a group has no scores")?;
    state.open.started = Some((seq, groups));
    Ok(())
}

pub(super) fn taken(
    state: &mut RunState,
    seq: Seq,
    step: StepRef,
    (before, after): (PolicyVersion, PolicyVersion),
    update: Option<&Update>,
) -> Outcome {
    require(open_role(state) == Some(step), "the step is not open")?;
    let Some((_, groups)) = &state.open.started else {
        return refuse("the step was not started");
    };
    require(update.is_some() != groups.is_empty(), "an update needs groups, and groups need one")?;
    let steps = before.steps + u32::from(update.is_some());
    require(state.version(step.role) == before, "these are not the weights in use")?;
    require(
        after == PolicyVersion { role: step.role, steps },
        "the version after is not the next",
    )?;
    state.steps.insert(step.role, steps);
    if let Some(update) = update {
        state.weights.insert(step.role, update.weights);
    }
    state.totals.steps.entry(step.role).or_default().add(update.is_some());
    state.open = OpenStep::default();
    state.failures.clear();
    let next = StepRef { step: step.step + 1, ..step };
    state.position = Position::InPhase { step: next, since: seq };
    opened(state, seq, next)
}
