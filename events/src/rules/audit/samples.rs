//! What models wrote and what was found out about it.

use super::super::{control, intent, prompt, validity};
use super::known::Known;
use super::{Check, Evidence, same};
use crate::event::{Answer, CompileOutcome, Event, Finish};
use crate::ids::{BlobId, Digest, Role};
use crate::outcome::{Failure, FailureKind, ModuleReport, SourceReport};
use crate::sample::Sample;
use crate::state::RunState;

pub(super) fn sampled(
    known: &mut Known,
    state: &RunState,
    event: &Event,
    evidence: &dyn Evidence,
) -> Check {
    let Event::ApisSampled { set, step, index, seed, apis } = event else { return Ok(()) };
    let order = Known::set(state, *set, *index).ok_or("this API set is not wanted")?;
    same("the step", step, &order.step)?;
    same("the seed", seed, &order.seed)?;
    same("the set", apis, &known.draw(state, evidence, &order)?)
}

/// API sets that were asked for, and whether they may be.
pub(super) fn proposed(
    known: &mut Known,
    state: &RunState,
    sets: &[Vec<String>],
    evidence: &dyn Evidence,
) -> Check {
    intent::check_sets(state, sets, known.apis(state, evidence)?)
}

/// What was wanted of an answer: place, seed, prompt and who writes it.
struct Wanted {
    index: u32,
    seed: u64,
    prompt: String,
    role: Role,
}

fn wanted(
    known: &mut Known,
    state: &RunState,
    event: &Event,
    evidence: &dyn Evidence,
) -> Result<Wanted, String> {
    let config = state.config.as_ref().ok_or("no config")?;
    match event {
        Event::ModuleProposed { module, set, index, .. } => {
            let slot = known.module(state, *set, (*module, *index));
            let slot = slot.ok_or("this module is not wanted here")?;
            let prompt = prompt::for_apis(&config.proposer.policy.prompt, &slot.from.apis);
            Ok(Wanted { index: slot.index, seed: slot.seed, prompt, role: Role::Proposer })
        }
        Event::KernelWritten { kernel, module, index, .. } => {
            let slot = known.kernel(state, *module, (*kernel, *index));
            let slot = slot.ok_or("this kernel is not wanted here")?;
            let source = text(evidence, slot.from.source)?;
            let prompt = prompt::for_module(&config.coder.policy.prompt, &source);
            Ok(Wanted { index: slot.index, seed: slot.seed, prompt, role: Role::Coder })
        }
        _ => Err("not an answer".to_owned()),
    }
}

pub(in crate::rules) fn text(evidence: &dyn Evidence, id: BlobId) -> Result<String, String> {
    String::from_utf8(evidence.blob(id)?).map_err(|e| format!("blob {id}: {e}"))
}

pub(super) fn written(
    known: &mut Known,
    state: &RunState,
    event: &Event,
    evidence: &dyn Evidence,
) -> Check {
    let (Event::ModuleProposed { index, answer, .. } | Event::KernelWritten { index, answer, .. }) =
        event
    else {
        return Ok(());
    };
    let wanted = wanted(known, state, event, evidence)?;
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

pub(super) fn validated(
    known: &mut Known,
    state: &RunState,
    event: &Event,
    evidence: &dyn Evidence,
) -> Check {
    let Event::ModuleValidated { module, report, validity } = event else { return Ok(()) };
    let (entry, asked) = Known::unvalidated(state, *module).ok_or("no verdict is wanted")?;
    let config = state.config.as_ref().ok_or("no config")?;
    let source = match entry.source {
        None => SourceReport::NoCode,
        Some(id) => evidence.module_source(&text(evidence, id)?, known.apis(state, evidence)?),
    };
    same("what the source shows", &report.source, &source)?;
    let report = ModuleReport { source, run: report.run.clone() };
    same("the verdict", validity, &validity::validity(&report, asked, &config.validator))
}

pub(super) fn compiled(
    known: &mut Known,
    state: &RunState,
    event: &Event,
    evidence: &dyn Evidence,
) -> Check {
    let Event::KernelCompiled { kernel, outcome } = event else { return Ok(()) };
    let entry = known.written(state, *kernel).filter(|entry| entry.compiled.is_none());
    let right = match entry.ok_or("no build is wanted")?.source {
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

pub(super) fn measured(known: &mut Known, state: &RunState, event: &Event) -> Check {
    let Event::KernelMeasured { kernel, .. } = event else { return Ok(()) };
    let built = control::sampling_step(state).and_then(|_| known.written(state, *kernel));
    let wanted = built.is_some_and(|entry| {
        let built = matches!(entry.compiled, Some((_, CompileOutcome::Built { .. })));
        built && entry.measured.is_none() && entry.source.is_some()
    });
    if wanted { Ok(()) } else { Err("no measurement is wanted".into()) }
}
