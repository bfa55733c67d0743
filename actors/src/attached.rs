//! Actors that are attached to a running system: the protocol, the gate that they come in by, and a
//! trait for those written in Rust.
//!
//! They see what the log holds and ask for what [`events::intent::Intent`] lists; nothing else of the
//! run can be reached from here. Each reads the log at its own pace, so a slow one delays nobody.

use std::io::{self, BufRead, Write};

use events::event::Recorded;
use events::ids::{RunId, Seq};
use events::intent::Intent;
use events::log::Log;
use serde_json::{Value, json};

mod built_in;
mod feed;
mod gate;
mod inside;
mod line;

pub use built_in::built_in;
pub use feed::{Bell, Feed};
pub use gate::{Gate, Session};
pub use line::{
    Answer, DAEMON_ENDS, Filter, Hello, LINE_MAX, Outcome, PROTOCOL, Reply, actor_name, read_line,
};

/// An actor in Rust. Failing, like leaving, only detaches it.
pub trait Attached: Send {
    /// What it wants to see; everything if it does not say.
    fn filter(&self) -> Filter {
        Filter::default()
    }

    /// Where in the log it begins, whose last event is `last`; at the first event if it does not say.
    fn after(&mut self, last: Seq) -> Seq {
        let _ = last;
        Seq(0)
    }

    /// Sees one event, in the log's order, and says what it asks for.
    fn see(&mut self, recorded: &Recorded) -> Result<Vec<Intent>, String>;

    /// Everything that was in the log when it was attached has been seen.
    fn caught_up(&mut self) -> Result<Vec<Intent>, String> {
        Ok(Vec::new())
    }

    /// What became of one of its intents.
    fn answered(&mut self, answer: &Answer) {
        let _ = answer;
    }
}

/// Drives an actor over the protocol: lines of JSON from `input`, intents to `output`. For a program
/// that `kernelzero attach RUN -- PROGRAM` starts, these are its standard streams. Returns at the end
/// of `input` or after `{"end": …}`; a line that is not of the protocol is an error.
pub fn drive(
    actor: &mut dyn Attached,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> io::Result<()> {
    let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    while let Some(text) = read_line(input, usize::MAX)? {
        let mut line: Value = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        let asked = if let Some(event) = line.get_mut("event") {
            let recorded: Recorded =
                serde_json::from_value(event.take()).map_err(|e| bad(e.to_string()))?;
            actor.see(&recorded).map_err(bad)?
        } else if let Some(answer) = line.get_mut("answer") {
            let answer = serde_json::from_value(answer.take()).map_err(|e| bad(e.to_string()))?;
            actor.answered(&answer);
            Vec::new()
        } else if line.get("caught-up").is_some() {
            actor.caught_up().map_err(bad)?
        } else if line.get("end").is_some() {
            return Ok(());
        } else {
            Vec::new()
        };
        for intent in asked {
            writeln!(output, "{}", json!(intent))?;
        }
        output.flush()?;
    }
    Ok(())
}

/// An actor with its place in the log.
pub struct Tended {
    actor: Box<dyn Attached>,
    feed: Feed,
    /// The log's last event when it came; none once it has seen that.
    last: Option<Seq>,
}

impl Tended {
    /// An actor that comes while `last` is the log's last event.
    pub fn new(mut actor: Box<dyn Attached>, last: Seq) -> Self {
        let feed = Feed::new(actor.after(last), actor.filter());
        Self { actor, feed, last: Some(last) }
    }

    /// Lets it see the next events, and has `ask` done what it wants; whether there were none. The error
    /// is the actor's.
    pub fn lot(
        &mut self,
        log: &dyn Log,
        ask: &mut dyn FnMut(Intent) -> Result<Outcome, String>,
    ) -> Result<bool, String> {
        let read = self.feed.next(log).map_err(|error| error.to_string())?;
        let dry = read.is_none();
        for recorded in read.into_iter().flatten() {
            let asked = self.actor.see(&recorded)?;
            self.ask(asked, ask)?;
        }
        if self.last.is_some_and(|last| dry || self.feed.after() >= last) {
            self.last = None;
            let asked = self.actor.caught_up()?;
            self.ask(asked, ask)?;
        }
        Ok(dry)
    }

    /// Whether it has seen what was there when it came.
    pub fn is_caught_up(&self) -> bool {
        self.last.is_none()
    }

    fn ask(
        &mut self,
        asked: Vec<Intent>,
        ask: &mut dyn FnMut(Intent) -> Result<Outcome, String>,
    ) -> Result<(), String> {
        for intent in asked {
            let outcome = ask(intent)?;
            self.actor.answered(&Answer { id: Value::Null, outcome });
        }
        Ok(())
    }
}

/// The first line of a gate: whom one has reached.
pub fn welcome(run: RunId, last: Seq) -> Reply {
    Reply::Welcome { protocol: PROTOCOL, run, last }
}
