//! What models wrote and what was found out about it.

use std::borrow::Cow;

use super::super::{control, intent, validity};
use super::known::{Asked, Known};
use super::{Agreement, Check, Decided, Evidence, same};
use crate::config::RunConfig;
use crate::event::{Answer, CompileOutcome, Event, Finish};
use crate::ids::{Digest, Role};
use crate::outcome::{Failure, FailureKind, SourceReport};
use crate::sample::{Glance, Inside};
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
struct Wanted<'k> {
    index: u32,
    seed: u64,
    asked: &'k Asked,
    role: Role,
}

fn wanted<'k>(
    known: &'k mut Known,
    state: &RunState,
    event: &Event,
    evidence: &dyn Evidence,
) -> Result<Wanted<'k>, String> {
    let config = state.config.as_ref().ok_or("no config")?;
    match event {
        Event::ModuleProposed { module, set, index, .. } => {
            let slot = known.module(state, *set, (*module, *index));
            let slot = slot.ok_or("this module is not wanted here")?;
            let asked = known.asked_for_set(config, slot.from)?;
            Ok(Wanted { index: slot.index, seed: slot.seed, asked, role: Role::Proposer })
        }
        Event::KernelWritten { kernel, module, index, .. } => {
            let slot = known.kernel(state, *module, (*kernel, *index));
            let slot = slot.ok_or("this kernel is not wanted here")?;
            let asked = known.asked_for_module(config, *module, slot.from, evidence)?;
            Ok(Wanted { index: slot.index, seed: slot.seed, asked, role: Role::Coder })
        }
        _ => Err("not an answer".to_owned()),
    }
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
    let bytes = evidence.blob(answer.sample)?;
    let config = state.config.as_ref().ok_or("no config")?;
    if let Some(inside) = wanted.asked.frame.inside(&bytes)
        && let Some(Inside { text, tokens, logprobs, .. }) = Inside::read(&inside)
    {
        let drawn = Drawn { text, tokens: tokens.0, logprobs: logprobs.0 };
        return answer_agrees(config, answer, &drawn, wanted.role, evidence);
    }
    let sample: Glance<'_> =
        serde_json::from_slice(&bytes).map_err(|e| format!("sample {}: {e}", answer.sample))?;
    same("the prompt", &&*sample.prompt, &&*wanted.asked.prompt)?;
    same("the sampling", &sample.sampling, &config.policy(wanted.role).sampling())?;
    let Glance { text, tokens, logprobs, .. } = sample;
    let drawn = Drawn { text, tokens: tokens.0, logprobs: logprobs.0 };
    answer_agrees(config, answer, &drawn, wanted.role, evidence)
}

/// What was drawn, as far as it is compared.
struct Drawn<'a> {
    text: Cow<'a, str>,
    tokens: usize,
    logprobs: usize,
}

fn answer_agrees(
    config: &RunConfig,
    answer: &Answer,
    drawn: &Drawn<'_>,
    role: Role,
    evidence: &dyn Evidence,
) -> Check {
    same("the token count", &(answer.tokens as usize), &drawn.tokens)?;
    same("the number of log-probs", &drawn.logprobs, &drawn.tokens)?;
    let longest = config.policy(role).max_output_tokens.get();
    if answer.tokens > longest || (answer.finish == Finish::Length && answer.tokens < longest) {
        return Err(format!("{} tokens and {:?} do not fit", answer.tokens, answer.finish));
    }
    let Some(code) = config.extractor.find(&drawn.text, role) else {
        return same("the code", &answer.source, &None);
    };
    let id = Digest::of(code.as_bytes());
    same("the code", &answer.source, &Some(id))?;
    evidence.holds(id, code.as_bytes())
}

/// What to make of static rules that do not say now what is recorded: a finding, unless others decided.
fn by_rules(state: &RunState, evidence: &dyn Evidence, differs: String) -> Decided {
    match state.purity_policy {
        Some(version) if version == evidence.purity_policy() => Err(differs),
        Some(_) | None => Ok(Agreement::OtherRules),
    }
}

pub(super) fn validated(
    known: &mut Known,
    state: &RunState,
    event: &Event,
    evidence: &dyn Evidence,
) -> Decided {
    let Event::ModuleValidated { module, report, validity } = event else {
        return Err("not a validation".to_owned());
    };
    let (entry, asked) = Known::unvalidated(state, *module).ok_or("no verdict is wanted")?;
    let config = state.config.as_ref().ok_or("no config")?;
    same("the verdict", validity, &validity::validity(report, asked, &config.validator))?;
    let source = match entry.source {
        None => SourceReport::NoCode,
        Some(id) => evidence.module_source(id, known.apis(state, evidence)?)?,
    };
    match same("what the source shows", &report.source, &source) {
        Ok(()) => Ok(Agreement::Agrees),
        // Whatever the rules are, an answer without code has none, and with code it has some.
        Err(differs) if (report.source == SourceReport::NoCode) != entry.source.is_none() => {
            Err(differs)
        }
        Err(differs) => by_rules(state, evidence, differs),
    }
}

pub(super) fn compiled(
    known: &mut Known,
    state: &RunState,
    event: &Event,
    evidence: &dyn Evidence,
) -> Decided {
    let Event::KernelCompiled { kernel, outcome } = event else {
        return Err("not a build".to_owned());
    };
    let entry = known.written(state, *kernel).filter(|entry| entry.compiled.is_none());
    let Some(source) = entry.ok_or("no build is wanted")?.source else {
        let right = Failure::new(FailureKind::NoCode, "the answer holds no code block");
        return same("the refusal", outcome, &CompileOutcome::Rejected(right))
            .map(|()| Agreement::Agrees);
    };
    let agrees = match (outcome, evidence.kernel_source(source)?) {
        (CompileOutcome::Rejected(found), _) if found.kind == FailureKind::NoCode => {
            return Err("it was refused as NoCode, the answer holds code".to_owned());
        }
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
    };
    match agrees {
        Ok(()) => Ok(Agreement::Agrees),
        Err(differs) => by_rules(state, evidence, differs),
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
