//! What programs that run for long say on stderr.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// From now on `KERNELZERO_LOG` says what is logged, else what people should know. Who logs already goes
/// on as it is.
pub fn to_stderr() {
    let filter = EnvFilter::try_from_env("KERNELZERO_LOG")
        .unwrap_or_else(|_| "info,actix_server=warn".into());
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Colours are for people, and a file of them is read by programs.
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
}
