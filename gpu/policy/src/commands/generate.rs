//! `generate`: answers to the prompts of a file, for evaluations.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use policy::generate::{self, Limits, Prompt};
use policy::sampling::Sampling;
use policy::{Error, Open, Policy, Result, data};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Arguments of `generate`.
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder.
    #[arg(long)]
    model: PathBuf,
    /// Lines of {"prompt"}, with an "id" if wanted.
    #[arg(long)]
    prompts: PathBuf,
    /// Answers per prompt.
    #[arg(long, default_value_t = 1)]
    samples: u64,
    /// 0 takes the best token.
    #[arg(long, default_value_t = 0.6)]
    temperature: f64,
    /// 0 is no limit.
    #[arg(long, default_value_t = 20)]
    top_k: usize,
    /// 1 is no limit.
    #[arg(long, default_value_t = 0.95)]
    top_p: f64,
    /// Tokens per answer.
    #[arg(long, default_value_t = 1024)]
    max_new_tokens: usize,
    /// Answers in flight.
    #[arg(long, default_value_t = 32)]
    max_batch: usize,
    /// Every sample's seed is made from this, the prompt's index and the sample's.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Lines of answers.
    #[arg(long)]
    out: PathBuf,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// f32 or bf16; by default what suits the device.
    #[arg(long)]
    dtype: Option<String>,
}

#[derive(Deserialize)]
struct Line {
    prompt: String,
    #[serde(default)]
    id: Option<Value>,
}

#[derive(Serialize)]
struct Answer<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a Value>,
    sample: usize,
    seed: u64,
    text: String,
    tokens: usize,
    finish: &'static str,
}

/// Samples and writes, some batches at a time.
pub fn run(args: &Args) -> Result<()> {
    let kind = args.dtype.as_deref().map(policy::policy::kind).transpose()?;
    let device = policy::policy::device(&args.device)?;
    let lines: Vec<Line> = data::read_lines(&args.prompts)?;
    let policy = Policy::open(&args.model, Open { device, kind, trainable: false })?;
    let limits = Limits { max_new_tokens: args.max_new_tokens, max_batch: args.max_batch };
    let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p };
    let io = |source| Error::Io { path: args.out.clone(), source };
    let mut out = std::io::BufWriter::new(std::fs::File::create(&args.out).map_err(io)?);
    let (began, mut tokens, mut written) = (Instant::now(), 0, 0);
    let share = (8 * args.max_batch).div_ceil(args.samples.max(1) as usize);
    for (n, part) in lines.chunks(share).enumerate() {
        let mut prompts = Vec::with_capacity(part.len());
        for (i, line) in part.iter().enumerate() {
            let seeds = (0..args.samples).map(|s| seed(args.seed, (n * share + i) as u64, s));
            let tokens = policy.text.encode_chat(&line.prompt)?;
            prompts.push(Prompt { tokens, seeds: seeds.collect() });
        }
        let stop = &policy.text.stop;
        let answers = generate::generate(&policy.model, stop, &prompts, &sampling, limits)?;
        for (i, list) in answers.into_iter().enumerate() {
            for (sample, a) in list.into_iter().enumerate() {
                tokens += a.tokens.len();
                written += 1;
                let line = Answer {
                    index: n * share + i,
                    id: part[i].id.as_ref(),
                    sample,
                    seed: prompts[i].seeds[sample],
                    text: policy.text.decode(&a.tokens)?,
                    tokens: a.tokens.len(),
                    finish: policy::reply::finish_word(a.finish),
                };
                serde_json::to_writer(&mut out, &line).map_err(|e| io(e.into()))?;
                out.write_all(b"\n").map_err(io)?;
            }
        }
        let rate = tokens as f64 / began.elapsed().as_secs_f64();
        eprintln!("{written} answers, {tokens} tokens, {rate:.0} tokens/s");
    }
    out.flush().map_err(io)
}

/// Mixes three numbers into a seed (SplitMix64's finisher after each).
fn seed(base: u64, prompt: u64, sample: u64) -> u64 {
    [prompt, sample].iter().fold(base, |state, &x| {
        let mut z = (state ^ x).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}
