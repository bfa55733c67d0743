//! The command-line program. See `kernelzero --help`.

use std::process::ExitCode;

use clap::Parser;
use kernelzero::cli::Cli;
use kernelzero::exit;

fn main() -> ExitCode {
    // A reader that went away (`| head`) ends the program quietly, as other tools do.
    // SAFETY: called before any thread exists, with constants.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    match Cli::parse().execute() {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("kernelzero: {error:#}");
            exit::code_of(&error).into()
        }
    }
}
