//! One group scored by other rules: known where something was measured.

use uuid::Uuid;

use super::settings::{Purity, Rulebook};
use crate::event::{CompileOutcome, Scores, Verdict};
use crate::ids::{KernelId, ModuleId};
use crate::outcome::{Execution, FailureKind, Measurement, Timing};
use crate::rules::audit::Evidence;
use crate::rules::reward::advantages;
use crate::rules::score::{fate, kernel_rewards, module_reward};
use crate::rules::verdict::{verdict, verdict_within};
use crate::state::KernelEntry;

/// What a sample earns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reward {
    /// This much.
    Is(f64),
    /// The task is at fault; nobody is scored.
    Unscored,
    /// It rests on something that was never measured.
    Unknown,
}

/// One sample of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The module or kernel.
    pub id: Uuid,
    /// Verdicts of the module's kernels (none for an invalid one), or the kernel's own; `None` is unknown.
    pub verdicts: Vec<Option<Verdict>>,
    /// What it earns.
    pub reward: Reward,
    /// The reward relative to the group; `None` is unknown.
    pub advantage: Option<f64>,
}

/// The lines of a group as they are recorded.
pub fn recorded(scores: &Scores) -> Vec<Line> {
    let line = |id, verdicts: &[Verdict], reward, advantage| {
        let scored = verdicts.is_empty() || verdicts.iter().any(Verdict::is_judged);
        let reward = if scored { Reward::Is(reward) } else { Reward::Unscored };
        let verdicts = verdicts.iter().cloned().map(Some).collect();
        Line { id, verdicts, reward, advantage: Some(advantage) }
    };
    match scores {
        Scores::Modules(scores) => {
            scores.iter().map(|s| line(s.module.0, &s.verdicts, s.reward, s.advantage)).collect()
        }
        Scores::Kernels(scores) => scores
            .iter()
            .map(|s| line(s.kernel.0, std::slice::from_ref(&s.verdict), s.reward, s.advantage))
            .collect(),
    }
}

/// What other rules say of a module.
pub(super) enum Standing {
    Invalid,
    /// Whether it is valid is not known, or it is and no kernels were drawn for it.
    Unknown,
    Valid(Vec<Seen>),
}

/// What other rules say of a kernel.
#[derive(Clone)]
pub(super) struct Seen {
    pub verdict: Option<Verdict>,
    /// It is right and should have been timed, but was not since it was wrong by both profiles.
    pub untimed: bool,
}

pub(super) fn modules(members: Vec<(ModuleId, Standing)>, rules: &Rulebook) -> Vec<Line> {
    let line = |(module, standing): (ModuleId, Standing)| {
        let (verdicts, reward) = match standing {
            Standing::Invalid => (vec![], earned(module_reward(None, &rules.config.proposer))),
            Standing::Unknown => (vec![], Reward::Unknown),
            Standing::Valid(seen) => {
                let verdicts: Vec<_> = seen.into_iter().map(|s| s.verdict).collect();
                let known: Option<Vec<Verdict>> = verdicts.iter().cloned().collect();
                let reward = known.map_or(Reward::Unknown, |known| {
                    earned(module_reward(Some(&known), &rules.config.proposer))
                });
                (verdicts, reward)
            }
        };
        Line { id: module.0, verdicts, reward, advantage: None }
    };
    relative(members.into_iter().map(line).collect(), rules)
}

pub(super) fn kernels(members: Vec<(KernelId, Seen)>, rules: &Rulebook) -> Vec<Line> {
    let known: Option<Vec<Verdict>> = members.iter().map(|(_, s)| s.verdict.clone()).collect();
    let rewards: Vec<Reward> = match &known {
        Some(verdicts) if !speed_unknown(&members, verdicts, rules) => {
            kernel_rewards(verdicts, &rules.config.coder).into_iter().map(earned).collect()
        }
        // Whatever the rest is, a wrong kernel earns nothing.
        Some(_) | None => members.iter().map(|(_, seen)| alone(seen.verdict.as_ref())).collect(),
    };
    let line = |((kernel, seen), reward): ((KernelId, Seen), Reward)| Line {
        id: kernel.0,
        verdicts: vec![seen.verdict],
        reward,
        advantage: None,
    };
    relative(members.into_iter().zip(rewards).map(line).collect(), rules)
}

/// Whether a time that was never taken counts: the gate is open and speed has a weight.
fn speed_unknown(members: &[(KernelId, Seen)], verdicts: &[Verdict], rules: &Rulebook) -> bool {
    let coder = &rules.config.coder;
    let judged = verdicts.iter().filter(|v| v.is_judged()).count();
    let right = verdicts.iter().filter(|v| v.is_correct()).count();
    let open = right as f64 / judged.max(1) as f64 >= coder.alpha.get();
    open && coder.beta.get() > 0.0 && members.iter().any(|(_, seen)| seen.untimed)
}

fn alone(verdict: Option<&Verdict>) -> Reward {
    match verdict {
        Some(Verdict::WrongValue { .. } | Verdict::Failed(_)) => Reward::Is(0.0),
        Some(Verdict::TaskRefused(_) | Verdict::Excluded) => Reward::Unscored,
        Some(Verdict::Correct { .. }) | None => Reward::Unknown,
    }
}

fn earned(reward: Option<f64>) -> Reward {
    reward.map_or(Reward::Unscored, Reward::Is)
}

/// Fills in the advantages: all of a group are known, or none, since each rests on all rewards.
fn relative(mut lines: Vec<Line>, rules: &Rulebook) -> Vec<Line> {
    let rewards: Option<Vec<Option<f64>>> = lines
        .iter()
        .map(|line| match line.reward {
            Reward::Is(reward) => Some(Some(reward)),
            Reward::Unscored => Some(None),
            Reward::Unknown => None,
        })
        .collect();
    if let Some(rewards) = rewards {
        let found = advantages(&rewards, rules.config.advantage.std_floor.get());
        for (line, advantage) in lines.iter_mut().zip(found) {
            line.advantage = Some(advantage);
        }
    }
    lines
}

/// What `rules` say of one kernel. `timed`: kernels of its step were timed if they were right.
pub(super) fn seen(
    entry: &KernelEntry,
    rules: &Rulebook,
    evidence: &dyn Evidence,
    timed: bool,
) -> Result<Seen, String> {
    let known = |verdict| Ok(Seen { verdict, untimed: false });
    let refused = match &entry.compiled {
        Some((_, CompileOutcome::Rejected(failure))) => Some(failure.kind),
        Some((_, CompileOutcome::Built { .. })) | None => None,
    };
    match rules.purity {
        Purity::Recorded => {}
        Purity::Off if refused == Some(FailureKind::Impure) || ended_impure(entry) => {
            return known(None);
        }
        Purity::Off => {}
        Purity::Current => {
            let now = entry.source.map(|id| evidence.kernel_source(id)).transpose()?;
            match (refused, now) {
                (_, Some(Err(failure))) => return known(Some(Verdict::Failed(failure.kind))),
                // What the compiler refused is refused whatever the static rules say.
                (Some(FailureKind::CompileError) | None, Some(Ok(_))) | (_, None) => {}
                (Some(_), Some(Ok(_))) => return known(None),
            }
        }
    }
    let judge = |m: &Measurement| verdict_within(m, rules.config.judge.profile, rules.tolerance);
    let verdict = fate(entry, judge).map(|(verdict, _)| verdict);
    let right = verdict.as_ref().is_some_and(Verdict::is_correct);
    Ok(Seen { untimed: timed && right && was_wrong_by_both(entry), verdict })
}

/// A rule against foreign work stopped it while it ran, so nothing was compared.
fn ended_impure(entry: &KernelEntry) -> bool {
    let execution = entry.measured.as_ref().map(|(_, measurement)| &measurement.execution);
    matches!(execution, Some(Execution::Failed(failure)) if failure.kind == FailureKind::Impure)
}

/// The judge times what either profile calls right, so a kernel without times was wrong by both.
fn was_wrong_by_both(entry: &KernelEntry) -> bool {
    let Some((_, measurement)) = &entry.measured else { return false };
    let Execution::Ran { timing: Timing::NotTaken, .. } = measurement.execution else {
        return false;
    };
    use crate::config::Rules;
    let right = |profile| verdict(measurement, profile).is_some_and(|v| v.is_correct());
    ![Rules::Paper, Rules::Strict].into_iter().any(right)
}
