//! What a candidate answers, held against what its reference did.

use events::outcome::{Failure, FailureKind, OutputStats, Trial};
use serde_json::Value;

use crate::error::Error;
use crate::fault;
use crate::reference::ReferenceTrial;
use crate::session::{Answer, Reply};
use crate::stats::compare;
use crate::tensors::Blob;

/// What ends a candidate's run early.
pub(crate) enum Stop {
    /// Its own fault.
    Candidate(Failure),
    /// The world's.
    World(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::World(error)
    }
}

/// A candidate's answer, or its failure.
pub(crate) fn heard(answer: Answer) -> Result<Reply, Stop> {
    let stop = |kind, detail: &str| Stop::Candidate(Failure::new(kind, detail));
    match answer {
        Answer::TimedOut => Err(stop(FailureKind::Timeout, "the deadline passed")),
        Answer::Gone(why) => Err(stop(FailureKind::SandboxViolation, why)),
        Answer::Said(reply) => match fault::failure(&reply.value) {
            Some(failure) => Err(Stop::Candidate(failure)),
            None => Ok(reply),
        },
    }
}

/// Compares one answer.
pub(crate) fn judge_trial(
    trial: &ReferenceTrial,
    claims: &Value,
    outputs: &[u8],
    after: Option<&[u8]>,
) -> Result<Trial, Stop> {
    let fail = |kind, detail: String| Stop::Candidate(Failure::new(kind, detail));
    let odd = claims["kinds"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(kind) = odd.into_iter().find(|k| *k != "plain") {
        return Err(fail(FailureKind::WrongDtype, fault::scrub(kind)));
    }
    let mut stats = compare_outputs(trial, outputs)?;
    stats.extend(compare_inputs(trial, after)?);
    Ok(Trial { seed: trial.seed, varied: trial.varied.as_str().into(), outputs: stats })
}

/// Compares outputs. Metadata must be equal before any value is looked at.
pub(crate) fn compare_outputs(
    trial: &ReferenceTrial,
    outputs: &[u8],
) -> Result<Vec<OutputStats>, Stop> {
    let fail = |kind, detail: String| Stop::Candidate(Failure::new(kind, detail));
    let expected = read(&trial.outputs)?;
    let lies = || fail(FailureKind::SandboxViolation, "its outputs are not well formed".to_owned());
    let found = Blob::read(outputs).ok_or_else(lies)?;
    let count = expected.entries.len();
    if found.entries.len() != count {
        let text = format!("{} outputs instead of {count}", found.entries.len());
        return Err(fail(FailureKind::WrongShape, text));
    }
    for (index, (want, have)) in expected.entries.iter().zip(&found.entries).enumerate() {
        if want.shape != have.shape {
            let text = format!("output {index}: {:?} instead of {:?}", have.shape, want.shape);
            return Err(fail(FailureKind::WrongShape, text));
        }
        if want.dtype != have.dtype || want.device != have.device {
            let text = format!(
                "output {index}: {} on {} instead of {} on {}",
                have.dtype, have.device, want.dtype, want.device
            );
            return Err(fail(FailureKind::WrongDtype, text));
        }
        if !found.is_dense(index) {
            return Err(lies());
        }
    }
    Ok((0..count).map(|i| compare(&expected, &found, i)).collect())
}

/// Inputs that the reference leaves alone must have the same bytes; those it writes to are compared
/// like outputs. Without `after` the candidate left all alone.
fn compare_inputs(trial: &ReferenceTrial, after: Option<&[u8]>) -> Result<Vec<OutputStats>, Stop> {
    let fail = |text: String| Stop::Candidate(Failure::new(FailureKind::InputsChanged, text));
    if after.is_none() && trial.after.is_none() {
        return Ok(Vec::new());
    }
    let before = read(&trial.inputs)?;
    let expected = read(trial.after.as_deref().unwrap_or(&trial.inputs))?;
    let same = |found: &Blob<'_>| {
        let pairs = found.entries.iter().zip(&expected.entries);
        found.entries.len() == expected.entries.len() && pairs.into_iter().all(|(a, b)| a.like(b))
    };
    let found = Blob::read(after.unwrap_or(&trial.inputs)).filter(same);
    let Some(found) = found else {
        return Err(fail("an input has another shape or dtype after the call".to_owned()));
    };
    let mut stats = Vec::new();
    for index in 0..expected.entries.len() {
        if before.raw(index) != expected.raw(index) {
            stats.push(compare(&expected, &found, index));
        } else if expected.raw(index) != found.raw(index) {
            return Err(fail(format!("input tensor {index} was written to")));
        }
    }
    Ok(stats)
}

pub(crate) fn read(blob: &[u8]) -> Result<Blob<'_>, Error> {
    Blob::read(blob).ok_or_else(|| Error::Bug("a recorded blob cannot be read".to_owned()))
}
