//! Records of schema 1. Only `KernelMeasured` had another form; its payload is frozen here.

use events::event::{Actor, Event, Recorded};
use events::ids::{Digest, KernelId, Seq};
use events::outcome::{
    Execution, Failure, Measurement, OutputStats, Sides, TaskFault, Times, Timing, Trial, Word,
};
use serde::Deserialize;

use super::slice::{self, Bad};

pub(super) const SCHEMA: u16 = 1;
/// Place of `KernelMeasured` among the events.
const KERNEL_MEASURED: u32 = 9;
/// Calls in a turn of the judge that wrote this schema.
const CALLS: u32 = 3;

/// The envelope and the number of the event's variant.
#[derive(Deserialize)]
struct Head {
    seq: Seq,
    at_unix_ms: u64,
    cause: Option<Seq>,
    actor: Actor,
    schema: u16,
    previous: Digest,
    variant: u32,
}

#[derive(Deserialize)]
struct KernelMeasured {
    kernel: KernelId,
    execution: OldExecution,
    layers: Vec<Word>,
    device: Word,
    wall_ms: u64,
}

#[derive(Deserialize)]
enum OldExecution {
    Failed(Failure),
    TaskAtFault(TaskFault, String),
    NoDevice,
    Ran { trials: Vec<OldTrial>, launches: u32, timing: OldTiming },
}

#[derive(Deserialize)]
struct OldTrial {
    seed: u64,
    outputs: Vec<OutputStats>,
}

#[derive(Deserialize)]
enum OldTiming {
    NotTaken,
    Taken { candidate_ns: Vec<u64>, reference_ns: Vec<u64> },
}

/// The record in `body` if it is a `KernelMeasured`, with the number of bytes used; none if it is any
/// other event, whose form is the present one.
pub(super) fn measured(body: &[u8]) -> Result<Option<(Recorded, usize)>, Bad> {
    let (head, used): (Head, usize) = slice::decode(body)?;
    if head.variant != KERNEL_MEASURED {
        return Ok(None);
    }
    let rest = body.get(used..).unwrap_or_default();
    let (old, more): (KernelMeasured, usize) = slice::decode(rest)?;
    let kernel = old.kernel;
    let event = Event::KernelMeasured { kernel, measurement: old.measurement() };
    let Head { seq, at_unix_ms, cause, actor, schema, previous, .. } = head;
    Ok(Some((Recorded { seq, at_unix_ms, cause, actor, schema, previous, event }, used + more)))
}

impl KernelMeasured {
    fn measurement(self) -> Measurement {
        let execution = match self.execution {
            OldExecution::Failed(failure) => Execution::Failed(failure),
            OldExecution::TaskAtFault(fault, text) => Execution::TaskAtFault(fault, text),
            OldExecution::NoDevice => Execution::NoDevice,
            OldExecution::Ran { trials, launches, timing } => {
                let trials = trials.into_iter().enumerate();
                let trials = trials.map(|(index, old)| Trial {
                    seed: old.seed,
                    varied: if index == 0 { "given" } else { "unknown" }.into(),
                    outputs: old.outputs,
                });
                let timing = match timing {
                    OldTiming::NotTaken => Timing::NotTaken,
                    OldTiming::Taken { candidate_ns, reference_ns } => {
                        let eager = Sides { candidate_ns, reference_ns };
                        Timing::Taken(Box::new(Times { calls: CALLS, eager, graph: None }))
                    }
                };
                Execution::Ran { trials: trials.collect(), launches, timing }
            }
        };
        Measurement {
            execution,
            layers: self.layers,
            device: self.device,
            products: false,
            headers: None,
            wall_ms: self.wall_ms,
        }
    }
}
