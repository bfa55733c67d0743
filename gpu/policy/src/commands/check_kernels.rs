//! `check-kernels`: on a GPU, every kernel against float64, and decoding against the model's forward.

use std::path::PathBuf;

use kernels::{Gpu, check};
use policy::generate::{Limits, Prompt, generate};
use policy::model::Model;
use policy::params::Params;
use policy::sampling::Sampling;
use policy::{Error, Open, Policy, Result, policy as open};
use tch::{Device, Kind, Tensor};

use super::random;

/// Arguments of `check-kernels`.
#[derive(clap::Args)]
pub struct Args {
    /// cuda or cuda:N.
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Of the inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folders of trained models to decode with, beside models with random weights.
    #[arg(long)]
    model: Vec<PathBuf>,
}

/// The mean difference that bfloat16 may leave between decoding and one forward pass, in nats.
const MEAN: f64 = 0.01;
/// Random weights may have flatter or steeper scores than any trained ones: there decoding is allowed this
/// many times the difference between the same forward pass in bfloat16 and in float32.
const ROUNDING: f64 = 1.5;

/// Checks, one line each; the first that fails is the error.
pub fn run(args: &Args) -> Result<()> {
    let device = open::device(&args.device)?;
    let Device::Cuda(ordinal) = device else {
        return Err(Error::Request("the kernels need a CUDA device".into()));
    };
    for r in check::all(&Gpu::open(ordinal)?, args.seed)? {
        eprintln!("{:16} {:3} cases  worst {:.1e}", r.kernel, r.cases, r.worst);
    }
    tch::manual_seed(args.seed as i64);
    for (name, std) in [("tiny", 0.08), ("middle", 0.04)] {
        let model = random::model(random::shape(name)?, std, Kind::BFloat16, device)?;
        parity(name, &model, true)?;
    }
    for dir in &args.model {
        let opened =
            Policy::open(dir, Open { device, kind: Some(Kind::BFloat16), trainable: false })?;
        parity(&dir.display().to_string(), &opened.model, false)?;
    }
    Ok(())
}

/// The same weights in float32.
fn widened(model: &Model) -> Result<Model> {
    let params = Params::noise(&model.config, Kind::Float, model.device, false)?;
    params.flat.shallow_clone().f_copy_(&model.params.flat)?;
    Model::new(model.config.clone(), params)
}

/// Samples with prompts of many lengths, then reads prompt and answer at once and compares the
/// log-probabilities.
fn parity(name: &str, model: &Model, random: bool) -> Result<()> {
    let wide = widened(model)?;
    let vocab = model.config.vocab as u32;
    let prompt = |i: u32| {
        let length = [1, 2, 15, 16, 17, 33, 250, 257, 300, 900][i as usize % 10];
        let tokens = (0..length).map(|t| (t * 7919 + i * 104_729) % vocab).collect();
        Prompt { tokens, seeds: (0..1 + u64::from(i % 3)).collect() }
    };
    let prompts: Vec<Prompt> = (0..10).map(prompt).collect();
    let sampling = Sampling { temperature: 0.8, top_k: 0, top_p: 1.0 };
    let limits = Limits { max_new_tokens: 70, max_batch: 12 };
    let samples = generate(model, &[], &prompts, &sampling, limits)?;
    let alone = Limits { max_batch: 1, ..limits };
    let (mut sum, mut rounding, mut worst, mut count, mut same) = (0.0, 0.0, 0.0_f64, 0, 0);
    for (p, list) in prompts.iter().zip(&samples) {
        for s in list {
            let exact = forward(&wide, &p.tokens, &s.tokens, 0.8)?;
            let at_once = forward(model, &p.tokens, &s.tokens, 0.8)?;
            for ((a, b), exact) in at_once.iter().zip(&s.logprobs).zip(&exact) {
                let apart = f64::from(a - b).abs();
                rounding += f64::from(a - exact).abs();
                sum += apart;
                worst = worst.max(apart);
                count += 1;
            }
        }
    }
    for (p, list) in prompts.iter().zip(&samples).take(5) {
        let one = Prompt { tokens: p.tokens.clone(), seeds: vec![p.seeds[0]] };
        let again = generate(model, &[], &[one], &sampling, alone)?;
        let equal = again[0][0].tokens.iter().zip(&list[0].tokens).take_while(|(a, b)| a == b);
        same += equal.count();
    }
    let (mean, rounding) = (sum / f64::from(count), rounding / f64::from(count));
    eprintln!(
        "{name}: {count} log-probs beside one forward pass: mean {mean:.5}, worst {worst:.4}; that pass \
         beside float32: mean {rounding:.5}; alone, {same} of 350 tokens until the first other"
    );
    let limit = if random { MEAN.max(ROUNDING * rounding) } else { MEAN };
    if mean.is_nan() || mean > limit {
        let problem = format!("decoding and the forward pass differ by {mean} in the mean");
        return Err(kernels::Error::Wrong { kernel: "generate", problem }.into());
    }
    Ok(())
}

fn forward(model: &Model, prompt: &[u32], answer: &[u32], temperature: f64) -> Result<Vec<f32>> {
    let _guard = tch::no_grad_guard();
    let all: Vec<i64> = prompt.iter().chain(answer).map(|&t| i64::from(t)).collect();
    let ids = Tensor::f_from_slice(&all)?.f_view([1, -1])?.f_to_device(model.device)?;
    let (first, count) = (prompt.len() as i64, answer.len() as i64);
    let hidden = model.hidden(&ids)?.f_squeeze_dim(0)?.f_narrow(0, first - 1, count)?;
    let scores = model.logits(&hidden)?.f_div_scalar(temperature)?;
    let scores = scores.f_log_softmax(-1, Kind::Float)?;
    let answer = ids.f_squeeze_dim(0)?.f_narrow(0, first, count)?.f_unsqueeze(1)?;
    let picked = scores.f_gather(1, &answer, false)?.f_squeeze_dim(1)?.f_to_device(Device::Cpu)?;
    let mut out = vec![0.0; answer.size()[0] as usize];
    picked.f_copy_data(&mut out, count as usize)?;
    Ok(out)
}
