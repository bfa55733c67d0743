//! `kernelzero attach`: a process beside a run that sees its events and asks for things; and `detach`.
#![allow(clippy::print_stdout)]

mod beside;

use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actors::attached::{
    Answer, Attached, DAEMON_ENDS, Feed, Filter, Hello, Outcome, PROTOCOL, Reply, Tended,
    read_line, welcome,
};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use events::config::BuiltIn;
use events::ids::{RunId, Seq};
use events::intent::ActorName;
use events::rules::intent::{Code, Refused};
use events::state::Position;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde_json::Value;
use store::{FileLog, Home, OpenMode};

use self::beside::Beside;
use crate::attach::client::Connection;
use crate::attach::make;
use crate::daemon;
use crate::exit::{Exit, Usage};
use crate::kept;
use crate::runs::{home_to_read, pick};

/// `kernelzero attach`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The run; the newest if absent. It must be running.
    run: Option<RunId>,
    /// What the actor is called in the log.
    #[arg(long, default_value = "attached")]
    name: ActorName,
    /// It sees events after this position.
    #[arg(long, default_value_t = 0)]
    after: u64,
    /// It sees only events of these names, such as `StepTaken,GroupScored`.
    #[arg(long, value_delimiter = ',')]
    events: Option<Vec<String>>,
    /// It sees only events of these actors, such as `trainer`.
    #[arg(long, value_delimiter = ',')]
    actors: Option<Vec<String>>,
    /// A built-in actor instead of a program, as a config names it, such as
    /// `kind = "tap", file = "events.jsonl"`.
    #[arg(long, conflicts_with_all = ["command", "after", "events", "actors"], value_parser = built_in)]
    actor: Option<BuiltIn>,
    /// The program: events come on its standard input, intents go on its standard output.
    #[arg(last = true, required_unless_present = "actor")]
    command: Vec<String>,
}

fn built_in(text: &str) -> Result<BuiltIn, String> {
    #[derive(serde::Deserialize)]
    struct Line {
        actor: BuiltIn,
    }
    let line: Line = toml::from_str(&format!("actor = {{ {text} }}"))
        .map_err(|e| e.to_string().trim_end().lines().last().unwrap_or_default().to_owned())?;
    line.actor.check().map(|()| line.actor)
}

/// How often the log is looked at for new events.
const POLL: Duration = Duration::from_millis(50);

/// `kernelzero attach`. The events come from the log's files, so the program misses none when the daemon
/// ends; only what it asks for goes through the daemon.
pub fn attach(dir: &Path, arguments: Arguments) -> Result<Exit> {
    if arguments.name.is_operator() {
        let text = format!("--name {}: such names are those of `set` and the like", arguments.name);
        return Err(Usage(text).into());
    }
    let home = home_to_read(dir)?;
    let run = pick(&home, arguments.run)?;
    let run_dir = home.run_dir(run);
    require_daemon(&home, run)?;
    let filter = Filter { events: arguments.events, actors: arguments.actors };
    filter.check().map_err(|why| Usage(format!("--events: {why}")))?;
    let hello = Hello {
        protocol: PROTOCOL,
        name: arguments.name,
        what: match &arguments.actor {
            Some(actor) => serde_json::to_string(actor)?,
            None => arguments.command.join(" "),
        },
        after: Seq(0),
        filter: Filter::of(&[]),
        key: None,
    };
    let connection = Connection::open(&run_dir, &hello)?;
    let log = home.open_run(run, OpenMode::ReadOnly)?;
    if let Some(wanted) = &arguments.actor {
        let blobs = Arc::new(home.blobs_to_read()?);
        let actor = make(arguments.name, wanted, blobs).map_err(Usage)?;
        return stay(actor, connection, &log, &run_dir);
    }
    let feed = Feed::new(Seq(arguments.after), filter);
    accompany(&arguments.command, connection, &log, feed, &run_dir)
}

/// Runs a program whose lines go to the daemon, and gives it answers and events.
fn accompany(
    command: &[String],
    connection: Connection,
    log: &FileLog,
    feed: Feed,
    run_dir: &Path,
) -> Result<Exit> {
    let mut child = spawn(command)?;
    let input = child.stdin.take().context("the program has no standard input")?;
    let output = child.stdout.take().context("the program has no standard output")?;
    let process = Pid::from_raw(i32::try_from(child.id())?);
    let beside = Beside {
        input: Mutex::new(Some(input)),
        daemon_gone: AtomicBool::new(false),
        left: AtomicBool::new(false),
        why: Mutex::new(None),
    };
    let Connection { lines, stream, run, last } = connection;
    std::thread::scope(|scope| {
        scope.spawn(|| beside.see_off(process));
        beside.send(&welcome(run, last));
        scope.spawn(|| beside.answers(lines));
        let feeder = scope.spawn(|| beside.events(log, feed, last));
        let mut output = BufReader::new(output);
        loop {
            match read_line(&mut output, usize::MAX) {
                Ok(Some(text)) => {
                    if writeln!(&stream, "{text}").is_err() {
                        if daemon::about(run_dir).is_some() {
                            beside.because("its connection was ended");
                        }
                        beside.send(&refused(Code::NotNow, "the daemon takes no more lines"));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    beside.send(&refused(Code::BadLine, &error.to_string()));
                }
                Ok(None) | Err(_) => break,
            }
        }
        // One that asks for nothing more may go on reading. It keeps its number until it is waited for.
        let ended = waitid(Id::Pid(process), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        beside.left.store(true, Ordering::SeqCst);
        let status = ended.map_err(Into::into).and_then(|_| child.wait());
        let _ = stream.shutdown(Shutdown::Both);
        feeder.join().map_err(|_| anyhow!("the thread that reads the log ended"))??;
        let status = status.context("waiting for the program")?;
        match beside.sent_away() {
            _ if status.success() => Ok(Exit::Ok),
            Some(why) => Err(anyhow!("the daemon ended it: {why}; the run goes on")),
            None => Err(anyhow!("the attached program ended with {status}; the run goes on")),
        }
    })
}

/// Fails if nobody can be attached to a run.
fn require_daemon(home: &Home, run: RunId) -> Result<()> {
    if daemon::about(&home.run_dir(run)).is_some() {
        return Ok(());
    }
    let log = home.open_run(run, OpenMode::ReadOnly)?;
    let text = match kept::state_of(&log)?.position {
        Position::Finished => format!("run {run} is finished: it has no daemon any more"),
        _ => format!("run {run} has no daemon: start it with `kernelzero run --run {run}`"),
    };
    Err(Usage(text).into())
}

/// `kernelzero detach`.
pub fn detach(dir: &Path, run: RunId, name: ActorName) -> Result<Exit> {
    let home = home_to_read(dir)?;
    require_daemon(&home, pick(&home, Some(run))?)?;
    match Connection::operator(&home.run_dir(run))?.detach(name)? {
        Outcome::Value(_) => println!("run {run}: {name} is sent away"),
        Outcome::Refused(refused) => return Err(Usage(refused.why).into()),
        Outcome::Accepted(recorded) => {
            anyhow::bail!("the daemon answers a call to detach with {}", recorded.event.name())
        }
    }
    Ok(Exit::Ok)
}

/// Has a built-in actor see events until the daemon ends and the log has no more.
fn stay(
    actor: Box<dyn Attached>,
    mut connection: Connection,
    log: &FileLog,
    run_dir: &Path,
) -> Result<Exit> {
    let mut tended = Tended::new(actor, connection.last);
    loop {
        let alive = daemon::about(run_dir).is_some();
        let mut ask = |intent| connection.ask(&intent).map_err(|error| format!("{error:#}"));
        let dry = tended.lot(log, &mut ask);
        // One that ends is followed to its end: what it records last is in the log.
        if let Some(why) = connection.ended()?.filter(|why| why != DAEMON_ENDS) {
            return Err(anyhow!("the daemon ended it: {why}; the run goes on"));
        }
        match dry {
            Ok(true) if !alive => return Ok(Exit::Ok),
            Ok(true) => std::thread::sleep(POLL),
            Ok(false) => {}
            Err(why) => return Err(anyhow!("the actor left: {why}; the run goes on")),
        }
    }
}

fn spawn(command: &[String]) -> Result<Child> {
    let (program, arguments) = command.split_first().context("there is no program")?;
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Usage(format!("cannot start {program}: {e}")).into())
}

fn refused(code: Code, why: &str) -> Reply {
    let outcome = Outcome::Refused(Refused { code, why: why.to_owned() });
    Reply::Answer(Answer { id: Value::Null, outcome })
}
