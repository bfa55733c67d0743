//! What a profiler sees of a kernel and its reference, against what the device reaches.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::answer::Stop;
use crate::error::Error;
use crate::judge::Judge;
use crate::measure::MeasureJob;
use crate::probe::Rates;
use crate::roofline::traffic;
use crate::timing::{Bench, median};

/// Calls that are profiled; each kernel's time is the median over them.
const CALLS: usize = 5;
/// Most kernels of a side that are listed, the slowest ones.
const LISTED: usize = 40;

/// Evidence about a kernel that was right. A candidate's side is what its own process reports.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// What the device reaches, in bytes and operations per ns.
    pub device: Rates,
    /// Bytes of the inputs and outputs of one call: what must move at least, parameters aside.
    pub bytes: u64,
    /// Operations of the reference's products, convolutions and attention in one call.
    pub flops: u64,
    /// The candidate.
    pub candidate: Side,
    /// The reference.
    pub reference: Side,
}

/// One side.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// All kernels of a call together, in ns of the device.
    pub ns: u64,
    /// Launches in a call.
    pub launches: usize,
    /// `bytes` over the time, as a share of what the device moves.
    pub of_bandwidth: f64,
    /// `flops` over the time, as a share of what the device does in bfloat16, TF32 and float32.
    pub of_flops: [f64; 3],
    /// The kernels, slowest first.
    pub kernels: Vec<KernelSeen>,
}

/// Launches of one kernel in a call.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct KernelSeen {
    /// Its name.
    pub name: String,
    /// Launches in a call.
    #[serde(default)]
    pub launches: usize,
    /// Time of all of them in ns of the device.
    pub ns: u64,
    /// Registers of a thread.
    pub registers: u64,
    /// Shared memory of a block in bytes.
    pub shared_bytes: u64,
    /// Blocks in x, y and z of the first launch.
    pub grid: Vec<u64>,
    /// Threads of a block in x, y and z.
    pub block: Vec<u64>,
}

impl Judge {
    /// Profiles a kernel beside its reference; none where there is no GPU, and none for a kernel
    /// that does not run.
    pub fn evidence(&self, job: &MeasureJob) -> Result<Option<Evidence>, Error> {
        if self.device.kind() == "cpu" {
            return Ok(None);
        }
        let _slot = self.slot();
        let outcome = self.reference(&job.module_source, job.seed, job.trials, true)?;
        let Ok(reference) = outcome.as_ref() else { return Ok(None) };
        let rates = self.rates()?;
        let mut session = self.worker("kernel")?;
        let found = self
            .load_candidate(job, reference, &mut session)
            .and_then(|_| self.beside(job, &mut session, reference, |bench| bench.profile(rates)));
        match found {
            Ok(evidence) => Ok(Some(evidence)),
            Err(Stop::Candidate(_)) => Ok(None),
            Err(Stop::World(error)) => Err(error),
        }
    }
}

impl Bench<'_> {
    fn profile(&mut self, rates: Rates) -> Result<Evidence, Stop> {
        let flops = self.baseline_flops()?;
        let moved = traffic(self.reference)?;
        let bytes = moved.inputs + moved.outputs;
        let question = json!({ "do": "time", "time": "profile", "calls": CALLS });
        let _alone = self.judge.device_alone();
        // Compiles what is still to be compiled.
        let warm = json!({ "do": "time", "time": "round", "calls": 2 });
        self.candidate(warm.clone(), &[])?;
        self.baseline(warm, &[])?;
        let mine = self.candidate(question.clone(), &[])?.value;
        let theirs = self.baseline(question, &[])?.value;
        Ok(Evidence {
            device: rates,
            bytes,
            flops,
            candidate: side(&mine, bytes, flops, rates),
            reference: side(&theirs, bytes, flops, rates),
        })
    }

    fn baseline_flops(&mut self) -> Result<u64, Stop> {
        let reply = self.baseline(json!({ "do": "flops" }), &[])?;
        Ok(reply.value["flops"].as_u64().unwrap_or(0))
    }
}

fn side(reply: &Value, bytes: u64, flops: u64, rates: Rates) -> Side {
    let calls: Vec<Vec<KernelSeen>> =
        serde_json::from_value(reply["calls"].clone()).unwrap_or_default();
    let totals: Vec<u64> = calls.iter().map(|c| c.iter().map(|k| k.ns).sum()).collect();
    let ns = median(&totals);
    let first = calls.first().map(Vec::as_slice).unwrap_or_default();
    let mut kernels = grouped(first);
    for kernel in &mut kernels {
        let times: Vec<u64> = calls
            .iter()
            .map(|c| c.iter().filter(|k| k.name == kernel.name).map(|k| k.ns).sum())
            .collect();
        kernel.ns = median(&times);
    }
    kernels.sort_by_key(|kernel| std::cmp::Reverse(kernel.ns));
    kernels.truncate(LISTED);
    let per_ns = |amount: u64| if ns == 0 { 0.0 } else { amount as f64 / ns as f64 };
    Side {
        ns,
        launches: first.len(),
        of_bandwidth: per_ns(bytes) / rates.bytes,
        of_flops: [rates.bf16, rates.tf32, rates.fp32].map(|rate| per_ns(flops) / rate),
        kernels,
    }
}

/// Launches of the same name together.
fn grouped(launches: &[KernelSeen]) -> Vec<KernelSeen> {
    let mut by_name: BTreeMap<&str, KernelSeen> = BTreeMap::new();
    for launch in launches {
        let kernel = by_name.entry(&launch.name).or_insert_with(|| KernelSeen {
            launches: 0,
            ns: 0,
            ..launch.clone()
        });
        kernel.launches += 1;
        kernel.ns += launch.ns;
    }
    by_name.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_medians_over_calls() {
        let kernel = |name: &str, ns: u64| {
            json!({ "name": name, "ns": ns, "registers": 32, "shared_bytes": 128, "grid": [4, 1, 1],
                    "block": [256, 1, 1] })
        };
        let reply = json!({ "calls": [
            [kernel("a", 100), kernel("b", 50), kernel("a", 100)],
            [kernel("a", 120), kernel("b", 60), kernel("a", 100)],
            [kernel("a", 900), kernel("b", 10), kernel("a", 100)],
        ] });
        let rates = Rates { bytes: 4.0, bf16: 800.0, tf32: 400.0, fp32: 50.0 };
        let found = side(&reply, 560, 28_000, rates);
        assert_eq!((found.ns, found.launches), (280, 3));
        assert_eq!((found.of_bandwidth, found.of_flops), (0.5, [0.125, 0.25, 2.0]));
        let facts: Vec<_> = found.kernels.iter().map(|k| (&*k.name, k.launches, k.ns)).collect();
        assert_eq!(facts, [("a", 2, 220), ("b", 1, 50)]);
        assert_eq!(side(&json!({}), 1, 1, rates).ns, 0);
    }
}
