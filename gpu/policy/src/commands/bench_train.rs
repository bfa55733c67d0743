//! `bench-train`: full-parameter training steps of a model of a given shape with random weights.

use policy::batch::{Batch, Sequence};
use policy::footprint;
use policy::gradients::Gradients;
use policy::loss::{Loss, Pass};
use policy::metrics::{Clock, Metrics, Work};
use policy::model::Model;
use policy::optim::{AdamW, Update};
use policy::params::Params;
use policy::policy::kind;
use policy::ranks::Ranks;
use policy::{Error, Result, shapes};
use serde_json::json;

use super::ranks::RankArgs;

/// Arguments of `bench-train`.
#[derive(clap::Args)]
pub struct Args {
    /// A known shape, such as qwen2-7b.
    #[arg(long, default_value = "qwen2-7b")]
    shape: String,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cuda")]
    device: String,
    #[command(flatten)]
    ranks: RankArgs,
    /// Compute type, f32 or bf16.
    #[arg(long, default_value = "bf16")]
    dtype: String,
    /// Tokens per pack.
    #[arg(long, default_value_t = 16384)]
    tokens: usize,
    /// Tokens of one sequence; packs hold as many as fit.
    #[arg(long, default_value_t = 4096)]
    sequence: usize,
    /// Packs per update and rank.
    #[arg(long, default_value_t = 1)]
    packs: usize,
    /// Updates, the first of which is not counted.
    #[arg(long, default_value_t = 4)]
    steps: usize,
    /// Learning rate.
    #[arg(long, default_value_t = 1e-6)]
    lr: f64,
    /// Layers of the shape, if not all: for machines with less memory.
    #[arg(long)]
    layers: Option<i64>,
}

impl Args {
    /// The sequences of pack `pack` of all ranks' together. Any tokens will do; every one but each
    /// sequence's first is predicted.
    fn rows(&self, pack: usize, vocab: i64) -> Vec<Sequence> {
        let token = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) as u32 % vocab as u32;
        let count = self.tokens / self.sequence;
        let row = |n: usize| {
            let tokens = (0..=self.sequence).map(|j| token(n * self.sequence + j)).collect();
            Sequence { tokens, prompt: 1 }
        };
        (pack * count..(pack + 1) * count).map(row).collect()
    }
}

/// Trains and prints one line of JSON for each step.
pub fn run(args: &Args) -> Result<()> {
    let mut config = shapes::named(&args.shape)?;
    config.layers = args.layers.unwrap_or(config.layers);
    if args.sequence == 0 || args.sequence > args.tokens || args.packs == 0 || args.steps < 2 {
        let text = "sequence must be 1 to tokens, packs at least 1, steps at least 2";
        return Err(Error::Request(text.into()));
    }
    let mut ranks = args.ranks.start(&args.device)?;
    // The same weights each time on the same kind of device: curves of loss can be compared.
    tch::manual_seed(0);
    let mut params = Params::noise(&config, kind(&args.dtype)?, ranks.device(), true)?;
    params.divide(ranks.rank(), ranks.world())?;
    ranks.broadcast(&params.flat)?;
    let model = Model::new(config, params)?;
    let mut optim = AdamW::new(&model.params)?;
    let resident = model.params.bytes() + optim.bytes();
    let memory = ranks.agree(footprint::spare(&model, args.tokens, resident))?;
    if ranks.rank() == 0 {
        eprintln!(
            "{}: {} parameters, {:.2} GB of weights, optimizer and gradient, {:.2} GB for the way back",
            args.shape,
            model.config.parameters(),
            resident as f64 / 1e9,
            memory as f64 / 1e9
        );
    }
    for step in 0..args.steps {
        let line = one(args, &model, &mut optim, memory, &mut ranks)?;
        if ranks.rank() == 0 {
            println_json(&json!({"step": step, "counted": step > 0, "ranks": ranks.world(),
                "loss": line.0, "grad_norm": line.1, "positions": line.2.positions,
                "metrics": line.3}));
        }
    }
    Ok(())
}

/// One update: loss, norm of the gradient, work and cost of all ranks.
fn one(
    args: &Args,
    model: &Model,
    optim: &mut AdamW,
    memory: u64,
    ranks: &mut Ranks,
) -> Result<(f64, f64, Work, Metrics)> {
    let (mut clock, mut work) = (Clock::new(model.device), Work::default());
    let own = passes(args, model, optim, memory, ranks, &mut clock, &mut work);
    let figures = own.map(|loss| {
        let [positions, pairs, answers] =
            [work.positions, work.pairs, work.answers].map(|n| n as f64);
        vec![loss, positions, pairs, answers]
    });
    let all = ranks.gather(figures)?;
    if ranks.world() > 1 {
        clock.lap("wait");
    }
    let sum = |i: usize| all.iter().map(|numbers| numbers[i]).sum::<f64>();
    let [positions, pairs, answers] = [1, 2, 3].map(|i| sum(i) as u64);
    let work = Work { positions, pairs, answers };
    let update = Update { lr: args.lr, weight_decay: 0.01, grad_clip: 1.0 };
    let norm = optim.apply_among(&model.params, &update, ranks, &mut clock)?;
    Ok((sum(0), norm, work, Metrics::new(clock, model, &work).among(ranks.world())))
}

/// This rank's packs there and back; answers their part of the loss.
fn passes(
    args: &Args,
    model: &Model,
    optim: &mut AdamW,
    memory: u64,
    ranks: &Ranks,
    clock: &mut Clock,
    work: &mut Work,
) -> Result<f64> {
    let mut losses = 0.0;
    for pack in 0..args.packs {
        let rows = args.rows(ranks.rank() * args.packs + pack, model.config.vocab);
        let batch = Batch::new(&rows.iter().collect::<Vec<_>>(), model.device)?;
        work.add(&batch);
        clock.lap("pack");
        let pass = Pass::new(model, &batch, 1.0, memory, 0)?;
        clock.lap("forward");
        let flat = optim.gradient()?;
        let grads = Gradients::new(model, &flat);
        let mut sum = tch::Tensor::f_zeros([], (model.sum_kind(), model.device))?;
        let share = -1.0 / (batch.tokens * args.packs * ranks.world()) as f64;
        pass.backward(&grads, clock, |s| {
            let loss = s.chosen.f_sum(model.sum_kind())?.f_mul_scalar(share)?;
            let _ = sum.f_add_(&loss.f_detach()?)?;
            Ok(Loss::from(loss))
        })?;
        losses += sum.f_double_value(&[])?;
    }
    Ok(losses)
}

#[allow(clippy::print_stdout)]
fn println_json(line: &serde_json::Value) {
    println!("{line}");
}
