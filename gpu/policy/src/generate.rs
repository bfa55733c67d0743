//! Batched sampling over a key-value cache.
//!
//! A prompt is read once and its cache shared out to its samples. Each sample draws from a
//! random stream of its own, so what it says depends on its seed and not on its neighbours
//! (up to float rounding, which may differ with the batch's size).

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tch::{Device, Tensor};

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::sampling::{self, Choice, Sampling};

/// One prompt and the seeds of the samples wanted from it.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Tokens, template included.
    pub tokens: Vec<u32>,
    /// One per sample.
    pub seeds: Vec<u64>,
}

/// Limits of one call.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens per answer; the context may end it earlier.
    pub max_new_tokens: usize,
    /// Samples in flight.
    pub max_batch: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It said an end-of-answer token, which is its last token.
    Stop,
    /// It ran into a limit.
    Length,
}

/// One answer; the three lists are of equal length.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Tokens, the end-of-answer token included.
    pub tokens: Vec<u32>,
    /// Log-probability of each under the whole softmax at the temperature.
    pub logprobs: Vec<f32>,
    /// The same within what top-k and top-p left.
    pub truncated: Vec<f32>,
    /// Why it ended.
    pub finish: Finish,
}

/// A sample being written.
struct Row {
    prompt: usize,
    index: usize,
    room: usize,
    rng: ChaCha8Rng,
    sample: Sample,
    done: bool,
}

/// Samples every prompt; `result[p][i]` answers `prompts[p]` with `seeds[i]`.
///
/// # Errors
/// An empty prompt or one that leaves no room, absurd settings, scores that are not finite.
pub fn generate(
    model: &Model,
    stop: &[u32],
    prompts: &[Prompt],
    sampling: &Sampling,
    limits: Limits,
) -> Result<Vec<Vec<Sample>>> {
    check(model, prompts, sampling, limits)?;
    let _guard = tch::no_grad_guard();
    let mut jobs: Vec<(usize, usize)> = Vec::new();
    let mut order: Vec<usize> = (0..prompts.len()).collect();
    // Prompts of like length share a batch, so that little of it is padding.
    order.sort_by_key(|&p| prompts[p].tokens.len());
    for p in order {
        jobs.extend((0..prompts[p].seeds.len()).map(|i| (p, i)));
    }
    let mut out: Vec<Vec<Option<Sample>>> =
        prompts.iter().map(|p| p.seeds.iter().map(|_| None).collect()).collect();
    for wave in jobs.chunks(limits.max_batch) {
        let rows = wave.iter().map(|&(p, i)| row(model, prompts, p, i, limits)).collect();
        for r in Wave::start(model, stop, sampling, prompts, rows)?.finish()? {
            out[r.prompt][r.index] = Some(r.sample);
        }
    }
    Ok(out.into_iter().map(|list| list.into_iter().flatten().collect()).collect())
}

fn check(model: &Model, prompts: &[Prompt], s: &Sampling, limits: Limits) -> Result<()> {
    let refuse = |text: &str| Err(Error::Request(text.into()));
    if !(s.temperature >= 0.0 && s.temperature.is_finite()) {
        return refuse("temperature must be a number from 0 up");
    }
    if !(s.top_p > 0.0 && s.top_p <= 1.0) {
        return refuse("top_p must lie above 0 and at most at 1");
    }
    if limits.max_new_tokens == 0 || limits.max_batch == 0 {
        return refuse("max_new_tokens and max_batch must be at least 1");
    }
    let context = model.config.context as usize;
    for p in prompts {
        let tokens = p.tokens.len();
        if tokens >= context {
            return Err(Error::PromptTooLong { tokens, context });
        }
        if tokens == 0 || p.tokens.iter().any(|&t| i64::from(t) >= model.config.vocab) {
            return refuse("a prompt is empty or holds a token beyond the vocabulary");
        }
    }
    Ok(())
}

fn row(model: &Model, prompts: &[Prompt], prompt: usize, index: usize, limits: Limits) -> Row {
    let left = model.config.context as usize - prompts[prompt].tokens.len();
    let empty = Sample {
        tokens: Vec::new(),
        logprobs: Vec::new(),
        truncated: Vec::new(),
        finish: Finish::Length,
    };
    Row {
        prompt,
        index,
        room: limits.max_new_tokens.min(left),
        rng: ChaCha8Rng::seed_from_u64(prompts[prompt].seeds[index]),
        sample: empty,
        done: false,
    }
}

/// A batch on its way from prompts to answers.
struct Wave<'a> {
    model: &'a Model,
    stop: &'a [u32],
    sampling: &'a Sampling,
    cache: Cache,
    /// In the order of the cache's rows.
    rows: Vec<Row>,
    finished: Vec<Row>,
    logits: Tensor,
    /// Columns that the longest answer can reach.
    most: i64,
}

impl<'a> Wave<'a> {
    fn start(
        model: &'a Model,
        stop: &'a [u32],
        sampling: &'a Sampling,
        prompts: &[Prompt],
        rows: Vec<Row>,
    ) -> Result<Self> {
        let mut unique: Vec<usize> = rows.iter().map(|r| r.prompt).collect();
        unique.dedup();
        let length = unique.iter().map(|&p| prompts[p].tokens.len()).max().unwrap_or(1);
        let room = rows.iter().map(|r| r.room).max().unwrap_or(1);
        let (mut ids, mut pads) = (Vec::new(), Vec::new());
        for &p in &unique {
            let tokens = &prompts[p].tokens;
            let pad = length - tokens.len();
            ids.extend(std::iter::repeat_n(0, pad));
            ids.extend(tokens.iter().map(|&t| i64::from(t)));
            pads.push(pad as i64);
        }
        let ids = Tensor::f_from_slice(&ids)?.f_view([unique.len() as i64, length as i64])?;
        let ids = ids.f_to_device(model.device)?;
        let most = (length + room) as i64;
        let (logits, mut cache) = model.prefill(&ids, &pads, most.min(length as i64 + 256))?;
        let mut places = rows.iter().map(|r| r.prompt).collect::<Vec<_>>();
        places.iter_mut().fold((usize::MAX, -1_i64), |(last, at), p| {
            let at = if *p == last { at } else { at + 1 };
            let prompt = std::mem::replace(p, at as usize);
            (prompt, at)
        });
        let places: Vec<i64> = places.into_iter().map(|p| p as i64).collect();
        cache.select(&places)?;
        let places = Tensor::f_from_slice(&places)?.f_to_device(model.device)?;
        let logits = logits.f_index_select(0, &places)?;
        Ok(Wave { model, stop, sampling, cache, rows, finished: Vec::new(), logits, most })
    }

    fn finish(mut self) -> Result<Vec<Row>> {
        loop {
            let choices = choose(&self.logits, self.sampling, &mut self.rows)?;
            for (row, choice) in self.rows.iter_mut().zip(&choices) {
                take(row, choice, self.stop);
            }
            let alive = self.rows.iter().filter(|r| !r.done).count();
            if alive == 0 {
                self.finished.append(&mut self.rows);
                return Ok(self.finished);
            }
            let mut next: Vec<i64> = choices.iter().map(|c| i64::from(c.token)).collect();
            // Copying the cache costs about a step, so wait until a fifth of it is idle.
            if (self.rows.len() - alive) * 5 >= self.rows.len() {
                next = self.compact(&next)?;
            }
            self.cache.reserve(self.most)?;
            let ids = Tensor::f_from_slice(&next)?.f_to_device(self.model.device)?;
            self.logits = self.model.step(&ids, &mut self.cache)?;
        }
    }

    /// Drops finished rows from the batch; answers the tokens of those that stay.
    fn compact(&mut self, next: &[i64]) -> Result<Vec<i64>> {
        let keep: Vec<usize> = (0..self.rows.len()).filter(|&i| !self.rows[i].done).collect();
        let index: Vec<i64> = keep.iter().map(|&i| i as i64).collect();
        self.cache.select(&index)?;
        let rows = std::mem::take(&mut self.rows);
        let (done, alive) = rows.into_iter().partition(|r| r.done);
        self.finished.extend::<Vec<Row>>(done);
        self.rows = alive;
        Ok(keep.into_iter().map(|i| next[i]).collect())
    }
}

fn take(row: &mut Row, choice: &Choice, stop: &[u32]) {
    if row.done {
        return;
    }
    row.sample.tokens.push(choice.token);
    row.sample.logprobs.push(choice.logprob);
    row.sample.truncated.push(choice.truncated);
    if stop.contains(&choice.token) {
        row.sample.finish = Finish::Stop;
        row.done = true;
    }
    row.done |= row.sample.tokens.len() >= row.room;
}

/// One token per row. On CUDA only the best `top_k` scores travel to the host.
fn choose(logits: &Tensor, s: &Sampling, rows: &mut [Row]) -> Result<Vec<Choice>> {
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
    rows: &mut [Row],
) -> Result<Vec<Choice>> {
    let one = |i: usize, row: &mut Row| {
        let span = i * width..(i + 1) * width;
        let (ids, sum) = match top {
            Some((ids, sums)) => (Some(&ids[span.clone()]), f64::from(sums[i])),
            None => (None, sampling::log_sum(&scores[span.clone()], s.divisor())),
        };
        (sampling::draw(&scores[span], ids, sum, s, &mut row.rng), sum)
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let threads = if scores.len() >= 1 << 18 { cores } else { 1 };
    let share = rows.len().div_ceil(threads);
    let drawn: Vec<(Choice, f64)> = if threads == 1 {
        rows.iter_mut().enumerate().map(|(i, r)| one(i, r)).collect()
    } else {
        let part = |(n, chunk): (usize, &mut [Row])| -> Vec<_> {
            chunk.iter_mut().enumerate().map(|(i, r)| one(n * share + i, r)).collect()
        };
        std::thread::scope(|scope| {
            let run = |c| scope.spawn(move || part(c));
            let handles: Vec<_> = rows.chunks_mut(share).enumerate().map(run).collect();
            handles.into_iter().flat_map(|h| h.join().unwrap_or_default()).collect()
        })
    };
    match drawn.iter().find(|(_, sum)| !sum.is_finite()) {
        Some(&(_, value)) => Err(Error::NotFinite { what: "a score", value, step: 0 }),
        None => Ok(drawn.into_iter().map(|(c, _)| c).collect()),
    }
}
