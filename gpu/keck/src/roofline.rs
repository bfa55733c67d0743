//! No kernel is faster than the memory of its device.

use events::outcome::Times;
use serde_json::json;

use crate::answer::{Stop, read};
use crate::error::Error;
use crate::reference::Reference;
use crate::tensors::Blob;
use crate::timing::{Bench, median, suspicious};

/// What of the output may still be in a cache when the call ends.
const CACHE_BYTES: u64 = 64 << 20;
/// Claims below this many bytes per ns are within what any device does.
const HARMLESS: f64 = 1.0;
/// What a clock's grain and a better access pattern than the judge's own may add.
const MARGIN: f64 = 1.1;

/// Bytes that a task moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Inputs in floating point, of which a part may not matter.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
}

/// Bytes of the inputs and outputs of the task as it is timed.
pub(crate) fn traffic(reference: &Reference) -> Result<Traffic, Error> {
    let Some(trial) = reference.timed.first() else { return Ok(Traffic { inputs: 0, outputs: 0 }) };
    let bytes = |blob: &Blob<'_>, floats: bool| -> u64 {
        let counted = |i: &usize| !floats || blob.entries[*i].dtype.contains("float");
        (0..blob.entries.len()).filter(counted).map(|i| blob.raw(i).len() as u64).sum()
    };
    let (inputs, outputs) = (read(&trial.inputs)?, read(&trial.outputs)?);
    Ok(Traffic { inputs: bytes(&inputs, true), outputs: bytes(&outputs, false) })
}

impl Bench<'_> {
    /// Refuses a time in which the device could not have moved what the answer depends on. The
    /// reference shows which part of its inputs that is, when it matters.
    pub(crate) fn roofline(&mut self, times: &Times) -> Result<(), Stop> {
        let sides = times.graph.as_ref().unwrap_or(&times.eager);
        let ns = median(&sides.candidate_ns) as f64;
        let traffic = traffic(self.reference)?;
        let written = traffic.outputs.saturating_sub(CACHE_BYTES) as f64;
        let at_most = traffic.inputs as f64 + written;
        if at_most <= HARMLESS * ns {
            return Ok(());
        }
        let reached = self.judge.rates()?.bytes * MARGIN;
        if at_most <= reached * ns {
            return Ok(());
        }
        let question = json!({ "do": "time", "time": "needs", "seed": self.seed });
        let share = self.baseline(question, &[])?.value["share"].as_f64().unwrap_or(0.0);
        let needed = traffic.inputs as f64 * share + written;
        if needed <= reached * ns {
            return Ok(());
        }
        Err(suspicious(&format!(
            "roofline: {needed:.0} bytes in {ns} ns are claimed, the device moves {reached:.0} a ns"
        )))
    }
}
