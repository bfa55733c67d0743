//! The memory of a backend: the cache, what a step computes in, and what goes to and fro.

use kernels::gpu::Pinned;
use kernels::launch::{self, Drawn, Heads};
use kernels::{Address, Gpu, Machine, Memory};
use tch::{Kind, Tensor};

use super::PREFILL;
use crate::error::Result;
use crate::generate::Plan;
use crate::generate::backend::Row;
use crate::generate::blocks::BLOCK;
use crate::model::Model;

/// Memory that is left to libtorch and the driver.
const SPARE: usize = 2 << 30;
/// 32-bit numbers of a row's input before its table: given, slot, position, place, index, and two
/// for the seed.
const FIELDS: usize = 7;

/// All of it, for up to `rows` rows.
pub(super) struct Buffers {
    /// `[layers, 2, blocks, kv_heads, 16, dim]`.
    pub cache: Memory,
    /// Blocks in all.
    pub blocks: usize,
    /// Elements of a block of one layer's keys.
    pub block: usize,
    /// Elements of one layer's keys.
    pub side: usize,
    /// Keys and values of all layers: 2 * layers.
    pub sides: usize,
    /// Most splits of a step's attention.
    pub splits: usize,
    /// Blocks of the longest table.
    pub width: usize,
    pub x: Tensor,
    pub h: Tensor,
    pub qkv: Tensor,
    pub mixed: Tensor,
    pub delta: Tensor,
    pub both: Tensor,
    pub act: Tensor,
    pub logits: Tensor,
    /// Partial results of the attention.
    pub scratch: Memory,
    /// The last token drawn, by slot; one slot more for rows of padding.
    pub tokens: Memory,
    pub drawn: Memory,
    /// A step's input: fields of `rows` numbers each, then tables.
    inputs: Memory,
    rows: usize,
    pub input: [Input; 2],
    output: [Pinned; 2],
}

impl Buffers {
    pub fn new(gpu: &Gpu, model: &Model, h: Heads, rows: usize, plan: &Plan) -> Result<Self> {
        let c = &model.config;
        let n = rows as i64;
        let make = |width: i64| Tensor::f_empty([n, width], (Kind::BFloat16, model.device));
        let (hidden, ffn) = (c.hidden, c.ffn);
        let wide = h.row() as i64;
        let width = plan.longest;
        let splits = (width * BLOCK).div_ceil(launch::SPLIT);
        let bytes = (FIELDS + width) * rows * 4;
        let input = || -> Result<Input> { Ok(Input { memory: gpu.pinned(bytes)?, rows, width }) };
        let output = || gpu.pinned(rows * size_of::<Drawn>());
        let (x, normed, qkv) = (make(hidden)?, make(hidden)?, make(wide)?);
        let (mixed, delta) = (make(c.heads * c.head_dim)?, make(hidden)?);
        let (both, act, logits) = (make(2 * ffn)?, make(ffn)?, make(c.vocab)?);
        let scratch = gpu.alloc(launch::scratch(rows, h, splits.next_power_of_two()) * 4)?;
        let (tokens, drawn) = (gpu.alloc((rows + 1) * 4)?, gpu.alloc(rows * size_of::<Drawn>())?);
        gpu.fill(&tokens, 0)?;
        let inputs = gpu.alloc(bytes)?;
        let (input, output) = ([input()?, input()?], [output()?, output()?]);

        let (block, sides) = (h.kv_heads * BLOCK * h.dim, 2 * c.layers as usize);
        // What a prefill computes in, per token: the widest moment of a layer.
        let busy =
            PREFILL.max(plan.longest * BLOCK) * 2 * (3 * ffn + 5 * hidden + 2 * wide) as usize;
        let free = gpu.memory()?.0.saturating_sub(busy + SPARE);
        let blocks = (plan.most + 1).min(free / (block * sides * 2));
        let cache = gpu.alloc(blocks * block * sides * 2)?;
        Ok(Buffers {
            cache,
            blocks,
            block,
            side: blocks * block,
            sides,
            splits,
            width,
            x,
            h: normed,
            qkv,
            mixed,
            delta,
            both,
            act,
            logits,
            scratch,
            tokens,
            drawn,
            inputs,
            rows,
            input,
            output,
        })
    }

    /// Rows that there is room for; also the slot of rows whose draws nobody wants.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Keys and values of a layer.
    pub fn layer(&self, layer: usize) -> (Address, Address) {
        let side = |n: usize| self.cache.address() + (n * self.side * 2) as u64;
        (side(2 * layer), side(2 * layer + 1))
    }

    fn field(&self, n: usize) -> Address {
        self.inputs.address() + (n * self.rows * 4) as u64
    }

    /// u64 `[rows]`.
    pub fn seeds(&self) -> Address {
        self.field(0)
    }

    /// i32 `[rows]`.
    pub fn given(&self) -> Address {
        self.field(2)
    }

    /// i32 `[rows]`.
    pub fn slots(&self) -> Address {
        self.field(3)
    }

    /// i32 `[rows]`.
    pub fn positions(&self) -> Address {
        self.field(4)
    }

    /// i32 `[rows]`.
    pub fn places(&self) -> Address {
        self.field(5)
    }

    /// i32 `[rows]`.
    pub fn indices(&self) -> Address {
        self.field(6)
    }

    /// i32 `[rows, width]`.
    pub fn tables(&self) -> Address {
        self.field(FIELDS)
    }

    /// Sends the input of a step of `rows` rows.
    pub fn send(&self, gpu: &Gpu, parity: usize, rows: usize) -> Result<()> {
        let bytes = (FIELDS * self.rows + rows * self.width) * 4;
        // SAFETY: the memory has that size; the pinned memory is filled again only two steps
        // later, when this one has been collected.
        Ok(unsafe { gpu.send(&self.input[parity].memory, self.inputs.address(), bytes) }?)
    }

    /// Fetches what a step of `rows` rows drew.
    pub fn fetch(&mut self, gpu: &Gpu, parity: usize, rows: usize) -> Result<()> {
        let bytes = rows * size_of::<Drawn>();
        // SAFETY: the memory has that size; it is read after the step's mark.
        Ok(unsafe { gpu.fetch(self.drawn.address(), &mut self.output[parity], bytes) }?)
    }

    /// What has been fetched.
    pub fn drawn(&self, parity: usize, rows: usize) -> Vec<Drawn> {
        let bytes = &self.output[parity].as_slice()[..rows * size_of::<Drawn>()];
        let word = |b: &[u8], n: usize| {
            let four: [u8; 4] = [b[4 * n], b[4 * n + 1], b[4 * n + 2], b[4 * n + 3]];
            u32::from_ne_bytes(four)
        };
        let one = |b: &[u8]| {
            Drawn::new(word(b, 0), f32::from_bits(word(b, 1)), f32::from_bits(word(b, 2)))
        };
        bytes.chunks_exact(size_of::<Drawn>()).map(one).collect()
    }
}

/// A step's input on the host.
pub(super) struct Input {
    memory: Pinned,
    rows: usize,
    width: usize,
}

impl Input {
    /// Writes the input of `rows`, and of padding up to `bucket` rows: those read token 0 at
    /// position 0 of the first block, and keep what they draw in a slot of their own.
    pub fn fill(&mut self, rows: &[Row], bucket: usize) {
        let (most, width) = (self.rows, self.width);
        let bytes = self.memory.as_mut_slice();
        let mut put = |at: usize, value: i32| {
            bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        for n in 0..bucket {
            let row = rows.get(n);
            let seed = row.map_or(0, |r| r.seed);
            // Little-endian, as the device is.
            put(2 * n, seed as u32 as i32);
            put(2 * n + 1, (seed >> 32) as u32 as i32);
            let token = |r: &Row| r.token.map_or(-1, |t| t as i32);
            put(2 * most + n, row.map_or(0, token));
            put(3 * most + n, row.map_or(most as i32, |r| r.slot as i32));
            put(4 * most + n, row.map_or(0, |r| r.position as i32));
            put(5 * most + n, row.map_or(0, |r| place(r.table, r.position)));
            put(6 * most + n, row.map_or(0, |r| r.index as i32));
            let table = row.map_or(&[][..], |r| r.table);
            let from = 7 * most + n * width;
            put(from, 0);
            for (i, &block) in table.iter().enumerate() {
                put(from + i, block as i32 + 1);
            }
        }
    }
}

/// Where a position's keys go: block * 16 + place in it; the scheduler's blocks come after the
/// first.
pub(super) fn place(table: &[u32], position: usize) -> i32 {
    (table[position / BLOCK] as i32 + 1) * BLOCK as i32 + (position % BLOCK) as i32
}
