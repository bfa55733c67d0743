//! What a training needs of memory, before anything is loaded: pure arithmetic over shapes.

use serde::Serialize;
use tch::Kind;

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::footprint::{self, RESERVE};

/// How much of the training state is divided among GPUs, each stage including those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zero {
    /// Nothing: every GPU holds everything.
    None,
    /// Masters and moments.
    One,
    /// Also gradients and the reference.
    Two,
    /// Also weights.
    Three,
}

/// Bytes per parameter of each part of the training state, and how they are divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheme {
    /// 2 beside bfloat16 weights that are half of it (split), 4 for a whole float32.
    pub master: u64,
    /// 8 for two float32, 4 for two bfloat16.
    pub moments: u64,
    /// 4 or 2.
    pub gradients: u64,
    /// 2, or 0 if there is none on the GPUs.
    pub reference: u64,
    /// How it is divided.
    pub zero: Zero,
}

impl Scheme {
    /// What this engine does: split masters, float32 moments and gradients, masters and moments
    /// divided if there are several GPUs.
    pub fn engine(gpus: u64, reference_on_gpu: bool) -> Self {
        let zero = if gpus > 1 { Zero::One } else { Zero::None };
        let reference = if reference_on_gpu { 2 } else { 0 };
        Scheme { master: 2, moments: 8, gradients: 4, reference, zero }
    }

    /// Bytes on each of `gpus` for `n` parameters: weights, masters, moments, gradients, reference.
    pub fn resident(&self, n: u64, gpus: u64) -> [u64; 5] {
        let share = |bytes: u64, from: Zero| {
            let all = bytes * n;
            if self.zero >= from { all.div_ceil(gpus) } else { all }
        };
        [
            share(2, Zero::Three),
            share(self.master, Zero::One),
            share(self.moments, Zero::One),
            share(self.gradients, Zero::Two),
            share(self.reference, Zero::Two),
        ]
    }
}

/// Where a part lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The whole of it on each GPU.
    Gpu,
    /// Divided among the GPUs.
    Sharded,
    /// In the host's memory, sent layer by layer.
    Host,
}

/// One part of what is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// Bytes on each GPU, or in the host's memory.
    pub bytes: u64,
    /// Where.
    pub place: Place,
}

/// The machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// GPUs, all alike.
    pub gpus: u64,
    /// Bytes of each.
    pub memory: u64,
    /// Bytes of the host's memory that may be used.
    pub host: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Gradient steps on packs of so many tokens.
    Update {
        /// Positions of a pack.
        tokens: i64,
    },
    /// Sampling, the optimizer waiting; gradients are given back.
    Rollout,
}

/// The training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// What is done.
    pub phase: Phase,
    /// A frozen reference is scored (a LoRA training has its base for that).
    pub reference: bool,
    /// Rank of an adapter on all matrices, if that is what trains.
    pub lora: Option<i64>,
}

/// What fits, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Every part.
    pub parts: Vec<Part>,
    /// Bytes of a GPU at the widest moment, the reserve for the context and fragments included.
    pub peak: u64,
    /// Bytes of a GPU that nothing takes.
    pub left: u64,
    /// Of an update: layers whose attention is kept for the way back, and those of them whose
    /// gate-up product is kept too. The others keep their input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_layers: Option<[usize; 2]>,
    /// Of a rollout: tokens whose keys and values fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
}

/// Parameters of an adapter of rank `r` on all seven matrices of each layer.
pub fn lora_parameters(c: &ModelConfig, r: i64) -> u64 {
    let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let sides = (c.hidden + q) + 2 * (c.hidden + kv) + (q + c.hidden) + 3 * (c.hidden + c.ffn);
    (sides * r * c.layers) as u64
}

/// Bytes of the keys and values of one token.
pub fn cache_bytes(c: &ModelConfig) -> u64 {
    (c.layers * 2 * c.kv_heads * c.head_dim * 2) as u64
}

/// Plans `job` for a bfloat16 model: the reference on the GPUs if every layer can keep its attention
/// beside it, else in the host's memory, else on the GPUs after all; as much of the layers kept as
/// fits.
///
/// # Errors
/// What does not fit, by how much, and what would.
pub fn plan(c: &ModelConfig, machine: &Machine, job: &Job) -> Result<Plan> {
    if machine.gpus == 0 || matches!(job.phase, Phase::Update { tokens } if tokens < 1) {
        return Err(Error::Request("a plan needs at least one GPU and one token".into()));
    }
    let wants_reference = job.reference && job.lora.is_none();
    let candidates: &[bool] = if wants_reference { &[true, false] } else { &[false] };
    let (mut best, mut worst) = (None, None);
    for &on_gpu in candidates {
        let parts = parts(c, machine, job, wants_reference, on_gpu);
        let host = of(&parts, |place| place == Place::Host);
        let taken = of(&parts, |place| place != Place::Host) + RESERVE;
        if taken > machine.memory || host > machine.host {
            worst = Some((parts, taken, host));
            continue;
        }
        let plan = finish(c, machine, job, parts, taken);
        if plan.kept_layers.is_some_and(|[attention, _]| attention == c.layers as usize) {
            return Ok(plan);
        }
        // Later candidates leave more room.
        best = Some(plan);
    }
    match (best, worst) {
        (Some(plan), _) => Ok(plan),
        (None, worst) => {
            let (parts, taken, host) = worst.unwrap_or_default();
            Err(refusal(c, machine, job, &parts, taken, host))
        }
    }
}

fn of(parts: &[Part], place: impl Fn(Place) -> bool) -> u64 {
    parts.iter().filter(|p| place(p.place)).map(|p| p.bytes).sum()
}

/// All parts at their least: every layer keeps its input alone.
fn parts(c: &ModelConfig, m: &Machine, job: &Job, reference: bool, on_gpu: bool) -> Vec<Part> {
    let n = c.parameters() as u64;
    let scheme = Scheme::engine(m.gpus, on_gpu);
    let trained = job.lora.map_or(n, |r| lora_parameters(c, r));
    let [_, master, moments, gradients, _] = scheme.resident(trained, m.gpus);
    let divided = if scheme.zero >= Zero::One { Place::Sharded } else { Place::Gpu };
    let part = |name, bytes, place| Part { name, bytes, place };
    let mut parts = vec![part("weights", 2 * n, Place::Gpu)];
    if job.lora.is_some() {
        parts.push(part("adapter", 2 * trained, Place::Gpu));
    }
    parts.push(part("masters' low halves", master, divided));
    parts.push(part("moments", moments, divided));
    if reference {
        // Each GPU's process has a copy of its own.
        let host = if on_gpu { (2 * n, Place::Gpu) } else { (2 * n * m.gpus, Place::Host) };
        parts.push(part("reference", host.0, host.1));
    }
    if let Phase::Update { tokens } = job.phase {
        parts.push(part("gradients", gradients, Place::Gpu));
        let inputs = footprint::kept(c, Kind::BFloat16, tokens)[0] * c.layers as u64;
        parts.push(part("kept for the way back", inputs, Place::Gpu));
        let working = footprint::working(c, Kind::BFloat16, tokens);
        parts.push(part("widest moment", working, Place::Gpu));
    }
    parts
}

fn finish(c: &ModelConfig, m: &Machine, job: &Job, mut parts: Vec<Part>, taken: u64) -> Plan {
    let spare = m.memory - taken;
    match job.phase {
        Phase::Rollout => {
            let tokens = spare / cache_bytes(c);
            let bytes = tokens * cache_bytes(c);
            parts.push(Part { name: "keys and values", bytes, place: Place::Gpu });
            let (peak, left) = (taken + bytes, spare - bytes);
            Plan { parts, peak, left, kept_layers: None, cached_tokens: Some(tokens) }
        }
        Phase::Update { tokens } => {
            let kept = footprint::kept(c, Kind::BFloat16, tokens);
            let layers = c.layers as usize;
            let [attention, whole] = footprint::layers_kept(kept, layers, spare);
            let more = kept[1] * attention as u64 + kept[2] * whole as u64;
            if let Some(part) = parts.iter_mut().find(|p| p.name == "kept for the way back") {
                part.bytes += more;
            }
            let kept_layers = Some([attention, whole]);
            Plan { parts, peak: taken + more, left: spare - more, kept_layers, cached_tokens: None }
        }
    }
}

fn refusal(
    c: &ModelConfig,
    m: &Machine,
    job: &Job,
    parts: &[Part],
    taken: u64,
    host: u64,
) -> Error {
    let gb = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    let list: Vec<String> = parts.iter().map(|p| format!("{} {}", p.name, gb(p.bytes))).collect();
    let list = list.join(", ");
    if host > m.host && taken <= m.memory {
        let (needed, there) = (gb(host), gb(m.host));
        return Error::Request(format!(
            "the reference needs {needed} of the host's memory, which has {there} to spare ({list})"
        ));
    }
    let fits = |machine: &Machine, job: &Job| parts_fit(c, machine, job).then_some(());
    let mut ways = Vec::new();
    let more = (m.gpus + 1..=64).find(|&gpus| fits(&Machine { gpus, ..*m }, job).is_some());
    if let Some(gpus) = more {
        ways.push(format!("{gpus} such GPUs would do"));
    }
    if let Phase::Update { tokens } = job.phase {
        let halves = std::iter::successors(Some(tokens / 2), |t| Some(t / 2));
        let smaller = halves
            .take_while(|&t| t >= 256)
            .find(|&tokens| fits(m, &Job { phase: Phase::Update { tokens }, ..*job }).is_some());
        ways.extend(smaller.map(|t| format!("packs of {t} tokens would do")));
    }
    if job.lora.is_none() && fits(m, &Job { lora: Some(16), ..*job }).is_some() {
        ways.push("an adapter of rank 16 instead of all weights would do".into());
    }
    let ways =
        if ways.is_empty() { "nothing the engine knows helps".into() } else { ways.join("; ") };
    let (taken, there) = (gb(taken), gb(m.memory));
    Error::Request(format!(
        "each GPU needs at least {taken} and has {there} ({list}, reserve {}): {ways}",
        gb(RESERVE)
    ))
}

fn parts_fit(c: &ModelConfig, m: &Machine, job: &Job) -> bool {
    let reference = job.reference && job.lora.is_none();
    let parts = parts(c, m, job, reference, false);
    of(&parts, |p| p != Place::Host) + RESERVE <= m.memory
        && of(&parts, |p| p == Place::Host) <= m.host
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
