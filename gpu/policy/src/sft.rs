//! Supervised fine-tuning: the loss is on the answer's tokens only.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tch::{Kind, Tensor};

use crate::batch::{self, Batch, Sequence};
use crate::error::{Error, Result};
use crate::gradients::Gradients;
use crate::loss::{self, Loss, Pass};
use crate::metrics::Clock;
use crate::model::Model;
use crate::optim::{AdamW, Schedule, Update};

/// Examples are packed within so many steps' worth of tokens, so that packs are full and steps
/// still differ.
const POOL_STEPS: usize = 16;

/// Settings of a training.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Peak learning rate, decay, clip.
    pub update: Update,
    /// Course of the learning rate.
    pub schedule: Schedule,
    /// Steps of linear rise.
    pub warmup: u64,
    /// Tokens per update.
    pub batch_tokens: usize,
    /// Tokens per pack; packs are summed up to an update.
    pub micro_tokens: usize,
    /// Bytes that the layers of a pack may keep for the way back.
    pub memory: u64,
    /// Updates at most.
    pub steps: Option<u64>,
    /// Time at most.
    pub time: Option<Duration>,
    /// Seed of the order of examples.
    pub seed: u64,
    /// Updates between two lines of the log.
    pub log_every: u64,
    /// Updates between two looks at the held-out examples.
    pub eval_every: u64,
}

/// Loss and accuracy on examples not trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOut {
    /// Mean negative log-probability per answer token, in nats.
    pub loss: f64,
    /// Share of answer tokens that the model ranks first.
    pub accuracy: f64,
}

/// The state of a training, for the log.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Updates taken.
    pub step: u64,
    /// Passes over the data begun.
    pub epoch: u64,
    /// Mean loss per answer token since the last line.
    pub loss: f64,
    /// Gradient norm of the last update.
    pub grad_norm: f64,
    /// Learning rate of the last update.
    pub lr: f64,
    /// Tokens read per second since the start.
    pub tokens_per_second: f64,
    /// Time since the start.
    pub seconds: f64,
    /// Present on lines that looked at the held-out examples.
    pub held_out: Option<HeldOut>,
}

/// Measures `model` on `sequences`.
pub fn evaluate(model: &Model, sequences: &[Sequence], micro_tokens: usize) -> Result<HeldOut> {
    let all: Vec<&Sequence> = sequences.iter().collect();
    let mut sums = Tensor::f_zeros([2], (Kind::Double, model.device))?;
    let mut tokens = 0;
    for group in batch::plan(&all, micro_tokens) {
        let rows: Vec<&Sequence> = group.iter().map(|&i| all[i]).collect();
        let batch = Batch::new(&rows, model.device)?;
        tokens += batch.tokens;
        loss::inspect(model, &batch, 1.0, |s| {
            let right = s.best()?.f_eq_tensor(s.targets)?;
            let part = [s.chosen.f_neg()?.f_sum(Kind::Double)?, right.f_sum(Kind::Double)?];
            let _ = sums.f_add_(&Tensor::f_stack(&part, 0)?)?;
            Ok(())
        })?;
    }
    let mut out = [0_f64; 2];
    sums.f_to_device(tch::Device::Cpu)?.f_copy_data(&mut out, 2)?;
    Ok(HeldOut { loss: out[0] / tokens as f64, accuracy: out[1] / tokens as f64 })
}

/// The endless order of packs: examples shuffled, packed within a pool, packs shuffled again.
struct Feed<'a> {
    sequences: &'a [Sequence],
    rng: ChaCha8Rng,
    order: Vec<usize>,
    ready: Vec<Vec<usize>>,
    epoch: u64,
}

impl Feed<'_> {
    fn next(&mut self, o: &Options) -> Vec<usize> {
        loop {
            if let Some(group) = self.ready.pop() {
                return group;
            }
            if self.order.is_empty() {
                self.order = (0..self.sequences.len()).collect();
                self.order.shuffle(&mut self.rng);
                self.epoch += 1;
            }
            let (mut pool, mut tokens) = (Vec::new(), 0);
            while tokens < POOL_STEPS * o.batch_tokens
                && let Some(i) = self.order.pop()
            {
                tokens += self.sequences[i].inputs();
                pool.push(i);
            }
            let rows: Vec<&Sequence> = pool.iter().map(|&i| &self.sequences[i]).collect();
            let groups = batch::plan(&rows, o.micro_tokens);
            self.ready =
                groups.into_iter().map(|g| g.into_iter().map(|j| pool[j]).collect()).collect();
            self.ready.shuffle(&mut self.rng);
        }
    }
}

/// Trains `model` on `data` until steps or time are up, telling `log` how it goes.
///
/// # Errors
/// No data, no end, or three updates in a row that are not finite.
pub fn train(
    model: &mut Model,
    optim: &mut AdamW,
    data: &[Sequence],
    held_out: &[Sequence],
    o: &Options,
    mut log: impl FnMut(Progress),
) -> Result<()> {
    if data.is_empty() {
        return Err(Error::Request("no example fits the context".into()));
    }
    if o.steps.is_none() && o.time.is_none() {
        return Err(Error::Request("give --steps or --max-seconds".into()));
    }
    let rng = ChaCha8Rng::seed_from_u64(o.seed);
    let mut feed = Feed { sequences: data, rng, order: Vec::new(), ready: Vec::new(), epoch: 0 };
    let began = Instant::now();
    let (mut step, mut read, mut refused) = (0_u64, 0_usize, 0);
    let (mut losses, mut count) = (0.0, 0);
    // What the last line says when no update came after the line before it.
    let (mut mean, mut grad_norm) = (f64::NAN, f64::NAN);
    loop {
        let passed = began.elapsed();
        let by_time = o.time.map_or(0.0, |t| passed.as_secs_f64() / t.as_secs_f64());
        let progress = o.steps.map_or(by_time, |n| by_time.max(step as f64 / n as f64));
        let last = progress >= 1.0;
        let mut update = o.update;
        update.lr = o.schedule.at(o.update.lr, step, o.warmup, progress);
        if !last {
            let (loss, tokens) = one(model, optim, &mut feed, o)?;
            match settle(model, optim, loss, &update) {
                Ok(norm) => (refused, grad_norm) = (0, norm),
                Err(e @ Error::NotFinite { .. }) if refused >= 2 => return Err(e),
                Err(Error::NotFinite { .. }) => {
                    refused += 1;
                    continue;
                }
                Err(e) => return Err(e),
            }
            (step, read, losses, count) = (step + 1, read + tokens, losses + loss, count + 1);
        }
        let look = last || step.is_multiple_of(o.eval_every);
        if last || step.is_multiple_of(o.log_every) || look {
            let seconds = began.elapsed().as_secs_f64();
            let held_out = match look && !held_out.is_empty() {
                true => Some(evaluate(model, held_out, o.micro_tokens)?),
                false => None,
            };
            mean = if count > 0 { losses / f64::from(count) } else { mean };
            let (loss, lr) = (mean, update.lr);
            let tokens_per_second = read as f64 / seconds;
            let epoch = feed.epoch;
            log(Progress {
                step,
                epoch,
                loss,
                grad_norm,
                lr,
                tokens_per_second,
                seconds,
                held_out,
            });
            (losses, count) = (0.0, 0);
        }
        if last {
            return Ok(());
        }
    }
}

fn settle(model: &mut Model, optim: &mut AdamW, loss: f64, update: &Update) -> Result<f64> {
    if !loss.is_finite() {
        optim.discard();
        return Err(Error::NotFinite { what: "loss", value: loss, step: optim.step });
    }
    optim.apply(model.trained(), update)
}

/// Sums the gradient of one update; answers the mean loss and the tokens read.
fn one(model: &Model, optim: &mut AdamW, feed: &mut Feed, o: &Options) -> Result<(f64, usize)> {
    let mut batches = Vec::new();
    let mut read = 0;
    while batches.is_empty() || read + o.micro_tokens <= o.batch_tokens {
        let group = feed.next(o);
        let rows: Vec<&Sequence> = group.iter().map(|&i| &feed.sequences[i]).collect();
        let batch = Batch::new(&rows, model.device)?;
        read += batch.spans.tokens() as usize;
        batches.push(batch);
    }
    let answers: usize = batches.iter().map(|b| b.tokens).sum();
    let mut sum = Tensor::f_zeros([], (model.sum_kind(), model.device))?;
    let flat = optim.gradient()?;
    let (grads, mut clock) = (Gradients::new(model, &flat), Clock::new(model.device));
    for (i, batch) in batches.iter().enumerate() {
        let pass = Pass::new(model, batch, 1.0, o.memory, optim.step << 32 | i as u64)?;
        pass.backward(&grads, &mut clock, |s| {
            let loss = s.chosen.f_sum(model.sum_kind())?.f_mul_scalar(-1.0 / answers as f64)?;
            let _ = sum.f_add_(&loss.f_detach()?)?;
            Ok(Loss::from(loss))
        })?;
    }
    Ok((sum.f_double_value(&[])?, read))
}
