//! `train-bpe`: a tokenizer from the texts of a training file.

use std::path::PathBuf;

use policy::data::{self, Example};

/// Arguments of `train-bpe`.
#[derive(clap::Args)]
pub struct Args {
    /// Lines of {"prompt", "completion"}.
    #[arg(long)]
    data: PathBuf,
    /// Tokens to learn, bytes and special tokens included.
    #[arg(long, default_value_t = 2048)]
    vocab: usize,
    /// Folder for tokenizer.json and tokenizer_config.json.
    #[arg(long)]
    out: PathBuf,
}

/// Learns and writes the tokenizer.
pub fn run(args: &Args) -> policy::Result<()> {
    let examples: Vec<Example> = data::read_lines(&args.data)?;
    let count = examples.len();
    let texts = examples.into_iter().flat_map(|e| [e.prompt, e.completion]);
    let size = policy::bpe::train(texts, args.vocab, &args.out)?;
    eprintln!("{count} examples, {size} tokens, in {}", args.out.display());
    Ok(())
}
