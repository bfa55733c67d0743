//! Decides again what the log says was decided, and compares.

use std::collections::BTreeSet;

use super::api_table::ApiTable;
use super::{control, prompt, score, validity, work};
use crate::event::{Answer, CompileOutcome, Event, Finish};
use crate::ids::{BlobId, Digest, Role, Seq};
use crate::outcome::{Backend, Failure, FailureKind, ModuleReport, SourceReport};
use crate::sample::Sample;
use crate::state::RunState;

/// What an audit needs beside the log.
pub trait Evidence {
    /// A blob's bytes, checked against its hash; the error says what is wrong with it.
    fn blob(&self, id: BlobId) -> Result<Vec<u8>, String>;
    /// The judge's static reading of a module; pure.
    fn module_source(&self, source: &str, tracked: &BTreeSet<String>) -> SourceReport;
    /// The judge's static rules for a kernel; pure.
    fn kernel_source(&self, source: &str) -> Result<Backend, Failure>;
}

/// Something does not agree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seq} {event}: {what}")]
pub struct Finding {
    /// Where.
    pub seq: Seq,
    /// Which event.
    pub event: &'static str,
    /// What is recorded and what is right.
    pub what: String,
}

type Check = Result<(), String>;

/// Checks that what `event` decides is what the rules decide from `state`, the fold of everything
/// before it. Effects (what a model wrote, what a kernel did) are taken as recorded.
pub fn check(
    state: &RunState,
    seq: Seq,
    event: &Event,
    evidence: &dyn Evidence,
) -> Result<(), Finding> {
    let outcome = match event {
        Event::RunStarted { .. }
        | Event::RunForked { .. }
        | Event::WorkFailed { .. }
        | Event::RunPaused { .. }
        | Event::RunResumed
        | Event::CheckpointSaved { .. }
        | Event::CheckpointDropped { .. }
        | Event::SettingChanged { .. } => Ok(()),
        Event::RoundStarted { .. }
        | Event::PhaseStarted { .. }
        | Event::PhaseFinished { .. }
        | Event::RoundFinished { .. }
        | Event::RunFinished => due(state, event),
        Event::ServiceStarted { .. }
        | Event::JobSubmitted { .. }
        | Event::JobJudged { .. }
        | Event::JobFailed { .. }
        | Event::JobCancelled { .. } => Err("jobs belong in a log of the judge's service".into()),
        Event::ApisSampled { .. } => sampled(state, event, evidence),
        Event::ModuleProposed { .. } | Event::KernelWritten { .. } => {
            written(state, event, evidence)
        }
        Event::ModuleValidated { .. } => validated(state, event, evidence),
        Event::KernelCompiled { .. } => compiled(state, event, evidence),
        Event::KernelMeasured { .. } => measured(state, event),
        Event::GroupScored { .. } => scored(state, event),
        Event::StepStarted { .. } | Event::StepTaken { .. } => stepped(state, event),
    };
    let blobs = || event.blobs().into_iter().try_for_each(|id| evidence.blob(id).map(drop));
    outcome.and_then(|()| blobs()).map_err(|what| Finding { seq, event: event.name(), what })
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, recorded: &T, right: &T) -> Check {
    if recorded == right {
        return Ok(());
    }
    let cut = |text: String| text.chars().take(300).collect::<String>();
    let (recorded, right) = (cut(format!("{recorded:?}")), cut(format!("{right:?}")));
    Err(format!("{what} is recorded as {recorded}, the rules give {right}"))
}

fn due(state: &RunState, event: &Event) -> Check {
    same("what follows", &Some(event), &control::next(state).as_ref())
}

fn table(state: &RunState, evidence: &dyn Evidence) -> Result<ApiTable, String> {
    let id = state.api_table.ok_or("no API table")?;
    let text = String::from_utf8(evidence.blob(id)?).map_err(|e| e.to_string())?;
    ApiTable::parse(&text).map_err(|e| e.to_string())
}

fn sampled(state: &RunState, event: &Event, evidence: &dyn Evidence) -> Check {
    let Event::ApisSampled { set, step, index, seed, apis } = event else { return Ok(()) };
    let orders = work::sets_to_draw(state);
    let order = orders.iter().find(|o| o.set == *set).ok_or("this API set is not wanted")?;
    same("the place", &(*step, *index), &(order.step, order.index))?;
    same("the seed", seed, &order.seed)?;
    same("the set", apis, &work::draw_apis(state, &table(state, evidence)?, order.seed))
}

/// What was wanted of an answer: place, seed, prompt and who writes it.
struct Wanted {
    index: u32,
    seed: u64,
    prompt: String,
    role: Role,
}

fn wanted(state: &RunState, event: &Event, evidence: &dyn Evidence) -> Result<Wanted, String> {
    let config = state.config.as_ref().ok_or("no config")?;
    match event {
        Event::ModuleProposed { module, set, .. } => {
            let orders = work::proposals_to_write(state);
            let order = orders.iter().find(|o| o.set == *set).ok_or("no module is wanted here")?;
            let (index, _, seed) =
                order.missing.iter().find(|m| m.1 == *module).ok_or("this module is not wanted")?;
            let prompt = prompt::for_apis(&config.proposer.policy.prompt, &order.apis);
            Ok(Wanted { index: *index, seed: *seed, prompt, role: Role::Proposer })
        }
        Event::KernelWritten { kernel, module, .. } => {
            let orders = work::kernels_to_write(state);
            let order =
                orders.iter().find(|o| o.module == *module).ok_or("no kernel is wanted here")?;
            let (index, _, seed) =
                order.missing.iter().find(|m| m.1 == *kernel).ok_or("this kernel is not wanted")?;
            let source = text(evidence, order.source)?;
            let prompt = prompt::for_module(&config.coder.policy.prompt, &source);
            Ok(Wanted { index: *index, seed: *seed, prompt, role: Role::Coder })
        }
        _ => Err("not an answer".to_owned()),
    }
}

pub(super) fn text(evidence: &dyn Evidence, id: BlobId) -> Result<String, String> {
    String::from_utf8(evidence.blob(id)?).map_err(|e| format!("blob {id}: {e}"))
}

fn written(state: &RunState, event: &Event, evidence: &dyn Evidence) -> Check {
    let (Event::ModuleProposed { index, answer, .. } | Event::KernelWritten { index, answer, .. }) =
        event
    else {
        return Ok(());
    };
    let wanted = wanted(state, event, evidence)?;
    same("the index", index, &wanted.index)?;
    same("the seed", &answer.seed, &wanted.seed)?;
    same("the policy", &answer.policy, &state.version(wanted.role))?;
    let sample: Sample = serde_json::from_slice(&evidence.blob(answer.sample)?)
        .map_err(|e| format!("sample {}: {e}", answer.sample))?;
    same("the prompt", &sample.prompt, &wanted.prompt)?;
    answer_agrees(state, answer, &sample, wanted.role)
}

fn answer_agrees(state: &RunState, answer: &Answer, sample: &Sample, role: Role) -> Check {
    let config = state.config.as_ref().ok_or("no config")?;
    let policy = config.policy(role);
    same("the sampling", &sample.sampling, &policy.sampling())?;
    same("the token count", &(answer.tokens as usize), &sample.tokens.len())?;
    same("the number of log-probs", &sample.logprobs.len(), &sample.tokens.len())?;
    let longest = policy.max_output_tokens.get();
    if answer.tokens > longest || (answer.finish == Finish::Length && answer.tokens < longest) {
        return Err(format!("{} tokens and {:?} do not fit", answer.tokens, answer.finish));
    }
    let code = config.extractor.code(&sample.text, role).map(|code| Digest::of(code.as_bytes()));
    same("the code", &answer.source, &code)
}

fn validated(state: &RunState, event: &Event, evidence: &dyn Evidence) -> Check {
    let Event::ModuleValidated { module, report, validity } = event else { return Ok(()) };
    let orders = work::modules_to_validate(state);
    let order = orders.iter().find(|o| o.module == *module).ok_or("no verdict is wanted")?;
    let config = state.config.as_ref().ok_or("no config")?;
    let source = match order.source {
        None => SourceReport::NoCode,
        Some(id) => evidence.module_source(&text(evidence, id)?, &table(state, evidence)?.apis()),
    };
    same("what the source shows", &report.source, &source)?;
    let report = ModuleReport { source, run: report.run.clone() };
    same("the verdict", validity, &validity::validity(&report, &order.asked, &config.validator))
}

fn compiled(state: &RunState, event: &Event, evidence: &dyn Evidence) -> Check {
    let Event::KernelCompiled { kernel, outcome } = event else { return Ok(()) };
    let orders = work::kernels_to_build(state);
    let order = orders.iter().find(|o| o.kernel == *kernel).ok_or("no build is wanted")?;
    let right = match order.source {
        None => Err(Failure::new(FailureKind::NoCode, "the answer holds no code block")),
        Some(id) => evidence.kernel_source(&text(evidence, id)?),
    };
    match (outcome, right) {
        (CompileOutcome::Built { backend, .. }, Ok(right)) => same("the backend", backend, &right),
        (CompileOutcome::Rejected(found), Err(right)) => same("the refusal", found, &right),
        (CompileOutcome::Rejected(found), Ok(_)) if found.kind == FailureKind::CompileError => {
            Ok(())
        }
        (CompileOutcome::Built { .. }, Err(right)) => {
            Err(format!("it was built, the static rules refuse it: {}", right.detail))
        }
        (CompileOutcome::Rejected(found), Ok(_)) => {
            Err(format!("it was refused as {:?}, the static rules accept it", found.kind))
        }
    }
}

fn measured(state: &RunState, event: &Event) -> Check {
    let Event::KernelMeasured { kernel, .. } = event else { return Ok(()) };
    let orders = work::kernels_to_measure(state);
    orders.iter().find(|o| o.kernel == *kernel).map(drop).ok_or("no measurement is wanted".into())
}

fn scored(state: &RunState, event: &Event) -> Check {
    let Event::GroupScored { group, step, scores } = event else { return Ok(()) };
    let complete = score::groups_to_score(state);
    let right = complete.iter().find(|c| c.group == *group).ok_or("the group is not complete")?;
    same("the step", step, &right.step)?;
    same("the scores", scores, &right.scores)
}

fn stepped(state: &RunState, event: &Event) -> Check {
    match event {
        Event::StepStarted { step, before, groups } => {
            let right = score::step_to_start(state).ok_or("the batch is not complete")?;
            same("the step", &(*step, *before), &(right.step, right.before))?;
            same("the batch", groups, &right.groups)
        }
        Event::StepTaken { step, before, after, update } => {
            let right = score::step_to_take(state).ok_or("no step was started")?;
            same("the step", &(*step, *before), &(right.step, right.before))?;
            let Some(update) = update else { return Ok(()) };
            let saved =
                state.checkpoints.get(after).ok_or("its checkpoint was not saved before")?;
            let file = saved.files.iter().find(|(name, _)| name == "model.safetensors");
            same("the weights", &Some(update.weights), &file.map(|(_, id)| *id))
        }
        _ => Ok(()),
    }
}
