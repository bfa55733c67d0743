//! Built-in actors that a run is started with, or that are attached to it by hand.

use serde::{Deserialize, Serialize};

use crate::ids::{Role, StepRef};

/// What a built-in actor does, with its parameters; `kind` names the variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[serde(deny_unknown_fields)]
pub enum BuiltIn {
    /// Lets a policy take so many gradient steps and no more.
    Freeze {
        /// Which.
        policy: Role,
        /// Its own steps.
        at_step: u32,
    },
    /// Lets a frozen policy learn again.
    Thaw {
        /// Which.
        policy: Role,
        /// From this step of the run on.
        from: StepRef,
    },
    /// Gives a setting another value.
    Set {
        /// Its dotted name.
        key: String,
        /// As TOML writes it.
        value: String,
        /// From this step of the run on.
        from: StepRef,
    },
    /// Writes events to a file, one JSON object a line; goes on where the file ends.
    Tap {
        /// The file, relative to where the program was started.
        file: String,
        /// Names of events; absent is all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        events: Option<Vec<String>>,
    },
    /// Notes in the log when a figure of a gradient step is out of bounds.
    Alarm {
        /// Which figure.
        metric: Metric,
        /// Whose steps; both if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<Role>,
        /// Largest that is well.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        above: Option<f64>,
        /// Least that is well.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// Whether the run is paused, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pause: bool,
    },
    /// Has kernels judged by a second judge, and notes where it finds otherwise.
    Mirror {
        /// Address of a `kernelzero serve`, such as `127.0.0.1:8790`.
        judge: String,
        /// How many of a hundred kernels.
        percent: super::UpTo<100>,
    },
}

/// A figure of a gradient step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The objective's value.
    Loss,
    /// Nats per token from the reference.
    Kl,
    /// Before clipping.
    GradNorm,
    /// Share of tokens whose ratio was clipped.
    ClipFraction,
    /// Nats per token between sampler and trainer.
    MismatchKl,
    /// Nats per token.
    Entropy,
}

impl BuiltIn {
    /// What can be told to be wrong before it is attached; the setting of a `set` apart.
    pub fn check(&self) -> Result<(), String> {
        match self {
            BuiltIn::Alarm { above: None, below: None, .. } => {
                Err("an alarm needs `above` or `below`".to_owned())
            }
            BuiltIn::Alarm { above, below, .. }
                if [above, below].into_iter().flatten().any(|bound| !bound.is_finite()) =>
            {
                Err("`above` and `below` of an alarm are finite numbers".to_owned())
            }
            BuiltIn::Tap { events: Some(events), .. } => {
                let names = crate::event::NAMES;
                let unknown = events.iter().find(|name| !names.contains(&name.as_str()));
                unknown.map_or(Ok(()), |name| Err(format!("there is no event `{name}`")))
            }
            BuiltIn::Freeze { .. }
            | BuiltIn::Thaw { .. }
            | BuiltIn::Set { .. }
            | BuiltIn::Tap { .. }
            | BuiltIn::Alarm { .. }
            | BuiltIn::Mirror { .. } => Ok(()),
        }
    }
}
