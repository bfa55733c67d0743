//! `bench-train`: full-parameter training steps of a model of a given shape with random weights.

use policy::batch::{Batch, Sequence};
use policy::footprint;
use policy::gradients::Gradients;
use policy::loss::{Loss, Pass};
use policy::metrics::{Clock, Metrics, Work};
use policy::model::Model;
use policy::optim::{AdamW, Update};
use policy::params::Params;
use policy::policy::{device, kind};
use policy::{Error, Result, shapes};
use serde_json::json;

/// Arguments of `bench-train`.
#[derive(clap::Args)]
pub struct Args {
    /// A known shape, such as qwen2-7b.
    #[arg(long, default_value = "qwen2-7b")]
    shape: String,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Compute type, f32 or bf16.
    #[arg(long, default_value = "bf16")]
    dtype: String,
    /// Tokens per pack.
    #[arg(long, default_value_t = 16384)]
    tokens: usize,
    /// Tokens of one sequence; packs hold as many as fit.
    #[arg(long, default_value_t = 4096)]
    sequence: usize,
    /// Packs per update.
    #[arg(long, default_value_t = 1)]
    packs: usize,
    /// Updates, the first of which is not counted.
    #[arg(long, default_value_t = 4)]
    steps: usize,
    /// Layers of the shape, if not all: for machines with less memory.
    #[arg(long)]
    layers: Option<i64>,
}

/// Trains and prints one line of JSON for each step.
pub fn run(args: &Args) -> Result<()> {
    let mut config = shapes::named(&args.shape)?;
    config.layers = args.layers.unwrap_or(config.layers);
    if args.sequence == 0 || args.sequence > args.tokens || args.packs == 0 || args.steps < 2 {
        let text = "sequence must be 1 to tokens, packs at least 1, steps at least 2";
        return Err(Error::Request(text.into()));
    }
    let params = Params::noise(&config, kind(&args.dtype)?, device(&args.device)?, true)?;
    let model = Model::new(config, params)?;
    let mut optim = AdamW::new(&model.params)?;
    let resident = model.params.bytes() + optim.bytes();
    let memory = footprint::spare(&model, args.tokens, resident)?;
    let c = &model.config;
    eprintln!(
        "{}: {} parameters, {:.2} GB of weights, optimizer and gradient, {:.2} GB for the way back",
        args.shape,
        c.parameters(),
        resident as f64 / 1e9,
        memory as f64 / 1e9
    );
    // Any tokens will do; every one but each sequence's first is predicted.
    let token = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) as u32 % c.vocab as u32;
    let row = |n: usize| {
        let tokens = (0..=args.sequence).map(|j| token(n * args.sequence + j)).collect();
        Sequence { tokens, prompt: 1 }
    };
    let rows: Vec<Sequence> = (0..args.tokens / args.sequence).map(row).collect();
    let rows: Vec<&Sequence> = rows.iter().collect();
    let update = Update { lr: 1e-6, weight_decay: 0.01, grad_clip: 1.0 };
    for step in 0..args.steps {
        let (mut clock, mut work, mut losses) = (Clock::new(model.device), Work::default(), 0.0);
        for _ in 0..args.packs {
            let batch = Batch::new(&rows, model.device)?;
            work.add(&batch);
            clock.lap("pack");
            let pass = Pass::new(&model, &batch, 1.0, memory, 0)?;
            clock.lap("forward");
            let flat = optim.gradient()?;
            let grads = Gradients::new(&model, &flat);
            let mut sum = tch::Tensor::f_zeros([], (model.sum_kind(), model.device))?;
            let share = -1.0 / (batch.tokens * args.packs) as f64;
            pass.backward(&grads, &mut clock, |s| {
                let loss = s.chosen.f_sum(model.sum_kind())?.f_mul_scalar(share)?;
                let _ = sum.f_add_(&loss.f_detach()?)?;
                Ok(Loss::from(loss))
            })?;
            losses += sum.f_double_value(&[])?;
        }
        let norm = optim.apply(&model.params, &update)?;
        clock.lap("optimizer");
        let metrics = Metrics::new(clock, &model, &work);
        println_json(&json!({"step": step, "counted": step > 0, "loss": losses,
            "grad_norm": norm, "metrics": metrics, "positions": work.positions}));
    }
    Ok(())
}

#[allow(clippy::print_stdout)]
fn println_json(line: &serde_json::Value) {
    println!("{line}");
}
