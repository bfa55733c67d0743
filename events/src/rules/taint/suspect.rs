//! What is found wrong, and which kernels and modules that makes tainted.

use super::Tainted;
use crate::event::{CompileOutcome, Event, ModuleScore, Scores, Stage, Validity, Verdict};
use crate::ids::{KernelId, ModuleId};
use crate::outcome::{Execution, Failure, FailureKind, Headers, Measurement, TaskFault};
use crate::state::RunState;

/// Something found wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// One kernel.
    Kernel(KernelId),
    /// One module, and with it all kernels written for it.
    Module(ModuleId),
    /// A rule: a verdict's word, or words of the evidence of a refusal.
    Rule(Rule),
    /// What judged: a device, a header set, a layer of isolation.
    Judge(JudgedBy),
}

/// A rule, as it shows in verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Kernels found right: what a rule that is too lax lets pass.
    Correct,
    /// Kernels with a wrong value.
    WrongValue,
    /// Kernels that failed in this way.
    Failed(FailureKind),
    /// Kernels whose task was found at fault.
    Refused(TaskFault),
    /// Modules that failed this stage of validation.
    Invalid(Stage),
    /// Kernels and modules whose refusal says this.
    Says(String),
}

/// What a measurement says of its judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JudgedBy {
    /// On this device.
    Device(String),
    /// With these headers.
    Headers(Headers),
    /// Without this layer of isolation.
    Without(String),
}

/// A text names no suspect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSuspect(pub String);

/// A word as it is written in JSON.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).ok()
}

impl Suspect {
    /// A rule by its word: `correct`, `wrong-value`, a kind of failure (`impure`, `timeout`), a fault of the
    /// task (`degenerate`), a stage of validation (`stable`); anything else is looked for in evidence.
    pub fn rule(text: &str) -> Result<Self, BadSuspect> {
        let text = text.trim();
        if text.is_empty() {
            return Err(BadSuspect(
                "--rule: an empty word is in everything; give a verdict such as `correct` or \
                 `impure`, or words of a refusal"
                    .to_owned(),
            ));
        }
        Ok(Suspect::Rule(match text {
            "correct" => Rule::Correct,
            "wrong-value" => Rule::WrongValue,
            _ => None
                .or_else(|| word(text).map(Rule::Failed))
                .or_else(|| stage(text).map(Rule::Invalid))
                .or_else(|| fault(text).map(Rule::Refused))
                .unwrap_or_else(|| Rule::Says(text.to_owned())),
        }))
    }

    /// What judged: `device=NAME`, `headers=fast|full`, `without=LAYER`.
    pub fn judge(text: &str) -> Result<Self, BadSuspect> {
        let judged = match text.split_once('=') {
            Some(("device", name)) => Some(JudgedBy::Device(name.to_owned())),
            Some(("headers", name)) => word(name).map(JudgedBy::Headers),
            Some(("without", layer)) => Some(JudgedBy::Without(layer.to_owned())),
            Some(_) | None => None,
        };
        judged.map(Suspect::Judge).ok_or_else(|| {
            BadSuspect(format!(
                "--judge {text}: not one of device=NAME, headers=fast, headers=full, without=LAYER"
            ))
        })
    }

    /// Adds to `found` what this makes tainted once `event` is known. Everything that a group rests on is
    /// marked before or at its own event.
    pub(super) fn mark(&self, state: &RunState, event: &Event, found: &mut Tainted) {
        match (self, event) {
            (Suspect::Kernel(id), Event::KernelWritten { kernel, .. }) if id == kernel => {
                found.kernels.insert(*id);
            }
            (Suspect::Module(id), Event::ModuleProposed { module, .. }) if id == module => {
                found.modules.insert(*id);
            }
            (Suspect::Rule(rule), _) => rule.mark(state, event, found),
            (Suspect::Judge(by), Event::KernelMeasured { kernel, measurement })
                if by.judged(measurement) =>
            {
                found.kernels.insert(*kernel);
            }
            _ => {}
        }
    }
}

fn stage(text: &str) -> Option<Stage> {
    word(text.strip_prefix("invalid-").unwrap_or(text))
}

fn fault(text: &str) -> Option<TaskFault> {
    word(text)
}

impl JudgedBy {
    fn judged(&self, measurement: &Measurement) -> bool {
        match self {
            JudgedBy::Device(name) => measurement.device == *name,
            JudgedBy::Headers(headers) => measurement.headers == Some(*headers),
            JudgedBy::Without(layer) => measurement.layers.iter().all(|up| up != layer),
        }
    }
}

impl Rule {
    fn mark(&self, state: &RunState, event: &Event, found: &mut Tainted) {
        match event {
            Event::ModuleValidated {
                module,
                validity: Validity::Invalid { stage, reason },
                ..
            } => {
                let fits = match self {
                    Rule::Invalid(wanted) => wanted == stage,
                    Rule::Says(text) => reason.contains(text.as_str()),
                    _ => false,
                };
                if fits {
                    found.modules.insert(*module);
                }
            }
            Event::KernelCompiled { kernel, outcome: CompileOutcome::Rejected(failure) }
                if self.said(failure) =>
            {
                found.kernels.insert(*kernel);
            }
            Event::KernelMeasured { kernel, measurement } => {
                let said = match &measurement.execution {
                    Execution::Failed(failure) => self.said(failure),
                    Execution::TaskAtFault(_, detail) => match self {
                        Rule::Says(text) => detail.contains(text.as_str()),
                        _ => false,
                    },
                    Execution::NoDevice | Execution::Ran { .. } => false,
                };
                if said {
                    found.kernels.insert(*kernel);
                }
            }
            Event::GroupScored { scores, .. } => self.mark_verdicts(state, scores, found),
            _ => {}
        }
    }

    fn said(&self, failure: &Failure) -> bool {
        matches!(self, Rule::Says(text) if failure.detail.contains(text.as_str()))
    }

    fn mark_verdicts(&self, state: &RunState, scores: &Scores, found: &mut Tainted) {
        let kernels_of = |score: &ModuleScore| {
            let of = state.open.kernels.range((score.module, 0)..=(score.module, u32::MAX));
            let ids: Vec<KernelId> = of.map(|(_, kernel)| *kernel).collect();
            ids.into_iter().zip(score.verdicts.clone()).collect::<Vec<_>>()
        };
        let verdicts: Vec<(KernelId, Verdict)> = match scores {
            Scores::Modules(scores) => scores.iter().flat_map(kernels_of).collect(),
            Scores::Kernels(scores) => {
                scores.iter().map(|s| (s.kernel, s.verdict.clone())).collect()
            }
        };
        let fits = verdicts.iter().filter(|(_, verdict)| self.fits(verdict));
        found.kernels.extend(fits.map(|(kernel, _)| *kernel));
    }

    fn fits(&self, verdict: &Verdict) -> bool {
        match (self, verdict) {
            (Rule::Correct, Verdict::Correct { .. })
            | (Rule::WrongValue, Verdict::WrongValue { .. }) => true,
            (Rule::Failed(wanted), Verdict::Failed(kind)) => wanted == kind,
            (Rule::Refused(wanted), Verdict::TaskRefused(fault)) => wanted == fault,
            _ => false,
        }
    }
}
