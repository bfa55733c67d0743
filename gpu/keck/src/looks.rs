//! Results of timed calls: which are looked at is not known before the call, and what is looked at is
//! copied before the next one.

use events::outcome::Trial;
use serde_json::json;

use crate::answer::{Stop, compare_outputs};
use crate::reference::derive;
use crate::timing::{Bench, CALLS, suspicious};

/// Results of calls that a worker keeps on the device until they are asked for, in bytes.
const LOOKED_BYTES: usize = 512 << 20;

/// A result of a call that the candidate's worker keeps: the kind of call, its number among those
/// that are kept, and its inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub kind: &'static str,
    number: usize,
    inputs: usize,
}

impl Bench<'_> {
    /// Has a copy of the result of one call of the last turn kept; which one, nobody knows before. Of
    /// large results those of the first turn of each kind.
    pub(crate) fn look(&mut self, kind: &'static str, turn: usize) -> Result<(), Stop> {
        let size = self.reference.timed.first().map_or(0, |trial| trial.outputs.len());
        if turn > 0 && self.kept * size > LOOKED_BYTES {
            return Ok(());
        }
        let index = derive(self.seed, kind, turn) as usize % CALLS;
        self.look_at(kind, index)
    }

    /// Has a copy of the result of this call of the last turn kept.
    pub(crate) fn look_at(&mut self, kind: &'static str, index: usize) -> Result<(), Stop> {
        let reply = self.candidate(json!({ "do": "time", "time": "look", "index": index }), &[])?;
        let inputs = reply.value["inputs"].as_u64().and_then(|i| usize::try_from(i).ok());
        let inputs = inputs.filter(|i| *i < self.reference.timed.len());
        let inputs = inputs.ok_or_else(|| suspicious("a result of inputs that do not exist"))?;
        self.looks.push(Look { kind, number: self.kept, inputs });
        self.kept += 1;
        Ok(())
    }

    /// Compares a result that was kept.
    pub(crate) fn show(&mut self, look: Look) -> Result<Trial, Stop> {
        let Look { kind, number, inputs } = look;
        let question = json!({ "do": "time", "time": "show", "index": number });
        let outputs = self.candidate(question, &[])?.take("outputs").unwrap_or_default();
        let trial = &self.reference.timed[inputs];
        let outputs = compare_outputs(trial, &outputs)?;
        Ok(Trial { seed: trial.seed, varied: format!("timed-{kind}").into(), outputs })
    }
}
