//! `plan`: what a training needs of memory, and whether it fits.

use std::path::PathBuf;

use policy::config::ModelConfig;
use policy::planner::{self, Job, Machine, Phase, Place, Plan};
use policy::{Error, Result, shapes};

/// Arguments of `plan`.
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder; only its config.json is read.
    #[arg(long, conflicts_with = "shape", required_unless_present = "shape")]
    model: Option<PathBuf>,
    /// A known shape instead, such as qwen2-7b.
    #[arg(long)]
    shape: Option<String>,
    /// GPUs, all alike.
    #[arg(long, default_value_t = 1)]
    gpus: u64,
    /// Memory of each, such as 141GB or 80GiB.
    #[arg(long, value_parser = bytes)]
    memory: u64,
    /// The host's memory that may be used.
    #[arg(long, value_parser = bytes, default_value = "64GB")]
    host: u64,
    /// Tokens of a pack.
    #[arg(long, default_value_t = 16384)]
    tokens: i64,
    /// Plan the sampling between updates instead.
    #[arg(long)]
    rollout: bool,
    /// No frozen reference is scored.
    #[arg(long)]
    no_reference: bool,
    /// Train an adapter of this rank instead of all weights.
    #[arg(long)]
    lora: Option<i64>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// A number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB.
fn bytes(text: &str) -> std::result::Result<u64, String> {
    const UNITS: [(&str, f64); 8] = [
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
    ];
    let known = UNITS.into_iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, size)));
    let (number, size) = known.unwrap_or((text.strip_suffix('B').unwrap_or(text), 1.0));
    match number.trim().parse::<f64>() {
        Ok(n) if n.is_finite() && n >= 0.0 => Ok((n * size) as u64),
        _ => Err("write a number and a unit, such as 141GB or 80GiB".into()),
    }
}

/// Plans and prints.
pub fn run(args: &Args) -> Result<()> {
    let config = match (&args.model, &args.shape) {
        (Some(dir), _) => ModelConfig::read(dir)?,
        (None, Some(name)) => shapes::named(name)?,
        (None, None) => return Err(Error::Request("give --model or --shape".into())),
    };
    let tokens = args.tokens;
    let phase = if args.rollout { Phase::Rollout } else { Phase::Update { tokens } };
    let job = Job { phase, reference: !args.no_reference, lora: args.lora };
    let machine = Machine { gpus: args.gpus, memory: args.memory, host: args.host };
    let plan = planner::plan(&config, &machine, &job)?;
    if args.json {
        line(&serde_json::to_string(&plan).map_err(|e| Error::Request(e.to_string()))?);
    } else {
        print(&plan);
    }
    Ok(())
}

fn print(plan: &Plan) {
    let gb = |bytes: u64| bytes as f64 / 1e9;
    for part in &plan.parts {
        let place = match part.place {
            Place::Gpu => "on each GPU",
            Place::Sharded => "on each GPU, a share",
            Place::Host => "in the host's memory",
        };
        line(&format!("{:<24}{:>8.1} GB  {place}", part.name, gb(part.bytes)));
    }
    line(&format!("{:<24}{:>8.1} GB  of each GPU, reserve included", "peak", gb(plan.peak)));
    line(&format!("{:<24}{:>8.1} GB", "left", gb(plan.left)));
    if let Some([attention, whole]) = plan.kept_layers {
        let text = format!("{attention} layers keep attention, {whole} of them everything");
        line(&format!("{:<24}{text}", "recomputation"));
    }
    if let Some(tokens) = plan.cached_tokens {
        line(&format!("{:<24}{tokens} tokens of keys and values", "cache"));
    }
}

#[allow(clippy::print_stdout)]
fn line(text: &str) {
    println!("{text}");
}
