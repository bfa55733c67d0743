//! What a training step did with the hardware: time by part, tokens per second, MFU, memory.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use tch::{Cuda, Device};

use crate::config::ModelConfig;
use crate::model::Model;

/// Wall-clock time of the parts of a step; on CUDA each part ends when the device is done.
pub struct Clock {
    device: Device,
    last: Instant,
    parts: Vec<(&'static str, f64)>,
}

impl Clock {
    /// Starts now.
    pub fn new(device: Device) -> Self {
        Clock { device, last: Instant::now(), parts: Vec::new() }
    }

    /// The time since the last call belongs to `part`.
    pub fn lap(&mut self, part: &'static str) {
        if let Device::Cuda(i) = self.device {
            Cuda::synchronize(i as i64);
        }
        let now = Instant::now();
        let seconds = (now - self.last).as_secs_f64();
        self.last = now;
        match self.parts.iter_mut().find(|(name, _)| *name == part) {
            Some((_, sum)) => *sum += seconds,
            None => self.parts.push((part, seconds)),
        }
    }

    /// Seconds by part, in order of their first lap.
    pub fn parts(self) -> Vec<(&'static str, f64)> {
        self.parts
    }
}

/// What passes of training came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Positions read; a shared prompt counts once.
    pub positions: u64,
    /// Pairs of a query and a key that it sees.
    pub pairs: u64,
    /// Answer tokens whose logits were made.
    pub answers: u64,
}

impl Work {
    /// Adds a batch.
    pub fn add(&mut self, batch: &crate::batch::Batch) {
        self.positions += batch.spans.tokens() as u64;
        self.pairs += batch.spans.pairs() as u64;
        self.answers += batch.tokens as u64;
    }

    /// Floating-point operations that training on this needs, recomputation not counted: of each
    /// matrix 6 an element and position that passes it (2 forward, 4 back; the head's only where an
    /// answer token is predicted), and of attention 12 a channel, layer and pair. No other
    /// operation is counted, nor is the input embedding, which is no product.
    pub fn flops(&self, c: &ModelConfig) -> f64 {
        let per_layer = c.hidden * (c.heads + 2 * c.kv_heads) * c.head_dim
            + c.heads * c.head_dim * c.hidden
            + 3 * c.hidden * c.ffn;
        let matrices = (per_layer * c.layers) as f64 * self.positions as f64;
        let head = (c.vocab * c.hidden) as f64 * self.answers as f64;
        let attention = (c.heads * c.head_dim * c.layers) as f64 * self.pairs as f64;
        6.0 * (matrices + head) + 12.0 * attention
    }

    /// The common estimate `6 N T`, `N` with the input embedding and all biases and norms.
    pub fn six_n_t(&self, c: &ModelConfig) -> f64 {
        6.0 * c.parameters() as f64 * self.positions as f64
    }
}

/// What a step cost.
#[derive(Clone, Debug, Serialize)]
pub struct Metrics {
    /// Wall-clock time.
    pub seconds: f64,
    /// Seconds by part.
    pub parts: BTreeMap<&'static str, f64>,
    /// Positions read per second; a shared prompt counts once.
    pub tokens_per_second: f64,
    /// [`Work::flops`] per second over [`PEAK_FLOPS`]; absent on a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// [`Work::six_n_t`] per second over [`PEAK_FLOPS`]; absent on a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu_six_n: Option<f64>,
    /// [`memory`] after the step, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

impl Metrics {
    /// The figures of a step that has just ended.
    pub fn new(clock: Clock, model: &Model, work: &Work) -> Self {
        let parts: BTreeMap<_, _> = clock.parts().into_iter().collect();
        let seconds: f64 = parts.values().sum();
        let cuda = model.device != Device::Cpu;
        let share = |flops: f64| cuda.then(|| flops / seconds / PEAK_FLOPS);
        Metrics {
            seconds,
            parts,
            tokens_per_second: work.positions as f64 / seconds,
            mfu: share(work.flops(&model.config)),
            mfu_six_n: share(work.six_n_t(&model.config)),
            memory: memory(model.device),
        }
    }
}

impl Metrics {
    /// The same where `world` devices did the work.
    pub fn among(mut self, world: usize) -> Self {
        let share = |mfu: Option<f64>| mfu.map(|mfu| mfu / world as f64);
        (self.mfu, self.mfu_six_n) = (share(self.mfu), share(self.mfu_six_n));
        self
    }
}

/// A bf16 H100 or H200 without sparsity, in operations per second: what MFU is a share of.
pub const PEAK_FLOPS: f64 = 989e12;

/// Bytes taken of the device's memory (all of libtorch's pool, which does not shrink, and the
/// context), or the largest resident size of this process on a CPU. `None` if it cannot be asked.
pub fn memory(device: Device) -> Option<u64> {
    match device {
        Device::Cuda(i) => device_memory(i).map(|(free, total)| total - free),
        _ => {
            let status = std::fs::read_to_string("/proc/self/status").ok()?;
            let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
            Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
        }
    }
}

/// Free and total bytes of CUDA device `index`; `None` without CUDA.
pub fn device_memory(index: usize) -> Option<(u64, u64)> {
    type SetDevice = unsafe extern "C" fn(i32) -> i32;
    type GetInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> i32;
    if !Cuda::is_available() {
        return None;
    }
    // SAFETY: both are functions of the CUDA runtime that libtorch has loaded, with these
    // signatures; the second writes two numbers.
    unsafe {
        let set = libc::dlsym(libc::RTLD_DEFAULT, c"cudaSetDevice".as_ptr());
        let info = libc::dlsym(libc::RTLD_DEFAULT, c"cudaMemGetInfo".as_ptr());
        if set.is_null() || info.is_null() {
            return None;
        }
        let set: SetDevice = std::mem::transmute(set);
        let info: GetInfo = std::mem::transmute(info);
        let (mut free, mut total) = (0, 0);
        (set(index as i32) == 0 && info(&mut free, &mut total) == 0)
            .then_some((free as u64, total as u64))
    }
}
