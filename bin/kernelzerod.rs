//! The daemon. See `kernelzerod --help`.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use kernelzero::{daemon, exit};

/// Ends the process after a panic's message: an actor that is dead in a live daemon would swallow
/// its wake-ups for ever, while a restart goes on from the log.
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
}

fn main() -> ExitCode {
    abort_on_panic();
    let filter = tracing_subscriber::EnvFilter::try_from_env("KERNELZERO_LOG")
        .unwrap_or_else(|_| "info,actix_server=warn".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Colours are for people, and a file of them is read by programs.
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match daemon::serve(&daemon::Arguments::parse()) {
        Ok(exit) => exit.into(),
        Err(error) => {
            tracing::error!("{error:#}");
            exit::code_of(&error).into()
        }
    }
}
