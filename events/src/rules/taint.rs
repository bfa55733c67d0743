//! What a kernel or module that is found wrong has fed: rewards, advantages and gradient steps.
//!
//! Fed directly: its own reward; the advantages of its group, since each rests on all rewards of the group;
//! the gradient steps whose batch holds the group. Everything drawn after the first such step is drawn by
//! weights that it has fed; those later steps are counted, not listed. Not followed: which modules the
//! Coder's batch has and which APIs are drawn, which also rest on right kernels.

mod suspect;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use uuid::Uuid;

use crate::event::{Event, Scores, Verdict};
use crate::ids::{GroupId, KernelId, ModuleId, PolicyVersion, Role, Seq, StepRef};
use crate::rules::rescore::{Rescored, recorded};
use crate::state::RunState;
pub use suspect::{BadSuspect, JudgedBy, Rule, Suspect};

/// A group that rests on a tainted sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TaintedGroup {
    /// Where it was scored.
    pub seq: Seq,
    /// Which.
    pub group: GroupId,
    /// Its step.
    pub step: StepRef,
    /// Members whose own reward rests on something tainted: id, reward, advantage.
    pub rewards: Vec<(Uuid, f64, f64)>,
    /// Advantages that rest on them: those of all members, if the group has a signal.
    pub advantages: u64,
}

/// A gradient step that holds a tainted group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TaintedStep {
    /// Where its batch was closed.
    pub seq: Seq,
    /// Which.
    pub step: StepRef,
    /// Tainted groups of the batch, and all.
    pub groups: (u64, u64),
    /// Of all |advantage| of the batch, the part of tainted members.
    pub own_share: f64,
    /// Of all |advantage| of the batch, the part of members of tainted groups.
    pub share: f64,
    /// The weights before.
    pub before: PolicyVersion,
    /// The weights after, once the step was taken.
    pub after: Option<PolicyVersion>,
}

/// The last point that nothing tainted has reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Clean {
    /// Position of the last event before the first tainted step.
    pub seq: Seq,
    /// The weights of both policies there.
    pub weights: Vec<PolicyVersion>,
    /// Those of them that were saved as checkpoints; the initial ones are with the run itself.
    pub saved: Vec<PolicyVersion>,
    /// The round of the first tainted step: a branch before it is clean.
    pub round: u32,
}

/// Everything found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tainted {
    /// Modules that are tainted themselves.
    pub modules: BTreeSet<ModuleId>,
    /// Kernels that are tainted themselves or written for a tainted module.
    pub kernels: BTreeSet<KernelId>,
    /// Groups, in order.
    pub groups: Vec<TaintedGroup>,
    /// Steps, in order.
    pub steps: Vec<TaintedStep>,
    /// The last clean point; none if no step was fed.
    pub clean: Option<Clean>,
    /// Steps with an update after the first tainted one, that hold nothing tainted themselves.
    pub downstream: u64,
}

/// |advantage| of one scored group: of all members, and of tainted ones.
#[derive(Clone, Copy, Default)]
struct Weight {
    all: f64,
    own: f64,
    tainted: bool,
}

/// Follows what is tainted while a run's events go by.
pub struct Tracer {
    suspects: Vec<Suspect>,
    open: BTreeMap<GroupId, Weight>,
    found: Tainted,
}

impl Tracer {
    /// Before the first event.
    pub fn new(suspects: Vec<Suspect>) -> Self {
        Self { suspects, open: BTreeMap::new(), found: Tainted::default() }
    }

    /// Taints what other rules score otherwise or cannot tell. Call before [`Tracer::see`] gets the event
    /// that `scores` are from.
    pub fn differs(&mut self, state: &RunState, scores: &Scores, by_others: &Rescored) {
        let before = recorded(scores);
        for (place, line) in before.iter().enumerate() {
            let now = by_others.lines.as_ref().and_then(|lines| lines.get(place));
            let other = |i: usize, verdict: &Option<Verdict>| {
                now.and_then(|line| line.verdicts.get(i)) != Some(verdict)
            };
            let kernels: Vec<KernelId> = match scores {
                Scores::Modules(_) => {
                    let module = ModuleId(line.id);
                    if now.is_none_or(|now| now.verdicts.len() != line.verdicts.len()) {
                        self.found.modules.insert(module);
                    }
                    let written = state.open.kernels.range((module, 0)..=(module, u32::MAX));
                    written.map(|(_, kernel)| *kernel).collect()
                }
                Scores::Kernels(_) => vec![KernelId(line.id)],
            };
            let differing = kernels
                .into_iter()
                .zip(line.verdicts.iter().enumerate())
                .filter(|(_, (i, v))| other(*i, v));
            self.found.kernels.extend(differing.map(|(kernel, _)| kernel));
        }
    }

    /// What was found.
    pub fn finish(self) -> Tainted {
        self.found
    }

    /// Looks at `event`; `state` is the fold of everything before it.
    pub fn see(&mut self, state: &RunState, seq: Seq, event: &Event) {
        for suspect in &self.suspects {
            suspect.mark(state, event, &mut self.found);
        }
        match event {
            Event::KernelWritten { kernel, module, .. } if self.found.modules.contains(module) => {
                self.found.kernels.insert(*kernel);
            }
            Event::GroupScored { group, step, scores } => {
                self.scored(state, seq, *group, *step, scores);
            }
            Event::StepStarted { step, before, groups } => {
                self.started(state, seq, (*step, *before), groups);
            }
            Event::StepTaken { step, after, update, .. } => {
                self.open.clear();
                match self.found.steps.last_mut() {
                    Some(last) if last.step == *step => last.after = Some(*after),
                    Some(_) => self.found.downstream += u64::from(update.is_some()),
                    None => {}
                }
            }
            _ => {}
        }
    }

    fn scored(
        &mut self,
        state: &RunState,
        seq: Seq,
        group: GroupId,
        step: StepRef,
        scores: &Scores,
    ) {
        // What was taken out of the run feeds nothing.
        let out = &state.excluded;
        let feeds_alone = |kernel: &KernelId| {
            self.found.kernels.contains(kernel) && !out.kernels.contains(kernel)
        };
        let feeds = |module: &ModuleId| {
            let written = state.open.kernels.range((*module, 0)..=(*module, u32::MAX));
            !out.modules.contains(module)
                && (self.found.modules.contains(module)
                    || written.into_iter().any(|(_, k)| feeds_alone(k)))
        };
        let members: Vec<(Uuid, f64, f64, bool)> = match scores {
            Scores::Modules(scores) => scores
                .iter()
                .map(|s| (s.module.0, s.reward, s.advantage, feeds(&s.module)))
                .collect(),
            Scores::Kernels(scores) => scores
                .iter()
                .map(|s| (s.kernel.0, s.reward, s.advantage, feeds_alone(&s.kernel)))
                .collect(),
        };
        let mut weight = Weight::default();
        for (_, _, advantage, tainted) in &members {
            weight.all += advantage.abs();
            weight.own += if *tainted { advantage.abs() } else { 0.0 };
            weight.tainted |= tainted;
        }
        self.open.insert(group, weight);
        if weight.tainted {
            let own = members.iter().filter(|(_, _, _, tainted)| *tainted);
            let rewards =
                own.map(|(id, reward, advantage, _)| (*id, *reward, *advantage)).collect();
            let advantages = if scores.has_signal() { members.len() as u64 } else { 0 };
            self.found.groups.push(TaintedGroup { seq, group, step, rewards, advantages });
        }
    }

    fn started(
        &mut self,
        state: &RunState,
        seq: Seq,
        (step, before): (StepRef, PolicyVersion),
        groups: &[GroupId],
    ) {
        let weights: Vec<Weight> =
            groups.iter().filter_map(|g| self.open.get(g)).copied().collect();
        let tainted = weights.iter().filter(|w| w.tainted).count() as u64;
        if tainted == 0 {
            return;
        }
        let all: f64 = weights.iter().map(|w| w.all).sum();
        let own: f64 = weights.iter().map(|w| w.own).sum();
        let share: f64 = weights.iter().filter(|w| w.tainted).map(|w| w.all).sum();
        if self.found.clean.is_none() {
            let weights = vec![state.version(Role::Proposer), state.version(Role::Coder)];
            let saved = |version: &&PolicyVersion| state.checkpoints.contains_key(version);
            let saved = weights.iter().filter(saved).copied().collect();
            let seq = Seq(seq.0 - 1);
            self.found.clean = Some(Clean { seq, weights, saved, round: step.round });
        }
        self.found.steps.push(TaintedStep {
            seq,
            step,
            groups: (tainted, groups.len() as u64),
            own_share: own / all,
            share: share / all,
            before,
            after: None,
        });
    }
}
