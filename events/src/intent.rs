//! Actors that are attached to a running system: their names, and what they may ask for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::{BadId, Role, StepRef};

/// Longest name of an attached actor, in bytes.
const NAME: usize = 32;
/// How the names of operators' commands begin.
const OPERATOR: &str = "operator-";
/// Names of the run's own actors, as the log writes them.
const OWN: [&str; 9] = [
    "run-control",
    "sampler",
    "proposer",
    "validator",
    "coder-policy",
    "compile-worker",
    "gpu-executor",
    "trainer",
    "judge-service",
];

/// What an attached actor is called in the log: 1 to 32 of `a-z`, `0-9`, `-`, `_` and `.`, and no name
/// of the run's own actors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActorName {
    /// Padded with zero bytes, which no name contains.
    bytes: [u8; NAME],
}

impl ActorName {
    /// The name.
    pub fn as_str(&self) -> &str {
        let length = self.bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        // Only ASCII gets in.
        std::str::from_utf8(&self.bytes[..length]).unwrap_or_default()
    }
}

impl ActorName {
    /// The name of a command that an operator gives, of the process with this number.
    pub fn operator(process: u32) -> Self {
        let text = format!("{OPERATOR}{process}");
        let mut bytes = [0; NAME];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Self { bytes }
    }

    /// Whether it is one of an operator's commands.
    pub fn is_operator(&self) -> bool {
        self.as_str().starts_with(OPERATOR)
    }
}

impl FromStr for ActorName {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let fits =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        let right =
            (1..=NAME).contains(&text.len()) && text.bytes().all(fits) && !OWN.contains(&text);
        if !right {
            let expected =
                "a name of 1 to 32 of a-z, 0-9, -, _ and ., other than the run's own actors";
            return Err(BadId { text: text.chars().take(64).collect(), expected });
        }
        let mut bytes = [0; NAME];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { bytes })
    }
}

impl fmt::Display for ActorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ActorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ActorName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ActorName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A kind of boundary between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boundary {
    /// The next step.
    Step,
    /// The first step of the next phase.
    Phase,
    /// The first step of the next round.
    Round,
}

/// From when on a change acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "`at` is \"step\", \"phase\", \"round\" or {\"round\": 1, \"role\": \"coder\", \"step\": 0}"
)]
pub enum At {
    /// From the next boundary of a kind.
    Next(Boundary),
    /// From the first step that opens at or after this one.
    From(StepRef),
}

/// What an attached actor asks for. One JSON object; `intent` names the variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "intent", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[serde(deny_unknown_fields)]
pub enum Intent {
    /// Let a policy take no more gradient steps. Acts at once, also while a step is open.
    Freeze {
        /// Which.
        policy: Role,
        /// After so many of its own steps; at once if it has taken more.
        #[serde(default)]
        at_step: u32,
    },
    /// Let a frozen policy learn again. Acts at once.
    Thaw {
        /// Which.
        policy: Role,
    },
    /// Give a setting another value.
    Set {
        /// Its dotted name in the config.
        key: String,
        /// As TOML writes it; none takes away a setting that need not be there.
        value: Option<String>,
        /// From when on; absent it is the next step, or at once where that changes nothing drawn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<At>,
    },
    /// Stop all work until someone resumes the run.
    Pause {
        /// Why.
        reason: String,
    },
    /// Write something down.
    Note {
        /// What.
        text: String,
    },
    /// Ask for API sets in a Proposer step that has not opened, in place of drawn ones.
    Apis {
        /// Which step; absent it is the next one of the Proposer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<StepRef>,
        /// Full API names, in the order of the prompt; sets beyond these are drawn as ever.
        sets: Vec<Vec<String>>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Actor;

    #[test]
    fn names_are_short_and_plain_and_no_one_elses() {
        for right in ["a", "freezer-2", "my_actor.py", &"x".repeat(32)] {
            assert_eq!(right.parse::<ActorName>().unwrap().to_string(), right);
        }
        for wrong in ["", "Ä", "a b", "UPPER", "trainer", &"x".repeat(33), "a\0"] {
            assert!(wrong.parse::<ActorName>().is_err(), "{wrong:?}");
        }
        let name: ActorName = "tap".parse().unwrap();
        let text = serde_json::to_string(&Actor::Attached(name)).unwrap();
        assert_eq!(text, r#"{"attached":"tap"}"#);
        assert_eq!(serde_json::from_str::<Actor>(&text).unwrap(), Actor::Attached(name));
    }

    #[test]
    fn names_of_all_own_actors_are_taken() {
        let own = [
            Actor::RunControl,
            Actor::Sampler,
            Actor::Proposer,
            Actor::Validator,
            Actor::CoderPolicy,
            Actor::CompileWorker,
            Actor::GpuExecutor,
            Actor::Trainer,
            Actor::JudgeService,
        ];
        let names = own.map(|actor| serde_json::to_value(actor).unwrap());
        assert_eq!(names.map(|name| name.as_str().unwrap().to_owned()), OWN);
    }

    #[test]
    fn intents_are_read_strictly() {
        let read = |text: &str| serde_json::from_str::<Intent>(text);
        let freeze = Intent::Freeze { policy: Role::Proposer, at_step: 40 };
        let text = r#"{"intent": "freeze", "policy": "proposer", "at-step": 40}"#;
        assert_eq!(read(text).unwrap(), freeze);
        let set = r#"{"intent": "set", "key": "coder.beta", "value": "0.5", "at": "phase"}"#;
        assert!(matches!(
            read(set).unwrap(),
            Intent::Set { at: Some(At::Next(Boundary::Phase)), .. }
        ));
        let step = r#"{"intent": "set", "key": "coder.beta", "value": null,
                       "at": {"round": 2, "role": "coder", "step": 1}}"#;
        assert!(matches!(read(step).unwrap(), Intent::Set { at: Some(At::From(_)), .. }));
        for (text, says) in [
            (r#"{"intent": "melt"}"#, "unknown variant `melt`"),
            (r#"{"intent": "freeze", "policy": "judge"}"#, "unknown variant `judge`"),
            (r#"{"intent": "freeze", "policy": "coder", "at": 4}"#, "unknown field `at`"),
            (r#"{"intent": "set", "key": "a", "value": "1", "at": "now"}"#, "\"phase\""),
            (r#"{"intent": "note"}"#, "missing field `text`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
