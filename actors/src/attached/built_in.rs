//! Built-in actors that need nothing but events and intents.

use events::config::{BuiltIn, Metric};
use events::event::{Event, Recorded, Update};
use events::ids::{Role, Seq, StepRef};
use events::intent::{ActorName, At, Intent};
use events::rules::intent::freeze_key;

use super::{Attached, Filter};

/// The actor for `built_in`, if it is one of this module.
pub fn built_in(name: ActorName, built_in: &BuiltIn) -> Option<Box<dyn Attached>> {
    let intent = match built_in {
        BuiltIn::Freeze { policy, at_step } => {
            Intent::Freeze { policy: *policy, at_step: *at_step }
        }
        BuiltIn::Thaw { policy, from } => set(freeze_key(*policy), None, *from),
        BuiltIn::Set { key, value, from } => set(key.clone(), Some(value.clone()), *from),
        BuiltIn::Alarm { metric, policy, above, below, pause } => {
            return Some(Box::new(Alarm {
                metric: *metric,
                policy: *policy,
                above: above.unwrap_or(f64::INFINITY),
                below: below.unwrap_or(f64::NEG_INFINITY),
                pause: *pause,
            }));
        }
        BuiltIn::Tap { .. } | BuiltIn::Mirror { .. } => return None,
    };
    Some(Box::new(Once { name, intent: Some(intent) }))
}

fn set(key: String, value: Option<String>, from: StepRef) -> Intent {
    Intent::Set { key, value, at: Some(At::From(from)) }
}

/// Asks for one thing, once in the life of a log: one that finds its own change there is done.
struct Once {
    name: ActorName,
    intent: Option<Intent>,
}

impl Attached for Once {
    fn filter(&self) -> Filter {
        let actors = Some(vec![self.name.to_string()]);
        Filter { actors, ..Filter::of(&["SettingChanged", "SettingPlanned"]) }
    }

    fn see(&mut self, _: &Recorded) -> Result<Vec<Intent>, String> {
        self.intent = None;
        Ok(Vec::new())
    }

    fn caught_up(&mut self) -> Result<Vec<Intent>, String> {
        Ok(self.intent.take().into_iter().collect())
    }
}

/// Looks at each gradient step.
struct Alarm {
    metric: Metric,
    policy: Option<Role>,
    above: f64,
    below: f64,
    pause: bool,
}

fn figure(metric: Metric, update: &Update) -> f64 {
    match metric {
        Metric::Loss => update.loss,
        Metric::Kl => update.kl,
        Metric::GradNorm => update.grad_norm,
        Metric::ClipFraction => update.clip_fraction,
        Metric::MismatchKl => update.mismatch_kl,
        Metric::Entropy => update.entropy,
    }
}

impl Attached for Alarm {
    fn filter(&self) -> Filter {
        Filter::of(&["StepTaken"])
    }

    fn after(&mut self, last: Seq) -> Seq {
        last
    }

    fn see(&mut self, recorded: &Recorded) -> Result<Vec<Intent>, String> {
        let Event::StepTaken { step, update: Some(update), .. } = &recorded.event else {
            return Ok(Vec::new());
        };
        let value = figure(self.metric, update);
        let well = (self.below..=self.above).contains(&value);
        if well || self.policy.is_some_and(|policy| policy != step.role) {
            return Ok(Vec::new());
        }
        let metric = format!("{:?}", self.metric);
        let text = format!("alarm: {metric} is {value} after {step}");
        let pause = self.pause.then(|| Intent::Pause { reason: text.clone() });
        Ok([Intent::Note { text }].into_iter().chain(pause).collect())
    }
}
