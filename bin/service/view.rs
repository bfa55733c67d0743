//! A job as it is shown.

use events::ids::JobId;
use events::service::{End, Job, Stage};
use serde_json::{Value, json};

/// What can be said of a job without reading its result.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Its id.
    pub id: JobId,
    /// Whether it runs just now.
    pub running: bool,
    /// The rest.
    pub job: Job,
}

impl View {
    /// The word for where it stands.
    pub fn state(&self) -> &'static str {
        state(&self.job.stage, self.running)
    }

    /// Whether nothing more will come of it.
    pub fn is_over(&self) -> bool {
        matches!(self.job.stage, Stage::Ended(_))
    }

    /// The object of a job without its result.
    pub fn line(&self) -> Value {
        let (outcome, attempts) = match &self.job.stage {
            Stage::Pending(pending) => (Value::Null, pending.attempts),
            Stage::Ended(End::Judged { outcome, .. }) => (json!(outcome), 0),
            Stage::Ended(End::GivenUp { attempts, .. }) => (json!("judge_error"), *attempts),
            Stage::Ended(End::Cancelled) => (Value::Null, 0),
        };
        json!({
            "id": self.id, "state": self.state(), "priority": self.job.priority,
            "arrival": self.job.at, "failed_attempts": attempts, "outcome": outcome,
        })
    }
}

/// The word for where a job stands.
pub(super) fn state(stage: &Stage, running: bool) -> &'static str {
    match stage {
        Stage::Pending(_) if running => "running",
        Stage::Pending(_) => "queued",
        Stage::Ended(End::Judged { .. }) => "done",
        Stage::Ended(End::Cancelled) => "cancelled",
        Stage::Ended(End::GivenUp { .. }) => "failed",
    }
}
