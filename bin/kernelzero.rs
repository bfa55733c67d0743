//! The command-line program. See `kernelzero --help`.

use std::process::ExitCode;

use clap::Parser;
use kernelzero::cli::Cli;
use kernelzero::{exit, shown};

fn main() -> ExitCode {
    // A reader that went away (`| head`) ends the program quietly, as other tools do.
    // SAFETY: called before any thread exists, with constants.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // Silent unless asked: what commands say for people goes another way.
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("KERNELZERO_LOG") {
        let format = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
        format.with_thread_ids(true).with_writer(std::io::stderr).init();
    }
    match Cli::parse().execute() {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("kernelzero: {}", shown::lines(&format!("{error:#}")));
            exit::code_of(&error).into()
        }
    }
}
