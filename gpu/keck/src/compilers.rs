//! Running compilers in a worker, and whose fault it is when they fail.

use std::time::Duration;

use events::outcome::{Failure, FailureKind};
use serde_json::json;

use crate::answer::Stop;
use crate::blame;
use crate::compile::Extension;
use crate::error::Error;
use crate::fault;
use crate::headers;
use crate::judge::Judge;
use crate::session::{Answer, Reply, Session};
use crate::toolchain::Toolchain;

/// Compilers get this many times their processor time by the clock on the wall.
const STARVED: u32 = 10;
/// What the linker's verdict starts with.
const UNDEFINED: &str = "undefined symbol: ";

impl Judge {
    pub(crate) fn run_compilers(
        &self,
        session: &mut Session,
        commands: &[Vec<String>],
        limit: Duration,
    ) -> Result<(), Stop> {
        let question = json!({ "do": "run", "commands": commands, "cpu": limit.as_secs().max(1) });
        let reply = tool(self.ask(session, question, &[], limit * STARVED)?)?;
        let results = reply.value["results"].as_array().cloned().unwrap_or_default();
        for result in results {
            let text = result[1].as_str().unwrap_or_default();
            if result[0] != 0 && reply.value["cpu"].as_f64() >= Some(limit.as_secs_f64()) {
                let why = "the compilers took more processor time than they may";
                return Err(Stop::Candidate(Failure::new(FailureKind::Timeout, why)));
            }
            if result[0] != 0 {
                return Err(compiler_said(text));
            }
            if let Some(symbol) = undefined_symbol(text) {
                return Err(compiler_said(&format!("{UNDEFINED}{symbol}")));
            }
        }
        Ok(())
    }
}

/// What the tools' worker says; its own faults are the world's.
pub(crate) fn tool(answer: Answer) -> Result<Reply, Stop> {
    match answer {
        Answer::TimedOut => Err(Error::Overloaded("compilers got no processor".to_owned()).into()),
        Answer::Gone(why) => Err(Error::WorkerDied(format!("compiling: {why}")).into()),
        Answer::Said(reply) if reply.value["failed"].is_null() => Ok(reply),
        Answer::Said(reply) => {
            Err(Error::ToolchainMissing(fault::scrub(&reply.value["message"].to_string())).into())
        }
    }
}

/// Only lines that point at the candidate's text: others may quote files of this machine.
fn compiler_said(text: &str) -> Stop {
    let own = |line: &&str| {
        ["main.cpp", "cuda.cu", "undefined", "error"].iter().any(|part| line.contains(part))
    };
    let lines: Vec<&str> = text.lines().filter(own).take(12).collect();
    Stop::Candidate(Failure::new(FailureKind::CompileError, fault::scrub(&lines.join("\n"))))
}

/// Whether torch's own headers could still build it. Both ways link with the same libraries, and
/// all that our headers declare is in them: what they lack only the candidate can have meant to
/// define. Nor can other headers help with a name that none of them holds, or with text that does
/// not parse, unless it uses a macro that ours lack.
pub(crate) fn needs_full(failure: &Failure, extension: &Extension, tools: &Toolchain) -> bool {
    let parses = !blame::does_not_parse(&failure.detail) || headers::lacks_macro_of(extension);
    failure.kind == FailureKind::CompileError
        && !failure.detail.starts_with(UNDEFINED)
        && parses
        && blame::unknown_name(&failure.detail, tools).is_none()
}

/// A symbol that neither torch nor CUDA offers; Python's own come from the running interpreter.
fn undefined_symbol(text: &str) -> Option<&str> {
    const SAYS: &str = "undefined reference to ";
    // Linkers quote in two ways: `symbol' and 'symbol'.
    let quoted = |line: &'_ str| -> Option<(usize, usize)> {
        let start = line.find(SAYS)? + SAYS.len() + 1;
        Some((start, start + line.get(start..)?.find('\'')?))
    };
    text.lines()
        .filter_map(|line| quoted(line).map(|(a, b)| &line[a..b]))
        .find(|symbol| !symbol.starts_with("Py") && !symbol.starts_with("_Py"))
}
