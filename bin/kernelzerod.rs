//! The daemon. See `kernelzerod --help`.

use std::process::ExitCode;

use clap::Parser;
use kernelzero::{daemon, exit, logging};

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
    logging::to_stderr();
    match daemon::serve(&daemon::Arguments::parse()) {
        Ok(exit) => exit.into(),
        Err(error) => {
            tracing::error!("{error:#}");
            exit::code_of(&error).into()
        }
    }
}
