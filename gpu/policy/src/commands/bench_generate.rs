//! `bench-generate`: how fast a device decodes, beside what its memory could deliver.

use std::time::Instant;

use policy::generate::backend::{Backend, Row, Sequence};
use policy::generate::blocks::needed;
use policy::generate::{CudaBackend, Limits, Listener, Plan, Prompt, Sample, Stops, schedule};
use policy::model::Model;
use policy::sampling::Sampling;
use policy::{Error, Result, libtorch, policy as open};
use serde_json::json;
use tch::{Device, Kind};

use super::random;

/// Arguments of `bench-generate`.
#[derive(clap::Args)]
pub struct Args {
    /// tiny, middle or qwen2-7b.
    #[arg(long, default_value = "qwen2-7b")]
    shape: String,
    /// cuda or cuda:N.
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Rows of a step, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    batch: Vec<usize>,
    /// Tokens before the first that is drawn.
    #[arg(long, default_value_t = 2048)]
    prompt: usize,
    /// Tokens drawn per row.
    #[arg(long, default_value_t = 128)]
    new: usize,
    /// Also so many samples of mixed length, with continuous batching.
    #[arg(long)]
    mixed: Option<usize>,
    /// Samples of mixed length in flight.
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    /// Bytes per second that the device's memory delivers, as a large copy shows.
    #[arg(long, default_value_t = 4.3e12)]
    bandwidth: f64,
}

const SAMPLING: Sampling = Sampling { temperature: 0.6, top_k: 20, top_p: 0.95 };

/// One JSON object a line on standard output.
pub fn run(args: &Args) -> Result<()> {
    let device = open::device(&args.device)?;
    if device == Device::Cpu {
        return Err(Error::Request("bench-generate needs a CUDA device".into()));
    }
    if args.new < 8 || args.prompt < 2 || args.batch.contains(&0) {
        return Err(Error::Request("measure 8 new tokens or more, of rows with a prompt".into()));
    }
    tch::manual_seed(1);
    let began = Instant::now();
    let model = random::model(random::shape(&args.shape)?, 0.02, Kind::BFloat16, device)?;
    eprintln!("{} parameters in {:.1?}", model.config.parameters(), began.elapsed());
    let _guard = tch::no_grad_guard();
    for &batch in &args.batch {
        line(&steady(args, &model, batch)?);
    }
    if let Some(samples) = args.mixed {
        line(&mixed(args, &model, samples)?);
    }
    Ok(())
}

#[allow(clippy::print_stdout)]
fn line(value: &serde_json::Value) {
    println!("{value}");
}

fn tokens(count: usize, of: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|t| ((t * 7919 + of * 104_729) % vocab) as u32).collect()
}

/// `batch` rows in step, all with the same number of tokens before them.
///
/// The least a step must read is every weight but the embedding (of which it reads a row per
/// sample) once, and the keys and values of every row's tokens once; that over the bandwidth is
/// the roofline. Where the products of a large batch take longer than their weights, the true
/// bound lies lower.
fn steady(args: &Args, model: &Model, batch: usize) -> Result<serde_json::Value> {
    let c = &model.config;
    let vocab = c.vocab as usize;
    let prompts: Vec<Prompt> = (0..batch)
        .map(|i| Prompt { tokens: tokens(args.prompt, i, vocab), seeds: vec![i as u64] })
        .collect();
    let limits = Limits { max_new_tokens: args.new + 1, max_batch: batch };
    let plan = Plan::new(&prompts, limits, c.context as usize);
    let mut backend = CudaBackend::new(model, SAMPLING, &plan)?;
    let capacity = backend.capacity();
    let per_row = needed(args.prompt + args.new);
    if per_row * batch > capacity.blocks {
        let (tokens, room) = (per_row * batch * 16, capacity.blocks * 16);
        return Err(Error::DoesNotFit { tokens, room });
    }
    let table = |i: usize| ((i * per_row) as u32..((i + 1) * per_row) as u32).collect::<Vec<_>>();
    let tables: Vec<Vec<u32>> = (0..batch).map(table).collect();
    let began = Instant::now();
    for (part, tables) in prompts.chunks(4).zip(tables.chunks(4)) {
        let one = |(p, t): (&Prompt, &Vec<u32>)| Sequence {
            tokens: p.tokens[..args.prompt - 1].to_vec(),
            table: t[..needed(args.prompt - 1)].to_vec(),
        };
        let sequences: Vec<Sequence> = part.iter().zip(tables).map(one).collect();
        backend.prefill(&sequences)?;
    }
    tch::Cuda::synchronize(ordinal(model));
    let prefill = began.elapsed().as_secs_f64();
    // The first steps load code and record graphs.
    let warm = args.new / 8 + 2;
    let mut began = Instant::now();
    for n in 0..args.new {
        let row = |i: usize| Row {
            slot: i as u32,
            token: prompts[i].tokens.last().copied().filter(|_| n == 0),
            position: args.prompt - 1 + n,
            table: &tables[i],
            seed: i as u64,
            index: n,
        };
        backend.launch(&(0..batch).map(row).collect::<Vec<_>>())?;
        if n > 0 {
            backend.collect()?;
        }
        if n == warm {
            began = Instant::now();
        }
    }
    backend.collect()?;
    let steps = (args.new - warm) as f64;
    let step = began.elapsed().as_secs_f64() / steps;
    let weights = 2 * (c.parameters() - if c.tied { 0 } else { c.vocab * c.hidden });
    let per_token = 4 * c.layers * c.kv_heads * c.head_dim;
    // The mean context of the steps measured.
    let context = args.prompt as f64 + (args.new + warm) as f64 / 2.0;
    let bytes = weights as f64 + batch as f64 * context * per_token as f64;
    Ok(json!({
        "batch": batch, "prompt": args.prompt, "new": args.new,
        "tokens_per_second": batch as f64 / step, "milliseconds_per_step": step * 1e3,
        "roofline_share": bytes / args.bandwidth / step,
        "bytes_per_step": bytes, "bandwidth": args.bandwidth,
        "prefill_tokens_per_second": (batch * (args.prompt - 1)) as f64 / prefill,
        "memory": used(model)?, "cache": backend.cache_bytes(),
    }))
}

fn ordinal(model: &Model) -> i64 {
    if let Device::Cuda(n) = model.device { n as i64 } else { 0 }
}

/// Bytes of the device that are in use.
fn used(model: &Model) -> Result<usize> {
    let (free, total) = libtorch::memory(model.device)?;
    Ok(total - free)
}

struct Counted(usize);

impl Listener for Counted {
    fn finished(&mut self, _: usize, _: usize, sample: Sample) -> Result<()> {
        self.0 += sample.tokens.len();
        Ok(())
    }
}

/// Samples of mixed length in groups of 5: prompts of 512 to 2,048 tokens, the answers of a group
/// between 64 and 2,048, admitted as others end.
fn mixed(args: &Args, model: &Model, samples: usize) -> Result<serde_json::Value> {
    let c = &model.config;
    let mut tokens_in_all = 0;
    let (mut prompts, mut rooms) = (Vec::new(), Vec::new());
    for group in 0..samples.div_ceil(5) {
        let length = 512 + group * 1031 % 1537;
        let seeds = (0..5.min(samples - group * 5)).map(|i| (group * 5 + i) as u64).collect();
        prompts.push(Prompt { tokens: tokens(length, group, c.vocab as usize), seeds });
        rooms.push(64 + group * 733 % 1985);
        tokens_in_all += length;
    }
    let limits = Limits { max_new_tokens: 2048, max_batch: args.in_flight };
    let mut plan = Plan::new(&prompts, limits, c.context as usize);
    plan.room = rooms;
    let mut backend = CudaBackend::new(model, SAMPLING, &plan)?;
    let (mut counted, began) = (Counted(0), Instant::now());
    schedule(&mut backend, &Stops::default(), &prompts, &plan, &mut counted)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(json!({
        "mixed": samples, "in_flight": args.in_flight, "prompt_tokens": tokens_in_all,
        "tokens": counted.0, "seconds": seconds,
        "tokens_per_second": counted.0 as f64 / seconds,
        "memory": used(model)?, "cache": backend.cache_bytes(),
    }))
}
