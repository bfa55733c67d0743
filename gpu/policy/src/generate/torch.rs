//! The backend on libtorch's operations: any device, any type, nothing clever.

use std::collections::VecDeque;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tch::{Device, Tensor};

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::generate::Plan;
use crate::generate::backend::{Backend, Capacity, Row, Sequence};
use crate::generate::blocks::BLOCK;
use crate::model::Model;
use crate::sampling::{self, Choice, Sampling};

/// Computes at once; draws on the host, from ChaCha8 at a place that the token's index gives.
pub struct TorchBackend<'a> {
    model: &'a Model,
    sampling: Sampling,
    cache: Cache,
    capacity: Capacity,
    /// The token drawn last, by slot.
    last: Vec<u32>,
    drawn: VecDeque<Vec<Choice>>,
}

impl<'a> TorchBackend<'a> {
    /// A backend with memory for `plan`, or for what of it half of the free memory holds.
    ///
    /// # Errors
    /// libtorch's.
    pub fn new(model: &'a Model, sampling: Sampling, plan: &Plan) -> Result<Self> {
        let affordable = free_memory(model.device)? / 2 / Cache::block_bytes(model);
        let blocks = plan.most.min(affordable);
        let rows = plan.max_batch;
        let capacity = Capacity { blocks, rows, ahead: 0, prefill_tokens: 4096 };
        let cache = Cache::new(model, blocks)?;
        let (last, drawn) = (vec![0; rows], VecDeque::new());
        Ok(TorchBackend { model, sampling, cache, capacity, last, drawn })
    }
}

/// Bytes that can be had without driving others out.
fn free_memory(device: Device) -> Result<usize> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path).map_err(Error::io(path.as_ref()))?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<usize>().ok());
    match device {
        Device::Cpu => kib
            .map(|k| k * 1024)
            .ok_or_else(|| Error::Request(format!("{path} does not say what memory is available"))),
        _ => crate::libtorch::memory(device).map(|(free, _)| free),
    }
}

impl Backend for TorchBackend<'_> {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn prefill(&mut self, sequences: &[Sequence]) -> Result<()> {
        let (mut ids, mut positions, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for s in sequences {
            ids.extend(s.tokens.iter().map(|&t| i64::from(t)));
            positions.extend(0..s.tokens.len() as i64);
            places.extend((0..s.tokens.len()).map(|p| (s.table[p / BLOCK], p % BLOCK)));
        }
        let put = |v: &[i64]| Tensor::f_from_slice(v)?.f_view([1, -1]);
        let ids = put(&ids)?.f_to_device(self.model.device)?;
        let turn = self.model.rope.rows(&put(&positions)?.f_to_device(self.model.device)?)?;
        let places = self.cache.places(places.into_iter())?;
        let (model, cache) = (self.model, &mut self.cache);
        let _ = model.run(&ids, &turn, |layer, q, k, v| {
            cache.put(layer, &places, k, v)?;
            let (mut from, mut parts) = (0, Vec::with_capacity(sequences.len()));
            for s in sequences {
                let length = s.tokens.len() as i64;
                let cut = |t: &Tensor| t.f_narrow(1, from, length)?.f_transpose(1, 2);
                parts.push(model.attend(&cut(q)?, &cut(k)?, &cut(v)?, None, true)?);
                from += length;
            }
            Ok(Tensor::f_cat(&parts, 1)?)
        })?;
        Ok(())
    }

    fn copy(&mut self, from: u32, to: u32) -> Result<()> {
        self.cache.copy(from, to)
    }

    fn launch(&mut self, rows: &[Row]) -> Result<()> {
        let (device, c) = (self.model.device, &self.model.config);
        let token = |r: &Row| i64::from(r.token.unwrap_or(self.last[r.slot as usize]));
        let ids: Vec<i64> = rows.iter().map(token).collect();
        let positions: Vec<i64> = rows.iter().map(|r| r.position as i64).collect();
        let put = |v: &[i64]| Tensor::f_from_slice(v)?.f_view([-1, 1])?.f_to_device(device);
        let turn = self.model.rope.rows(&put(&positions)?)?;
        let place = |r: &Row| (r.table[r.position / BLOCK], r.position % BLOCK);
        let places = self.cache.places(rows.iter().map(place))?;
        let tables: Vec<&[u32]> = rows.iter().map(|r| r.table).collect();
        let lengths: Vec<usize> = rows.iter().map(|r| r.position + 1).collect();
        let view = self.cache.view(&tables, &lengths)?;
        let cache = &mut self.cache;
        let hidden = self.model.run(&put(&ids)?, &turn, |layer, q, k, v| {
            cache.put(layer, &places, k, v)?;
            let q = q.f_reshape([rows.len() as i64, c.heads, c.head_dim])?;
            cache.attend(layer, &q, &view)
        })?;
        let logits = self.model.logits(&hidden.f_squeeze_dim(1)?)?;
        let drawn = choose(&logits, &self.sampling, rows)?;
        for (row, choice) in rows.iter().zip(&drawn) {
            self.last[row.slot as usize] = choice.token;
        }
        self.drawn.push_back(drawn);
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<Choice>> {
        let missing = || Error::Panic("no step was launched".into());
        self.drawn.pop_front().ok_or_else(missing)
    }
}

/// One token per row. On CUDA only the best `top_k` scores travel to the host.
fn choose(logits: &Tensor, s: &Sampling, rows: &[Row]) -> Result<Vec<Choice>> {
    let vocab = logits.size()[1];
    let top = s.top_k as i64;
    if logits.device() != Device::Cpu && (1..=1024.min(vocab)).contains(&top) {
        let sums = logits.f_div_scalar(s.divisor())?.f_logsumexp([1], false)?;
        let (values, ids) = logits.f_topk(top, 1, true, true)?;
        let sums: Vec<f32> = to_vec(&sums)?;
        let (values, ids): (Vec<f32>, Vec<i64>) = (to_vec(&values)?, to_vec(&ids)?);
        let ids = Some((ids, sums));
        return draw_rows(&values, s.top_k, ids.as_ref(), s, rows);
    }
    draw_rows(&to_vec::<f32>(logits)?, vocab as usize, None, s, rows)
}

fn to_vec<T: tch::kind::Element + Default + Clone>(t: &Tensor) -> Result<Vec<T>> {
    let t = t.f_contiguous()?.f_to_device(Device::Cpu)?;
    let mut out = vec![T::default(); t.numel()];
    t.f_copy_data(&mut out, t.numel())?;
    Ok(out)
}

/// Draws for every row, on several threads when there is much to look at.
fn draw_rows(
    scores: &[f32],
    width: usize,
    top: Option<&(Vec<i64>, Vec<f32>)>,
    s: &Sampling,
    rows: &[Row],
) -> Result<Vec<Choice>> {
    let one = |i: usize, row: &Row| {
        let span = i * width..(i + 1) * width;
        let (ids, sum) = match top {
            Some((ids, sums)) => (Some(&ids[span.clone()]), f64::from(sums[i])),
            None => (None, sampling::log_sum(&scores[span.clone()], s.divisor())),
        };
        // A draw takes one number of 64 bits, two words of the stream.
        let mut rng = ChaCha8Rng::seed_from_u64(row.seed);
        rng.set_word_pos(2 * row.index as u128);
        (sampling::draw(&scores[span], ids, sum, s, &mut rng), sum)
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let threads = if scores.len() >= 1 << 18 { cores } else { 1 };
    let share = rows.len().div_ceil(threads);
    let drawn: Vec<(Choice, f64)> = if threads == 1 {
        rows.iter().enumerate().map(|(i, r)| one(i, r)).collect()
    } else {
        let part = |(n, chunk): (usize, &[Row])| -> Vec<_> {
            chunk.iter().enumerate().map(|(i, r)| one(n * share + i, r)).collect()
        };
        std::thread::scope(|scope| {
            let run = |c| scope.spawn(move || part(c));
            let handles: Vec<_> = rows.chunks(share).enumerate().map(run).collect();
            handles.into_iter().flat_map(|h| h.join().unwrap_or_default()).collect()
        })
    };
    match drawn.iter().find(|(_, sum)| !sum.is_finite()) {
        Some(&(_, value)) => Err(Error::NotFinite { what: "a score", value, step: 0 }),
        None => Ok(drawn.into_iter().map(|(c, _)| c).collect()),
    }
}
