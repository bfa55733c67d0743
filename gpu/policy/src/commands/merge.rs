//! `merge`: a model with an adapter in its weights, as a folder of its own.

use std::path::PathBuf;

use policy::policy::kind;
use policy::{Open, Policy, Result, checkpoint, lora_file};

/// Arguments of `merge`.
#[derive(clap::Args)]
pub struct Args {
    /// Hugging Face folder or GGUF file of the base.
    #[arg(long)]
    model: PathBuf,
    /// Folder of the adapter; without it the base is written as it is, out of a GGUF file too.
    #[arg(long)]
    adapter: Option<PathBuf>,
    /// Folder for the result.
    #[arg(long)]
    out: PathBuf,
    /// Type of the weights written.
    #[arg(long, default_value = "bf16")]
    dtype: String,
}

/// Merges and writes.
pub fn run(args: &Args) -> Result<()> {
    let open = Open { device: tch::Device::Cpu, kind: None, trainable: false };
    let mut policy = Policy::open(&args.model, open)?;
    if let Some(dir) = &args.adapter {
        policy.model.adapter = Some(lora_file::load(&policy.model, dir)?);
        policy.model.merge()?;
    }
    checkpoint::save_model(&policy, None, &args.out, kind(&args.dtype)?)
}
