//! `sft`: supervised fine-tuning, from a checkpoint or from nothing.

use std::path::PathBuf;
use std::time::Duration;

use policy::config::{Architecture, ModelConfig};
use policy::data::{self, Example};
use policy::lora::{Adapter, Lora, TARGETS, Target};
use policy::optim::{AdamW, Schedule, Update};
use policy::sft::{self, Options, Progress};
use policy::{Error, Open, Policy, Result, checkpoint};

/// Arguments of `sft`.
#[derive(clap::Args)]
pub struct Args {
    /// Lines of {"prompt", "completion"}.
    #[arg(long)]
    data: PathBuf,
    /// The same, to measure on.
    #[arg(long)]
    held_out: Option<PathBuf>,
    /// Folder for the trained model.
    #[arg(long)]
    out: PathBuf,
    /// Folder of the model to start from.
    #[arg(long, conflicts_with = "new", required_unless_present = "new")]
    init: Option<PathBuf>,
    /// Start from random weights.
    #[arg(long, requires = "tokenizer")]
    new: bool,
    /// Folder of the tokenizer of a new model.
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    lora: LoraArgs,
    /// Peak learning rate.
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    /// Decoupled weight decay, on matrices only.
    #[arg(long, default_value_t = 0.1)]
    weight_decay: f64,
    /// Largest global gradient norm; 0 is no limit.
    #[arg(long, default_value_t = 1.0)]
    grad_clip: f64,
    /// Decay of the optimizer's second moment.
    #[arg(long, default_value_t = 0.95)]
    beta2: f64,
    /// Keep the learning rate constant after the warm-up.
    #[arg(long)]
    constant: bool,
    /// Updates of linear warm-up.
    #[arg(long, default_value_t = 50)]
    warmup: u64,
    /// Tokens per update.
    #[arg(long, default_value_t = 16384)]
    batch_tokens: usize,
    /// Tokens per forward pass; by default those of an update, on a CPU at most 4096.
    #[arg(long)]
    micro_tokens: Option<usize>,
    /// Time at most.
    #[arg(long)]
    max_seconds: Option<f64>,
    /// Updates at most.
    #[arg(long)]
    steps: Option<u64>,
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Compute type, f32 or bf16; by default what suits the device.
    #[arg(long)]
    dtype: Option<String>,
    /// Type of the weights written.
    #[arg(long, default_value = "bf16")]
    save_dtype: String,
    /// Write the optimizer too.
    #[arg(long)]
    save_optimizer: bool,
    /// Seed of weights and order.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Updates between lines of the log.
    #[arg(long, default_value_t = 20)]
    log_every: u64,
    /// Updates between looks at the held-out lines.
    #[arg(long, default_value_t = 200)]
    eval_every: u64,
    /// Held-out lines looked at, at most.
    #[arg(long, default_value_t = 512)]
    eval_limit: usize,
}

/// An adapter.
#[derive(clap::Args)]
pub struct LoraArgs {
    /// Train an adapter of this rank instead of the weights; --out then holds the adapter alone.
    #[arg(long, requires = "init")]
    lora_r: Option<i64>,
    /// Its product is multiplied by alpha / r.
    #[arg(long, default_value_t = 32.0)]
    lora_alpha: f64,
    /// Share of its inputs that are left out.
    #[arg(long, default_value_t = 0.05)]
    lora_dropout: f64,
    /// The matrices that have one; by default all seven.
    #[arg(long, value_delimiter = ',')]
    lora_targets: Vec<String>,
}

impl LoraArgs {
    fn settings(&self) -> Result<Option<Lora>> {
        let Some(r) = self.lora_r else { return Ok(None) };
        let one = |word: &String| {
            let known = || {
                let names = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj";
                Error::Request(format!("target `{word}`: known are {names}"))
            };
            serde_json::from_value::<Target>(word.as_str().into()).map_err(|_| known())
        };
        let targets = match self.lora_targets.is_empty() {
            true => TARGETS.to_vec(),
            false => self.lora_targets.iter().map(one).collect::<Result<_>>()?,
        };
        Ok(Some(Lora { r, alpha: self.lora_alpha, dropout: self.lora_dropout, targets }))
    }
}

/// The shape of a new model.
#[derive(clap::Args)]
pub struct Shape {
    /// Transformer layers.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(i64).range(1..))]
    layers: i64,
    /// Width of the residual stream.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(i64).range(1..))]
    hidden: i64,
    /// Query heads.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(i64).range(1..))]
    heads: i64,
    /// Key heads.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(i64).range(1..))]
    kv_heads: i64,
    /// Width inside the feed-forward block.
    #[arg(long, default_value_t = 704, value_parser = clap::value_parser!(i64).range(1..))]
    ffn: i64,
    /// Longest sequence.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(i64).range(1..))]
    context: i64,
}

/// Trains and saves.
pub fn run(args: &Args) -> Result<()> {
    let kind = args.dtype.as_deref().map(policy::policy::kind).transpose()?;
    let save = policy::policy::kind(&args.save_dtype)?;
    let device = policy::policy::device(&args.device)?;
    let lora = args.lora.settings()?;
    let open = Open { device, kind, trainable: lora.is_none() };
    let mut policy = match (&args.init, &args.tokenizer) {
        (Some(dir), _) => Policy::open(dir, open)?,
        (None, Some(dir)) => {
            Policy::random(dir, |vocab| config(&args.shape, vocab), args.seed, open)?
        }
        (None, None) => return Err(Error::Request("give --init or --new --tokenizer".into())),
    };
    if let Some(lora) = lora {
        policy.model.adapter = Some(Adapter::new(&policy.model, lora, args.seed)?);
    }
    let context = policy.model.config.context as usize;
    let load = |path: &PathBuf, limit: usize| -> Result<_> {
        let mut examples: Vec<Example> = data::read_lines(path)?;
        examples.truncate(limit);
        let (sequences, dropped) = data::sequences(&policy.text, &examples, context)?;
        let answers: usize = sequences.iter().map(|s| s.answer()).sum();
        let tokens: usize = sequences.iter().map(|s| s.tokens.len()).sum();
        eprintln!(
            "{}: {} examples, {tokens} tokens, {answers} of them answers; {dropped} too long",
            path.display(),
            sequences.len()
        );
        Ok(sequences)
    };
    let train = load(&args.data, usize::MAX)?;
    let held_out = args.held_out.as_ref().map(|p| load(p, args.eval_limit)).transpose()?;
    eprintln!("{} parameters on {}", policy.model.config.parameters(), args.device);
    let mut optim = AdamW::new(policy.model.trained())?;
    optim.beta2 = args.beta2;
    let mut options = options(args, device == tch::Device::Cpu);
    let resident = policy.model.params.bytes() + optim.bytes();
    options.memory = policy::footprint::spare(&policy.model, options.micro_tokens, resident)?;
    let held_out = held_out.unwrap_or_default();
    sft::train(&mut policy.model, &mut optim, &train, &held_out, &options, print)?;
    checkpoint::save(&policy, Some(&optim).filter(|_| args.save_optimizer), &args.out, save)?;
    eprintln!("saved in {}", args.out.display());
    Ok(())
}

fn options(args: &Args, cpu: bool) -> Options {
    let most = if cpu { args.batch_tokens.min(4096) } else { args.batch_tokens };
    Options {
        update: Update { lr: args.lr, weight_decay: args.weight_decay, grad_clip: args.grad_clip },
        schedule: if args.constant { Schedule::Constant } else { Schedule::Cosine },
        warmup: args.warmup,
        batch_tokens: args.batch_tokens,
        micro_tokens: args.micro_tokens.unwrap_or(most),
        memory: policy::footprint::HOST_KEPT,
        steps: args.steps,
        time: args.max_seconds.map(Duration::from_secs_f64),
        seed: args.seed,
        log_every: args.log_every.max(1),
        eval_every: args.eval_every.max(1),
    }
}

fn config(s: &Shape, vocab: i64) -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Llama,
        vocab,
        hidden: s.hidden,
        ffn: s.ffn,
        layers: s.layers,
        heads: s.heads,
        kv_heads: s.kv_heads,
        head_dim: s.hidden / s.heads,
        context: s.context,
        rope_theta: 10_000.0,
        rope_scaling: None,
        norm_eps: 1e-5,
        tied: true,
        eos: Vec::new(),
    }
}

fn print(p: Progress) {
    let held_out = p.held_out.map_or(String::new(), |h| {
        format!("  held-out loss {:.4}, token accuracy {:.4}", h.loss, h.accuracy)
    });
    eprintln!(
        "{:7.1} s  step {:5}  epoch {:2}  loss {:.4}  norm {:.2}  lr {:.2e}  {:.0} tokens/s{held_out}",
        p.seconds, p.step, p.epoch, p.loss, p.grad_norm, p.lr, p.tokens_per_second
    );
}
