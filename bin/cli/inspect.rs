//! Looking at runs.
#![allow(clippy::print_stdout)]

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use actors::attached::actor_name;
use anyhow::{Context, Result};
use clap::Args;
use events::event::{NAMES, Recorded};
use events::ids::{RunId, Seq};
use serde_json::{Value, json};

use super::Which;
use crate::daemon;
use crate::exit::{Exit, Usage};
use crate::{kept, runs, shown, summary};

/// `kernelzero log`.
#[derive(Debug, Args)]
pub struct LogArguments {
    #[command(flatten)]
    which: Which,
    /// Only events of these names, such as `StepTaken,GroupScored`.
    #[arg(long = "type", value_delimiter = ',')]
    names: Vec<String>,
    /// Only events of this actor, such as `trainer`.
    #[arg(long)]
    actor: Option<String>,
    /// From this position.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// At most this many.
    #[arg(long)]
    limit: Option<usize>,
    /// Go on with what is appended.
    #[arg(long)]
    follow: bool,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// One event on one line.
pub fn line(recorded: &Recorded) -> String {
    let detail = match serde_json::to_value(&recorded.event) {
        Ok(Value::Object(fields)) => {
            fields.into_iter().next().map(|(_, value)| brief(&value)).unwrap_or_default()
        }
        _ => String::new(),
    };
    let detail = shown::line(&detail);
    let cause = recorded.cause.map(|c| format!(" ← {c}")).unwrap_or_default();
    let (seq, actor, name) = (recorded.seq, actor_name(recorded.actor), recorded.event.name());
    format!("{seq:<7} {actor:<14} {name:<16}{cause}  {detail}")
}

/// The first levels of a value, short enough for a line.
fn brief(value: &Value) -> String {
    let Value::Object(fields) = value else { return value.to_string() };
    let field = |(name, value): (&String, &Value)| {
        let text = match value {
            Value::String(text) => text.replace('\n', " "),
            other => other.to_string(),
        };
        let cut: String = text.chars().take(40).collect();
        let dots = if cut.len() < text.len() { "…" } else { "" };
        format!("{name}={cut}{dots}")
    };
    fields.iter().map(field).collect::<Vec<_>>().join(" ")
}

/// `kernelzero log`.
pub fn log(home: &Path, arguments: &LogArguments) -> Result<Exit> {
    if let Some(unknown) = arguments.names.iter().find(|name| !NAMES.contains(&name.as_str())) {
        let text = format!("--type: there is no event `{unknown}`; there are {}", NAMES.join(", "));
        return Err(Usage(text).into());
    }
    // Without a fold: the log of the judge's service has another one than a run's.
    let home = runs::home_to_read(home)?;
    let log = runs::log_to_read(&home, runs::pick(&home, arguments.which.run)?)?;
    let mut next = Seq(arguments.from.max(1));
    let mut left = arguments.limit.unwrap_or(usize::MAX);
    let mut out = std::io::stdout().lock();
    loop {
        let mut failed = None;
        log.scan(next, |recorded, _| {
            next = Seq(recorded.seq.0 + 1);
            let name_fits = arguments.names.is_empty()
                || arguments.names.iter().any(|name| name == recorded.event.name());
            let actor_fits =
                arguments.actor.as_ref().is_none_or(|a| *a == actor_name(recorded.actor));
            if name_fits && actor_fits && left > 0 {
                left -= 1;
                let text = if arguments.json {
                    serde_json::to_string(recorded).unwrap_or_default()
                } else {
                    line(recorded)
                };
                failed = writeln!(out, "{text}").err();
            }
            if left == 0 || failed.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if let Some(error) = failed {
            return Err(error).context("writing to standard output");
        }
        if !arguments.follow || left == 0 {
            return Ok(Exit::Ok);
        }
        out.flush()?;
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// `kernelzero status`.
pub fn status(home: &Path, run: Option<RunId>, json: bool) -> Result<Exit> {
    let reader = runs::read(home, run)?;
    let live = daemon::about(&reader.folder);
    if json {
        let mut status = summary::status(&reader.state);
        status["daemon"] = match live {
            Some((pid, port)) => json!({ "pid": pid, "port": port }),
            None => Value::Null,
        };
        println!("{status:#}");
    } else {
        print!("{}", summary::text(&reader.state));
        match live {
            Some((pid, 0)) => println!("  daemon          process {pid}, starting"),
            Some((pid, port)) => {
                println!("  daemon          process {pid}, http://127.0.0.1:{port}")
            }
            None => println!("  daemon          none"),
        }
    }
    Ok(Exit::Ok)
}

/// `kernelzero replay`.
pub fn replay(home: &Path, run: Option<RunId>) -> Result<Exit> {
    for _ in 0..50 {
        let mut reader = runs::read(home, run)?;
        let (state, kept) = kept::refold(&reader.log)?;
        reader.state = state;
        let folded = summary::status(&reader.state);
        let Some((_, port)) = daemon::about(&reader.folder) else {
            print!("{}", summary::text(&reader.state));
            println!("  no daemon runs: nothing to compare with");
            return Ok(said_of(kept));
        };
        if port == 0 {
            // It is starting.
            std::thread::sleep(Duration::from_millis(200));
            continue;
        }
        let live = get(port, "/status")?;
        // The daemon may have gone on in between: look again until both are at the same event.
        if live["events"] == folded["events"] {
            print!("{}", summary::text(&reader.state));
            let equal = live == folded;
            println!("  live state      {}", if equal { "equal" } else { "DIFFERENT" });
            let exit = said_of(kept);
            return Ok(if equal { exit } else { Exit::No });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    anyhow::bail!("the daemon was never at the same event as the log: try again")
}

/// Says how the state that is kept beside the log compares.
fn said_of(kept: Option<bool>) -> Exit {
    match kept {
        None => Exit::Ok,
        Some(true) => {
            println!("  kept state      equal");
            Exit::Ok
        }
        Some(false) => {
            println!("  kept state      DIFFERENT: remove the file `state` in the run's folder");
            Exit::No
        }
    }
}

/// One GET from the daemon on loopback.
fn get(port: u16, path: &str) -> Result<Value> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))
        .with_context(|| format!("the daemon does not answer on port {port}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let (_, body) = reply.split_once("\r\n\r\n").context("the daemon's reply has no body")?;
    Ok(serde_json::from_str(body)?)
}
