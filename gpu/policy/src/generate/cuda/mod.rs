//! The backend with our own kernels, for bfloat16 models on CUDA.
//!
//! A step is one graph, recorded for a number of rows (the next of [`BUCKETS`]) and of splits of
//! the attention when first needed. Drawn tokens stay on the device, so the host prepares and
//! launches a step before it knows what the one before it drew. Matrix products are libtorch's
//! into preallocated memory; of a single row they are ours, which are bound by bandwidth alone.
//!
//! In deterministic mode a row's bits depend on its own tokens alone: our kernels take each row by itself,
//! products always have [`TILE`] rows, and prompts are read by steps, too.

mod buffers;
mod prefill;
mod step;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use kernels::launch::{self, Drawn, Heads};
use kernels::{Gpu, gpu::Graph, gpu::Mark};
use tch::{Device, Kind};

use crate::error::{Error, Result};
use crate::fused;
use crate::generate::Plan;
use crate::generate::backend::{Backend, Capacity, Row, Sequence};
use crate::libtorch::{self, Stream};
use crate::model::Model;
use crate::sampling::{Choice, Sampling};
use buffers::Buffers;
use step::Weights;

/// Numbers of rows that steps are recorded for; above, multiples of the last.
const BUCKETS: [usize; 14] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256];
/// Tokens of one prefill.
const PREFILL: usize = 8192;

/// Rows of each product in deterministic mode: cuBLAS orders the sums of a row by how many there are.
const TILE: usize = 64;

/// The next number of rows that steps are recorded for.
fn bucket(rows: usize, exact: bool) -> usize {
    if exact {
        return rows.next_multiple_of(TILE);
    }
    let largest = BUCKETS[BUCKETS.len() - 1];
    let fits = BUCKETS.into_iter().find(|&b| b >= rows);
    fits.unwrap_or_else(|| rows.next_multiple_of(largest))
}

/// Computes ahead of the host, by one step.
pub struct CudaBackend<'a> {
    // Fields are dropped in this order: graphs and buffers before the stream that they are used on.
    graphs: BTreeMap<(usize, usize), Graph>,
    buffers: Buffers,
    weights: Weights<'a>,
    sampling: launch::Sampling,
    capacity: Capacity,
    heads: Heads,
    /// Deterministic mode.
    exact: bool,
    /// Steps launched in all; its parity names the pinned buffers.
    steps: usize,
    launched: VecDeque<(usize, Mark)>,
    gpu: Rc<Gpu>,
    _stream: Stream,
}

impl<'a> CudaBackend<'a> {
    /// Whether our kernels know the model's shapes and type.
    pub fn serves(model: &Model) -> bool {
        let c = &model.config;
        // Steps know weights by their addresses, which those of a hosted model do not keep.
        matches!(model.device, Device::Cuda(_))
            && model.params.flat.device() == model.device
            && model.kind == Kind::BFloat16
            && matches!(c.head_dim, 64 | 128)
            && c.hidden % 8 == 0
            && c.ffn % 8 == 0
    }

    /// A backend with memory for `plan`, or for what of it the device has room for.
    ///
    /// # Errors
    /// The device's, NVRTC's.
    pub fn new(model: &'a Model, sampling: Sampling, plan: &Plan) -> Result<Self> {
        let Device::Cuda(ordinal) = model.device else {
            return Err(Error::Request("the CUDA backend needs a model on a CUDA device".into()));
        };
        let stream = Stream::enter(ordinal)?;
        let gpu = fused::device(ordinal)?;
        let c = &model.config;
        let heads = Heads {
            heads: c.heads as usize,
            kv_heads: c.kv_heads as usize,
            dim: c.head_dim as usize,
        };
        let exact = libtorch::is_deterministic();
        let rows = bucket(plan.max_batch, exact);
        let buffers = Buffers::new(&gpu, model, heads, rows, plan)?;
        let capacity = Capacity {
            // The first block takes what rows of padding write.
            blocks: buffers.blocks - 1,
            rows: plan.max_batch,
            ahead: 1,
            prefill_tokens: PREFILL,
        };
        let sampling = launch::Sampling {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
        };
        Ok(CudaBackend {
            graphs: BTreeMap::new(),
            buffers,
            weights: Weights::new(model)?,
            sampling,
            capacity,
            heads,
            exact,
            steps: 0,
            launched: VecDeque::new(),
            gpu,
            _stream: stream,
        })
    }

    /// Starts a step whose draws nobody has fetched yet.
    fn step(&mut self, rows: &[Row]) -> Result<()> {
        let bucket = bucket(rows.len(), self.exact);
        let longest = rows.iter().map(|r| r.position + 1).max().unwrap_or(1);
        // Few graphs for any length: powers of two, at most what the longest sample needs.
        let splits = longest.div_ceil(launch::SPLIT).next_power_of_two().min(self.buffers.splits);
        let parity = self.steps % 2;
        self.buffers.input[parity].fill(rows, bucket);
        self.buffers.send(&self.gpu, parity, bucket)?;
        let step = step::Step {
            gpu: &self.gpu,
            weights: &self.weights,
            buffers: &self.buffers,
            heads: self.heads,
            sampling: &self.sampling,
            rows: bucket,
            tile: if self.exact { TILE } else { bucket },
            splits,
        };
        match self.graphs.get(&(bucket, splits)) {
            Some(graph) => graph.launch()?,
            None => {
                // Done once as it is, since libraries load code at first use; then recorded.
                step.run()?;
                let graph = self.gpu.record(|| step.run())?;
                self.graphs.insert((bucket, splits), graph);
            }
        }
        Ok(())
    }

    /// Reads sequences as steps do, some tokens of one at a time; what is drawn after them is not kept.
    fn read_by_steps(&mut self, sequences: &[Sequence]) -> Result<()> {
        let rows = self.buffers.rows();
        for s in sequences {
            for (n, tokens) in s.tokens.chunks(rows).enumerate() {
                let row = |(i, &token): (usize, &u32)| Row {
                    slot: rows as u32,
                    token: Some(token),
                    position: n * rows + i,
                    table: &s.table,
                    seed: 0,
                    index: 0,
                };
                let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
                self.step(&rows)?;
                // The step's input is written anew for the next.
                self.gpu.mark()?.wait()?;
            }
        }
        Ok(())
    }

    /// Bytes of the cache of keys and values.
    pub fn cache_bytes(&self) -> usize {
        self.buffers.cache.bytes()
    }
}

impl Backend for CudaBackend<'_> {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn prefill(&mut self, sequences: &[Sequence]) -> Result<()> {
        if self.exact {
            return self.read_by_steps(sequences);
        }
        prefill::read(&self.gpu, &self.weights, &self.buffers, self.heads, sequences)
    }

    fn copy(&mut self, from: u32, to: u32) -> Result<()> {
        let b = &self.buffers;
        let shape = (b.sides, b.side, b.block);
        // SAFETY: the arena has that shape; blocks are the scheduler's, after the first.
        Ok(unsafe { launch::copy_block(&*self.gpu, b.cache.address(), shape, from + 1, to + 1) }?)
    }

    fn launch(&mut self, rows: &[Row]) -> Result<()> {
        self.step(rows)?;
        self.buffers.fetch(&self.gpu, self.steps % 2, rows.len())?;
        self.launched.push_back((rows.len(), self.gpu.mark()?));
        self.steps += 1;
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<Choice>> {
        let missing = || Error::Panic("no step was launched".into());
        let parity = (self.steps - self.launched.len()) % 2;
        let (rows, mark) = self.launched.pop_front().ok_or_else(missing)?;
        mark.wait()?;
        let drawn: Vec<Drawn> = self.buffers.drawn(parity, rows);
        match drawn.iter().find(|d| !d.logprob.is_finite()) {
            Some(d) => {
                let value = f64::from(d.logprob);
                Err(Error::NotFinite { what: "a score", value, step: 0 })
            }
            None => Ok(drawn
                .into_iter()
                .map(|d| Choice { token: d.token, logprob: d.logprob, truncated: d.truncated })
                .collect()),
        }
    }
}
