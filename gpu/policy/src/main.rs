//! `kernelzero-engine`: the language-model engine as a process of its own.

mod commands;

use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The language-model engine of KernelZero.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The same step on the same kind of GPU gives the same bytes: attention's way back adds in a fixed
    /// order, which takes more time and memory.
    #[arg(long, global = true)]
    deterministic: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer JSON lines from stdin on stdout until stdin closes.
    Serve(commands::ranks::RankArgs),
    /// Train on prompts and completions.
    Sft(Box<commands::sft::Args>),
    /// Learn a tokenizer from the texts of a training file.
    TrainBpe(commands::train_bpe::Args),
    /// Sample answers to the prompts of a file.
    Generate(commands::generate::Args),
    /// Measure decoding on a GPU with random weights.
    BenchGenerate(commands::bench_generate::Args),
    /// Compare every CUDA kernel with float64, and decoding with the model's forward, on a GPU.
    CheckKernels(commands::check_kernels::Args),
    /// Write a model with an adapter merged into its weights.
    Merge(commands::merge::Args),
    /// Measure training steps of a model of a given shape with random weights.
    BenchTrain(commands::bench_train::Args),
    /// Say what a training needs of memory and whether it fits, before it starts.
    Plan(commands::plan::Args),
    /// Say whether folders hold models that can be loaded: config, tokenizer and every weight.
    Check {
        /// Hugging Face folders.
        #[arg(required = true)]
        models: Vec<std::path::PathBuf>,
    },
}

fn main() -> ExitCode {
    settle_environment();
    keep_memory();
    let cli = Cli::parse();
    if cli.deterministic {
        policy::libtorch::deterministic();
    }
    let result = match cli.command {
        Command::Serve(ranks) => serve(&ranks),
        Command::Sft(args) => commands::sft::run(&args),
        Command::TrainBpe(args) => commands::train_bpe::run(&args),
        Command::Generate(args) => commands::generate::run(&args),
        Command::BenchGenerate(args) => commands::bench_generate::run(&args),
        Command::CheckKernels(args) => commands::check_kernels::run(&args),

        Command::Merge(args) => commands::merge::run(&args),
        Command::BenchTrain(args) => commands::bench_train::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Check { models } => check(&models),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("kernelzero-engine: {}: {e}", e.kind());
            ExitCode::FAILURE
        }
    }
}

fn check(models: &[std::path::PathBuf]) -> policy::Result<()> {
    let open = policy::Open { device: tch::Device::Cpu, kind: None, trainable: false };
    models.iter().try_for_each(|model| policy::Policy::open(model, open).map(drop))
}

/// OpenMP's threads spin while they wait for each other. Where cores are shared with a judge or
/// a compiler, that makes every small operation wait for a time slice (measured: five times
/// slower). CUDA's pool of memory falls to pieces unless its segments may grow. NVLink's multicast
/// is not to be had in every container, and NCCL fails there instead of doing without. All are read
/// before `main`, so this starts the program anew, once.
fn settle_environment() {
    const SETTINGS: [(&str, &str); 3] = [
        ("OMP_WAIT_POLICY", "passive"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
        ("NCCL_NVLS_ENABLE", "0"),
    ];
    let missing = || SETTINGS.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
    if missing().next().is_some()
        && let Ok(program) = std::env::current_exe()
    {
        // On success this does not return; on failure we are merely slower.
        let _ = std::process::Command::new(program)
            .args(std::env::args_os().skip(1))
            .envs(missing())
            .exec();
    }
}

/// Activations come and go many times a second; handing each back to the system would mean
/// clearing its pages anew every time.
fn keep_memory() {
    // SAFETY: both calls only set numbers of the allocator, before any thread exists.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
}

fn serve(args: &commands::ranks::RankArgs) -> policy::Result<()> {
    // The kernel ends us with our parent; the end of stdin says the same a little later.
    // SAFETY: this call takes a signal number and touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let ranks = args.start("cpu")?;
    let follows = ranks.rank() > 0;
    let mut server = policy::serve::Server::among(ranks, args.ranks.first().cloned());
    if follows {
        return server.follow();
    }
    let (input, output) = (BufReader::new(std::io::stdin()), std::io::stdout().lock());
    server.run(input, std::io::BufWriter::new(output))
}
