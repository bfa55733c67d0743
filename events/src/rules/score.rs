//! Groups that are complete, their rewards and advantages, and the batch they make.

use super::control::sampling_step;
use super::reward::{advantages, correctness_aware, frontier};
use super::verdict::verdict;
use super::work::{Task, kernels_per_task, tasks};
use crate::config::{CoderConfig, ProposerConfig, RunConfig};
use crate::event::{CompileOutcome, KernelScore, ModuleScore, Scores, Validity, Verdict};
use crate::ids::{BlobId, GroupId, KernelId, ModuleId, PolicyVersion, Role, Seq, StepRef};
use crate::outcome::{Measurement, TaskFault};
use crate::state::{KernelEntry, RunState, ScoredGroup, SetEntry};

/// A group whose members are all done.
#[derive(Clone, Debug, PartialEq)]
pub struct Complete {
    /// Its id.
    pub group: GroupId,
    /// The step it belongs to.
    pub step: StepRef,
    /// Its scores.
    pub scores: Scores,
    /// The last event that it waited for.
    pub cause: Seq,
}

/// Complete groups of the open step that have no scores yet, in order of index.
pub fn groups_to_score(state: &RunState) -> Vec<Complete> {
    let (Some((step, _)), Some(config)) = (sampling_step(state), state.config.as_ref()) else {
        return Vec::new();
    };
    let all: Vec<Option<Complete>> = match step.role {
        Role::Proposer => {
            let ready = tasks(state);
            state.open.sets.values().map(|s| module_group(state, config, step, s, &ready)).collect()
        }
        Role::Coder => {
            tasks(state).iter().map(|task| kernel_group(state, config, step, task)).collect()
        }
    };
    let unscored = |complete: &Complete| !state.open.scored.contains_key(&complete.group);
    all.into_iter().flatten().filter(unscored).collect()
}

/// Verdict of a kernel that is done, and the event that made it so. `judge` is asked where something
/// was measured.
pub fn fate(
    entry: &KernelEntry,
    judge: impl Fn(&Measurement) -> Option<Verdict>,
) -> Option<(Verdict, Seq)> {
    match (&entry.compiled, &entry.measured) {
        (Some((seq, CompileOutcome::Rejected(failure))), _) => {
            Some((Verdict::Failed(failure.kind), *seq))
        }
        (Some(_), Some((seq, measurement))) => {
            let verdict = judge(measurement);
            Some((verdict.unwrap_or(Verdict::TaskRefused(TaskFault::ReferenceFailed)), *seq))
        }
        (Some(_) | None, _) => None,
    }
}

/// What a module earns by the verdicts of its kernels; `None` if none of them was judged. An invalid
/// module has no verdicts and earns what the config says.
pub fn module_reward(verdicts: Option<&[Verdict]>, config: &ProposerConfig) -> Option<f64> {
    let Some(verdicts) = verdicts else { return Some(config.invalid_reward) };
    let judged = verdicts.iter().filter(|v| v.is_judged()).count() as u32;
    let correct = verdicts.iter().filter(|v| v.is_correct()).count() as u32;
    (judged > 0).then(|| frontier(correct, judged, config.target.get()))
}

/// What each of a module's kernels earns; `None` where nobody is scored.
pub fn kernel_rewards(verdicts: &[Verdict], config: &CoderConfig) -> Vec<Option<f64>> {
    let judged = verdicts.iter().filter(|verdict| verdict.is_judged());
    let speedups: Vec<Option<Option<f64>>> = judged
        .map(|verdict| match verdict {
            Verdict::Correct { speedup } => Some(*speedup),
            Verdict::WrongValue { .. }
            | Verdict::Failed(_)
            | Verdict::TaskRefused(_)
            | Verdict::Excluded => None,
        })
        .collect();
    let mut earned = correctness_aware(&speedups, config).into_iter();
    let reward = |verdict: &Verdict| if verdict.is_judged() { earned.next() } else { None };
    verdicts.iter().map(reward).collect()
}

/// All verdicts of a module's kernels in order of index; `None` while one is lacking.
fn verdicts(
    state: &RunState,
    config: &RunConfig,
    role: Role,
    module: ModuleId,
) -> Option<Vec<(KernelId, Verdict, Seq)>> {
    (0..kernels_per_task(state, role))
        .map(|index| {
            let kernel = *state.open.kernels.get(&(module, index))?;
            let entry = state.open.kernel.get(&kernel)?;
            let (verdict, seq) = fate(entry, |m| verdict(m, config.judge.profile))?;
            let excluded = state.excluded.kernels.contains(&kernel);
            Some((kernel, if excluded { Verdict::Excluded } else { verdict }, seq))
        })
        .collect()
}

/// The group of the modules of `set`, if it is complete; `ready` holds at least their tasks.
pub(super) fn module_group(
    state: &RunState,
    config: &RunConfig,
    step: StepRef,
    set: &SetEntry,
    ready: &[Task],
) -> Option<Complete> {
    let complete = set.modules.len() == config.proposer.policy.group_size.get() as usize;
    if !complete {
        return None;
    }
    let mut cause = set.seq;
    let mut lines = Vec::new();
    for module in set.modules.values() {
        let (validated, validity) = state.open.modules.get(module)?.validity.as_ref()?;
        cause = cause.max(*validated);
        if *validity != Validity::Valid {
            let excluded = state.excluded.modules.contains(module);
            let verdicts = if excluded { vec![Verdict::Excluded] } else { Vec::new() };
            let reward = if excluded { None } else { module_reward(None, &config.proposer) };
            lines.push((*module, verdicts, reward));
            continue;
        }
        ready.iter().find(|task| task.module == *module)?;
        let found = verdicts(state, config, Role::Proposer, *module)?;
        cause = found.iter().map(|(_, _, seq)| *seq).fold(cause, Seq::max);
        let verdicts: Vec<Verdict> = found.into_iter().map(|(_, verdict, _)| verdict).collect();
        let reward = module_reward(Some(&verdicts), &config.proposer);
        lines.push((*module, verdicts, reward));
    }
    let rewards: Vec<Option<f64>> = lines.iter().map(|(_, _, reward)| *reward).collect();
    let relative = advantages(&rewards, config.advantage.std_floor.get());
    let scores = lines
        .into_iter()
        .zip(relative)
        .map(|((module, verdicts, reward), advantage)| ModuleScore {
            module,
            verdicts,
            reward: reward.unwrap_or(0.0),
            advantage,
        })
        .collect();
    let group = GroupId::of_modules(set.id, step);
    Some(Complete { group, step, scores: Scores::Modules(scores), cause })
}

/// The group of the kernels of `task`, if it is complete.
pub(super) fn kernel_group(
    state: &RunState,
    config: &RunConfig,
    step: StepRef,
    task: &Task,
) -> Option<Complete> {
    let found = verdicts(state, config, Role::Coder, task.module)?;
    let cause = found.iter().map(|(_, _, seq)| *seq).max()?;
    let verdicts: Vec<Verdict> = found.iter().map(|(_, verdict, _)| verdict.clone()).collect();
    let rewards = kernel_rewards(&verdicts, &config.coder);
    let relative = advantages(&rewards, config.advantage.std_floor.get());
    let scores = found
        .into_iter()
        .zip(rewards.iter().zip(relative))
        .map(|((kernel, verdict, _), (reward, advantage))| KernelScore {
            kernel,
            verdict,
            reward: reward.unwrap_or(0.0),
            advantage,
        })
        .collect();
    let branch = state.branch()?;
    let group = GroupId::of_kernels(branch, task.module, step);
    Some(Complete { group, step, scores: Scores::Kernels(scores), cause })
}

/// A step whose batch is complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Which step.
    pub step: StepRef,
    /// The weights in use.
    pub before: PolicyVersion,
    /// Groups with a signal, in order of index; none if the policy is frozen.
    pub groups: Vec<GroupId>,
    /// The last event that it waited for.
    pub cause: Seq,
}

/// The groups of the open step in order of index; `None` while API sets are lacking.
pub fn groups_of_step(state: &RunState) -> Option<Vec<GroupId>> {
    let (step, _) = sampling_step(state)?;
    let config = state.config.as_ref()?;
    match step.role {
        Role::Proposer => {
            let complete =
                state.open.sets.len() >= config.proposer.policy.batch_prompts.get() as usize;
            let group = |set: &SetEntry| GroupId::of_modules(set.id, step);
            complete.then(|| state.open.sets.values().map(group).collect())
        }
        Role::Coder => {
            let branch = state.branch()?;
            let group = |task: &Task| GroupId::of_kernels(branch, task.module, step);
            Some(tasks(state).iter().map(group).collect())
        }
    }
}

/// The batch of the open step, once all its groups have their scores.
pub fn step_to_start(state: &RunState) -> Option<Batch> {
    let (step, since) = sampling_step(state)?;
    let groups = groups_of_step(state)?;
    let scored: Option<Vec<_>> =
        groups.iter().map(|group| Some((*group, state.open.scored.get(group)?))).collect();
    let scored = scored?;
    let teaches = |s: &ScoredGroup| s.has_signal() && !state.is_frozen(step.role);
    Some(Batch {
        step,
        before: state.version(step.role),
        groups: scored.iter().filter(|(_, s)| teaches(s)).map(|(group, _)| *group).collect(),
        cause: scored.iter().map(|(_, s)| s.seq).fold(since, Seq::max),
    })
}

/// A step that was started and not taken.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenBatch {
    /// Which step.
    pub step: StepRef,
    /// The weights in use.
    pub before: PolicyVersion,
    /// Advantage and answer of each sample that carries a gradient, in order of group and index.
    pub samples: Vec<(f64, BlobId)>,
    /// Where it was started.
    pub cause: Seq,
}

/// The step that was started and not taken, if any.
pub fn step_to_take(state: &RunState) -> Option<OpenBatch> {
    let (step, _) = state.open_step()?;
    let (cause, groups) = state.open.started.as_ref()?;
    let samples = groups
        .iter()
        .filter_map(|group| state.open.scored.get(group))
        .flat_map(|scored| scored.members.iter().copied())
        .collect();
    Some(OpenBatch { step, before: state.version(step.role), samples, cause: *cause })
}
