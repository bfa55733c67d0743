//! The other side of the socket: a process that is attached.

use std::io::{self, BufReader, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use actors::attached::{Answer, Filter, Hello, Outcome, PROTOCOL, Reply, read_line};
use anyhow::{Context, Result, anyhow};
use events::ids::{RunId, Seq};
use events::intent::{ActorName, Intent};
use serde_json::{Value, json};

use super::place;

/// How long a daemon may take from owning its run to opening its socket: it folds the log meanwhile.
const STARTING: Duration = Duration::from_secs(60);

/// A connection that was let in.
pub struct Connection {
    /// What the daemon sends.
    pub lines: BufReader<UnixStream>,
    /// What it is sent.
    pub stream: UnixStream,
    /// The run.
    pub run: RunId,
    /// Its last event when it was let in.
    pub last: Seq,
}

impl Connection {
    /// Connects to the daemon of the run in `run_dir`. An error says who refused and why.
    pub fn open(run_dir: &Path, hello: &Hello) -> Result<Self> {
        Self::greet(run_dir, || json!({ "hello": hello }))
    }

    fn greet(run_dir: &Path, hello: impl FnOnce() -> Value) -> Result<Self> {
        // Whoever is gone is told of by the error of a write, not by the end of this process.
        // SAFETY: called with constants; no handler of this program is replaced.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let stream = patiently(run_dir).with_context(|| {
            let place = run_dir.display();
            format!(
                "the daemon of the run in {place} takes no connections: it is starting or ending"
            )
        })?;
        // A daemon that is full says so before it is greeted.
        let greeted = writeln!(&stream, "{}", hello());
        let mut lines = BufReader::new(stream.try_clone()?);
        match (next(&mut lines), greeted) {
            (Ok(Some(Reply::Welcome { run, last, .. })), _) => {
                Ok(Self { lines, stream, run, last })
            }
            (Ok(Some(Reply::End { why })), _) => {
                Err(anyhow!("the daemon does not let it in: {why}"))
            }
            (_, Err(error)) => Err(error).context("greeting the daemon"),
            (Err(error), _) => Err(error),
            (Ok(other), _) => Err(anyhow!("the daemon answers {other:?} where it should welcome")),
        }
    }

    /// Connects for a command of an operator, which sees no events.
    pub fn operator(run_dir: &Path) -> Result<Self> {
        let mut hello = Hello {
            protocol: PROTOCOL,
            name: ActorName::operator(std::process::id()),
            what: "kernelzero".to_owned(),
            after: Seq(0),
            filter: Filter::of(&[]),
            key: None,
        };
        Self::greet(run_dir, || {
            hello.key = place::key(run_dir);
            json!({ "hello": hello })
        })
    }

    /// Asks for one thing and waits for what becomes of it.
    pub fn ask(&mut self, intent: &Intent) -> Result<Outcome> {
        self.say(&json!(intent))
    }

    /// Has the daemon send an actor away.
    pub fn detach(&mut self, name: ActorName) -> Result<Outcome> {
        self.say(&json!({ "detach": name }))
    }

    /// Why the daemon ended it, if it did; does not wait.
    pub fn ended(&mut self) -> Result<Option<String>> {
        while !self.lines.buffer().is_empty() || is_readable(&self.stream)? {
            match next(&mut self.lines)? {
                Some(Reply::End { why }) => return Ok(Some(why)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    fn say(&mut self, line: &Value) -> Result<Outcome> {
        writeln!(&self.stream, "{line}")?;
        loop {
            match next(&mut self.lines)? {
                Some(Reply::Answer(Answer { outcome, .. })) => return Ok(outcome),
                Some(Reply::End { why }) => return Err(anyhow!("the daemon ended it: {why}")),
                Some(_) => {}
                None => return Err(anyhow!("the daemon is gone")),
            }
        }
    }
}

/// Whether there is something to read, or nothing will ever be.
fn is_readable(stream: &UnixStream) -> io::Result<bool> {
    let mut asked = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor that is open, described by one value that lives on.
    match unsafe { libc::poll(&mut asked, 1, 0) } {
        -1 => Err(io::Error::last_os_error()),
        ready => Ok(ready > 0),
    }
}

/// Connects, and waits for a daemon that has only just taken the run.
fn patiently(run_dir: &Path) -> io::Result<UnixStream> {
    let end = Instant::now() + STARTING;
    loop {
        match place::connect(run_dir) {
            Err(error)
                if Instant::now() < end
                    && store::owner(run_dir).is_some()
                    && matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::ConnectionRefused
                    ) =>
            {
                std::thread::sleep(Duration::from_millis(50));
            }
            connected => return connected,
        }
    }
}

/// The daemon's next line.
pub fn next(lines: &mut BufReader<UnixStream>) -> Result<Option<Reply>> {
    let text = read_line(lines, usize::MAX).context("reading from the daemon")?;
    text.map(|text| serde_json::from_str(&text).context("a line of the daemon")).transpose()
}
