//! Device times of a candidate and its reference, in turns.

use events::outcome::Timing;
use serde_json::{Value, json};

use crate::error::Error;
use crate::judge::Judge;
use crate::measure::{MeasureJob, Stop, heard};
use crate::reference::{Reference, derive};
use crate::session::{Answer, Session};

/// Turns that each side gets.
const ROUNDS: usize = 10;
/// Timed calls in a turn.
const REPEATS: usize = 3;
/// Calls before the first turn.
const WARMUPS: usize = 2;

impl Judge {
    /// Times both sides on the inputs of the first trial, interleaved so that both see the same
    /// clocks. Not taken on a CPU.
    pub(crate) fn timing(
        &self,
        job: &MeasureJob,
        candidate: &mut Session,
        reference: &Reference,
    ) -> Result<Timing, Stop> {
        if !job.timing || self.device.kind() == "cpu" {
            return Ok(Timing::NotTaken);
        }
        let seed = derive(job.seed, "trial", 0);
        let mut baseline = self.worker("module")?;
        let load = json!({ "do": "load", "seed": derive(job.seed, "init", 0) });
        let source = [("source", job.module_source.as_bytes())];
        trusted(self.ask(&mut baseline, load, &source, self.config.import_timeout)?)?;
        let first = reference.trials.first().map(|t| t.inputs.as_slice()).unwrap_or_default();
        let (mut candidate_ns, mut reference_ns) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let warmups = if round == 0 { WARMUPS } else { 0 };
            let question = json!({
                "do": "time", "warmups": warmups, "repeats": REPEATS, "seed": seed,
            });
            let blobs: &[(&str, &[u8])] = if round == 0 { &[("inputs", first)] } else { &[] };
            let timeout = self.config.trial_timeout;
            let reply = heard(self.ask(candidate, question.clone(), blobs, timeout)?)?;
            candidate_ns.extend(times(&reply.value));
            let reply = trusted(self.ask(&mut baseline, question, &[], timeout)?)?;
            reference_ns.extend(times(&reply));
        }
        Ok(Timing::Taken { candidate_ns, reference_ns })
    }
}

fn times(reply: &Value) -> Vec<u64> {
    let list = reply["ns"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_u64).collect()
}

/// The reference ran a moment ago; if it does not now, the machine is at fault.
fn trusted(answer: Answer) -> Result<Value, Error> {
    match answer {
        Answer::Said(reply) if reply.value["failed"].is_null() => Ok(reply.value),
        Answer::Said(reply) => {
            Err(Error::WorkerDied(format!("timing the reference: {}", reply.value["message"])))
        }
        _ => Err(Error::WorkerDied("timing the reference: no answer".to_owned())),
    }
}
