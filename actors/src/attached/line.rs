//! The lines of the protocol. One JSON object each, in UTF-8, ended by a newline.

use std::io::{self, BufRead, Read};

use events::event::{Actor, NAMES, Recorded};
use events::ids::{RunId, Seq};
use events::intent::ActorName;
use events::rules::intent::Refused;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the protocol.
pub const PROTOCOL: u32 = 1;
/// Longest line that a gate takes, in bytes.
pub const LINE_MAX: usize = 256 << 10;

/// Why a daemon that ends ends a connection: what is in the log may still be read.
pub const DAEMON_ENDS: &str = "the daemon ends";

/// Which events an actor sees; absent is all, an empty list none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Names of events, such as `StepTaken`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<String>>,
    /// Names of actors, such as `trainer`, or of attached ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actors: Option<Vec<String>>,
}

impl Filter {
    /// Only events of these names.
    pub fn of(events: &[&str]) -> Self {
        Self { events: Some(events.iter().map(|&name| name.to_owned()).collect()), actors: None }
    }

    /// Whether it lets `recorded` through.
    pub fn fits(&self, recorded: &Recorded) -> bool {
        let named = |list: &Option<Vec<String>>, name: &str| {
            list.as_ref().is_none_or(|list| list.iter().any(|wanted| wanted == name))
        };
        named(&self.events, recorded.event.name())
            && (self.actors.is_none() || named(&self.actors, &actor_name(recorded.actor)))
    }

    /// Fails with the first name of an event that there is not.
    pub fn check(&self) -> Result<(), String> {
        let unknown = self.events.iter().flatten().find(|name| !NAMES.contains(&name.as_str()));
        match unknown {
            Some(name) => {
                Err(format!("there is no event `{name}`; there are {}", NAMES.join(", ")))
            }
            None => Ok(()),
        }
    }
}

/// An actor's name as it is written.
pub fn actor_name(actor: Actor) -> String {
    match (actor, serde_json::to_value(actor)) {
        (Actor::Attached(name), _) => name.to_string(),
        (_, Ok(Value::String(name))) => name,
        (_, _) => String::new(),
    }
}

/// The first line of whoever connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// What it is called in the log.
    pub name: ActorName,
    /// What it is, for people.
    #[serde(default)]
    pub what: String,
    /// Events after this position are sent; 0 is from the start.
    #[serde(default)]
    pub after: Seq,
    /// Which of them.
    #[serde(default)]
    pub filter: Filter,
    /// What an operator's command finds beside the socket, and no other needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What an intent or a question came to, with the `id` that it had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// As it was given; null if there was none.
    #[serde(default)]
    pub id: Value,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// See [`Answer`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is in the log: this is what it came to.
    Accepted(Box<Recorded>),
    /// It is not done.
    Refused(Refused),
    /// What was asked.
    Value(Value),
}

/// A line of a gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The first line.
    Welcome {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The run.
        run: RunId,
        /// Its last event.
        last: Seq,
    },
    /// An event that was asked for.
    Event(Box<Recorded>),
    /// Everything that was in the log when the actor came has been sent; the position is its end.
    CaughtUp(Seq),
    /// What an intent or a question came to.
    Answer(Answer),
    /// The last line.
    End {
        /// Why.
        why: String,
    },
}

impl Reply {
    /// The line, with its newline.
    pub fn to_line(&self) -> String {
        // Nothing in a reply can fail to be written: maps have string keys.
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// The next line without its newline; `None` at the end. A line of more than `limit` bytes, or one that
/// is not UTF-8, is an error of the kind `InvalidData`.
pub fn read_line(input: &mut dyn BufRead, limit: usize) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    input.take(most).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    } else if bytes.len() > limit {
        let what = format!("a line is longer than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line is not UTF-8"))
}
