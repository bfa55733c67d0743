//! One trial of a reference, and whether it can be held against a candidate.

use std::time::Duration;

use events::outcome::TaskFault;
use serde_json::{Value, json};

use crate::error::Error;
use crate::judge::Judge;
use crate::reference::{AtFault, ReferenceTrial, derive, heard};
use crate::session::{Answer, Reply, Session};
use crate::stats::{compare, nonfinite};
use crate::tensors::{Blob, DType};

/// Changes of the inputs by trial; all but the first two also perturb the parameters. Trial 0 is
/// the task as it is given. Later trials take up the list again with other seeds.
const SCALES: [&str; 7] = ["plain", "plain", "x30", "+2.5", "x0.05", "x1e5", "x8"];
/// A scaled trial is used only where single precision still carries this much of the result:
/// beyond, honest kernels that round differently would fail.
const WELL_CONDITIONED: f64 = 5e-6;
/// Repeated runs on a GPU may differ in the last bits where atomics add floats.
const REPEATABLE_ON_GPU: f64 = 1e-5;

impl Judge {
    /// Puts a question to a module's worker that needs the device together with others.
    pub(crate) fn ask_module(
        &self,
        session: &mut Session,
        question: Value,
    ) -> Result<Answer, Error> {
        let limit = self.config.trial_timeout;
        self.ask_sharing(session, question, &[], (limit, limit))
    }

    /// One trial. A changed trial on which the reference raises, overflows or is ill conditioned
    /// falls back to a milder one: noise only, then fresh inputs only.
    pub(crate) fn reference_trial(
        &self,
        session: &mut Session,
        seed: u64,
        index: usize,
    ) -> Result<Result<ReferenceTrial, AtFault>, Error> {
        let place = if index < SCALES.len() { index } else { 1 + (index - 1) % (SCALES.len() - 1) };
        let mut attempts = vec![(SCALES[place], index > 0), ("plain", index > 0), ("plain", false)];
        attempts.dedup();
        let last = attempts.len() - 1;
        let mut result = Err(AtFault(TaskFault::ReferenceFailed, String::new()));
        for (attempt, (scale, perturb)) in attempts.into_iter().enumerate() {
            let question = json!({
                "do": "trial", "seed": derive(seed, "trial", index), "scale": scale,
                "perturb": perturb, "twice": true, "wide": attempt < last,
            });
            let answer = self.ask_module(session, question)?;
            let ended = !matches!(answer, Answer::Said(_));
            result = heard(answer).and_then(|reply| {
                let mut trial = self.accept_trial(reply, attempt < last)?;
                trial.seed = derive(seed, "trial", index);
                trial.varied = match (index, perturb) {
                    (0, _) => "given".to_owned(),
                    (_, true) => format!("{scale}+noise"),
                    (_, false) => scale.to_owned(),
                };
                Ok(trial)
            });
            let random = matches!(result, Err(AtFault(TaskFault::Nondeterministic, _)));
            if result.is_ok() || random || ended {
                break;
            }
        }
        Ok(result)
    }

    fn accept_trial(&self, mut reply: Reply, strict: bool) -> Result<ReferenceTrial, AtFault> {
        let degenerate = |why: &str| AtFault(TaskFault::Degenerate, why.to_owned());
        if reply.value["tensors"] != Value::Bool(true) {
            return Err(degenerate("the outputs are not tensors"));
        }
        let products = multiplies(&reply.value["ops"]);
        let wall = Duration::from_nanos(reply.value["ns"].as_u64().unwrap_or(0));
        let after = reply.take("after");
        let mut take = |name: &str| reply.take(name).unwrap_or_default();
        let (outputs, second) = (take("first"), take("second"));
        let trial = ReferenceTrial {
            seed: 0,
            varied: String::new(),
            products,
            wall,
            inputs: take("inputs"),
            state: take("state"),
            after,
            outputs,
        };
        let first = Blob::read(&trial.outputs)
            .filter(|b| (0..b.entries.len()).all(|i| b.is_dense(i)))
            .ok_or_else(|| degenerate("the outputs have a dtype that cannot be compared"))?;
        if reply.value["repeats"] != true {
            let again =
                Blob::read(&second).ok_or_else(|| degenerate("the second run has no outputs"))?;
            if !self.repeats(&first, &again) {
                let text = "two runs on the same inputs differ".to_owned();
                return Err(AtFault(TaskFault::Nondeterministic, text));
            }
        }
        let width = |i: usize| DType::named(&first.entries[i].dtype).map_or(1, DType::width);
        let outputs = 0..first.entries.len();
        let elements: u64 = outputs.clone().map(|i| (first.raw(i).len() / width(i)) as u64).sum();
        let nonfinite: u64 = outputs.map(|i| nonfinite(&first, i)).sum();
        if elements == nonfinite {
            return Err(degenerate("no output is finite"));
        }
        if strict && (nonfinite > 0 || !well_conditioned(&reply.value["wide"])) {
            return Err(degenerate("not usable for a changed trial"));
        }
        Ok(trial)
    }

    /// Whether two runs gave the same, but for what atomics on a GPU may change.
    pub(crate) fn repeats(&self, first: &Blob<'_>, again: &Blob<'_>) -> bool {
        if first.entries != again.entries {
            return false;
        }
        (0..first.entries.len()).all(|i| {
            if first.raw(i) == again.raw(i) {
                return true;
            }
            let stats = compare(first, again, i);
            let allowed = if self.device.kind() == "cpu" {
                0.0
            } else {
                REPEATABLE_ON_GPU * stats.max_reference
            };
            let worst = stats.hull.iter().map(|p| p.1).fold(0.0, f64::max);
            stats.exact_mismatches + stats.nonfinite_mismatches == 0 && worst <= allowed
        })
    }
}

/// Whether operators that torch dispatched multiply matrices or convolve.
fn multiplies(ops: &Value) -> bool {
    let names = ops.as_array().into_iter().flatten().filter_map(Value::as_str);
    names.filter_map(|name| name.strip_prefix("aten::")).any(|name| {
        ["mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear"].contains(&name)
            || ["conv", "attention", "mkldnn_linear", "lstm", "gru", "bilinear"]
                .iter()
                .any(|part| name.contains(part))
    })
}

/// Whether the single-precision outputs agree with those of a run in double precision: of each output
/// that can be compared its largest distance and the largest magnitude. True where there is no such run.
fn well_conditioned(wide: &Value) -> bool {
    let compared = wide.as_array().into_iter().flatten().filter_map(Value::as_array);
    compared.into_iter().all(|output| match output.as_slice() {
        [distance, scale] => match (distance.as_f64(), scale.as_f64()) {
            (Some(distance), Some(scale)) => distance <= WELL_CONDITIONED * scale,
            _ => false,
        },
        _ => false,
    })
}
