//! Where attached actors come in: who they are, and what becomes of what they ask for.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use events::config::RunConfig;
use events::event::{Actor, Event};
use events::ids::{BlobId, Seq};
use events::intent::{ActorName, Intent};
use events::rules::api_table::ApiTable;
use events::rules::intent::{Code, Refused, effect};
use serde_json::{Map, Value, json};

use super::inside::Inside;
use super::line::{Answer, Hello, Outcome, PROTOCOL};
use crate::bus::{Bus, Error};
use crate::ports::WorldFailed;
use crate::shells::Failed;

/// What all actors together may append: so many in a row, and one more each tenth of a second. Each
/// append is a write that the run waits for.
const BURST: u32 = 100;
const PACE: Duration = Duration::from_millis(100);
/// So many refusals in a row end a session: it is not getting anywhere, and each is an event.
const REFUSALS: u32 = 100;
/// Longest text kept of a refused intent, and of what an actor says it is, in bytes.
const KEPT: usize = 1024;
/// Longest blob that is given out, in bytes.
const BLOB_MAX: usize = 4 << 20;

/// Whether this machine can do what a config asks for.
type Fits = Box<dyn Fn(&RunConfig) -> Result<(), String> + Send + Sync>;

/// The way in.
pub struct Gate {
    bus: Arc<Bus>,
    /// All names of the run's API table.
    apis: BTreeSet<String>,
    fits: Fits,
    inside: Inside,
    /// When the next append may be, if all had come at their pace.
    free_at: Mutex<Instant>,
}

/// One attached actor. Dropping it without [`Session::leave`] records nothing.
pub struct Session {
    gate: Arc<Gate>,
    name: ActorName,
    /// Where it was attached.
    since: Seq,
    refusals: u32,
}

/// Whoever has waited since then may append [`BURST`] times in a row.
fn earliest(now: Instant) -> Instant {
    now.checked_sub(PACE * BURST).unwrap_or(now)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    /// A gate to `bus`. `fits` says what this machine cannot do. Fails if the run's API table cannot be
    /// read.
    pub fn new(
        bus: Arc<Bus>,
        fits: impl Fn(&RunConfig) -> Result<(), String> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, Failed> {
        let mut apis = BTreeSet::new();
        if let Some(id) = bus.ask(|state| state.api_table)? {
            let bytes = bus.blobs().get(id)?;
            let table = ApiTable::parse(&String::from_utf8_lossy(&bytes));
            apis = table.map_err(|error| WorldFailed(error.to_string()))?.apis();
        }
        let (inside, free_at) = (Inside::default(), Mutex::new(earliest(Instant::now())));
        Ok(Arc::new(Self { bus, apis, fits: Box::new(fits), inside, free_at }))
    }

    /// The bus behind it.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Lets an actor in. The error says why not.
    pub fn attach(self: &Arc<Self>, hello: &Hello) -> Result<Session, String> {
        if hello.protocol != PROTOCOL {
            return Err(format!("protocol {}: this is {PROTOCOL}", hello.protocol));
        }
        hello.filter.check()?;
        let name = hello.name;
        self.inside.enter(name)?;
        self.pace();
        let attached = (None, Event::ActorAttached { what: kept(&hello.what) });
        match self.bus.append(Actor::Attached(name), vec![attached]) {
            Ok(recorded) => {
                let since = recorded.first().map_or(Seq(0), |recorded| recorded.seq);
                Ok(Session { gate: self.clone(), name, since, refusals: 0 })
            }
            Err(error) => {
                self.inside.leave(name);
                Err(error.to_string())
            }
        }
    }

    /// Waits until the next append may be.
    fn pace(&self) {
        let wait = {
            let mut free_at = lock(&self.free_at);
            let now = Instant::now();
            *free_at = (*free_at).max(earliest(now)) + PACE;
            free_at.saturating_duration_since(now)
        };
        std::thread::sleep(wait);
    }
}

impl Session {
    /// What the actor is called.
    pub fn name(&self) -> ActorName {
        self.name
    }

    /// The gate that it came in by.
    pub fn gate(&self) -> Arc<Gate> {
        self.gate.clone()
    }

    /// Takes one line. An error ends the session.
    pub fn line(&mut self, text: &str) -> Result<Answer, Error> {
        let mut fields = match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) => return Ok(self.unread("it is not a JSON object".to_owned())),
            Err(error) => return Ok(self.unread(error.to_string())),
        };
        let id = fields.remove("id").unwrap_or_default();
        let outcome = if fields.contains_key("intent") {
            self.intent(text, serde_json::from_value(Value::Object(fields)))?
        } else if fields.contains_key("get") {
            match self.get(&fields)? {
                Ok(value) => Outcome::Value(value),
                Err(why) => Outcome::Refused(Refused { code: Code::BadLine, why }),
            }
        } else if let Some(name) = fields.get("detach") {
            match self.detach(name) {
                Ok(name) => Outcome::Value(json!(name)),
                Err(why) => Outcome::Refused(Refused { code: Code::BadLine, why }),
            }
        } else {
            let why = "give `intent` (freeze, thaw, set, pause, note, apis) or `get` (settings, \
                       apis, blob)";
            return Ok(self.unread(why.to_owned()));
        };
        match &outcome {
            Outcome::Refused(_) => self.refusals += 1,
            Outcome::Accepted(_) | Outcome::Value(_) => self.refusals = 0,
        }
        Ok(Answer { id, outcome })
    }

    /// Takes one intent.
    pub fn ask(&mut self, intent: Intent) -> Result<Outcome, Error> {
        let text = json!(intent).to_string();
        self.intent(&text, Ok(intent))
    }

    /// Whether so much was refused in a row that it had better go.
    pub fn is_lost(&self) -> bool {
        self.refusals >= REFUSALS
    }

    /// What is done when an operator sends the actor away, told why; must not wait for the actor.
    pub fn on_sent_away(&self, close: impl Fn(&str) + Send + Sync + 'static) {
        self.gate.inside.on_sent_away(self.name, Arc::new(close));
    }

    /// Why the actor was sent away, if it was.
    pub fn sent_away(&self) -> Option<String> {
        self.gate.inside.why(self.name)
    }

    /// Ends the session. `why` is what the log says, unless the actor was sent away.
    pub fn leave(self, why: &str) {
        self.gate.pace();
        let why = self.sent_away().unwrap_or_else(|| kept(why));
        let detached = (Some(self.since), Event::ActorDetached { why });
        if let Err(error) = self.gate.bus.append(Actor::Attached(self.name), vec![detached]) {
            tracing::warn!(name = %self.name, %error, "an actor left, which is not recorded");
        }
    }

    /// A line that is neither intent nor question is answered and not recorded.
    fn unread(&mut self, why: String) -> Answer {
        self.refusals += 1;
        let outcome = Outcome::Refused(Refused { code: Code::BadLine, why });
        Answer { id: Value::Null, outcome }
    }

    /// Accepted or refused, it is in the log under the actor's name.
    fn intent(&self, text: &str, intent: serde_json::Result<Intent>) -> Result<Outcome, Error> {
        self.gate.pace();
        let mut refused = None;
        let recorded = self.gate.bus.decide(Actor::Attached(self.name), |state| {
            let event = intent
                .map_err(|error| Refused { code: Code::BadIntent, why: error.to_string() })
                .and_then(|intent| {
                    let event = effect(state, &intent, &self.gate.apis)?;
                    self.fits(state.config.as_ref(), &intent)?;
                    Ok(event)
                });
            let event = event.unwrap_or_else(|refusal| {
                let why = refusal.why.clone();
                refused = Some(refusal);
                Event::IntentRefused { intent: kept(text), why }
            });
            vec![(Some(self.since), event)]
        })?;
        Ok(match (refused, recorded.into_iter().next()) {
            (None, Some(recorded)) => Outcome::Accepted(Box::new(recorded)),
            (Some(refusal), _) => Outcome::Refused(refusal),
            (None, None) => return Err(Error::Poisoned),
        })
    }

    fn fits(&self, config: Option<&RunConfig>, intent: &Intent) -> Result<(), Refused> {
        let (Some(config), Intent::Set { key, value, .. }) = (config, intent) else {
            return Ok(());
        };
        let with = config.with(key, value.as_deref()).map_err(|error| error.to_string());
        let fits = with.and_then(|config| (self.gate.fits)(&config));
        fits.map_err(|why| Refused { code: Code::BadSetting, why })
    }

    /// Sends another actor away, for an operator; returns its name.
    fn detach(&self, name: &Value) -> Result<ActorName, String> {
        if !self.name.is_operator() {
            return Err("only an operator sends others away: `kernelzero detach`".to_owned());
        }
        let name = name.as_str().ok_or("give its name as `detach`")?;
        let name: ActorName = name.parse().map_err(|e| format!("`detach`: {e}"))?;
        self.gate.inside.send_away(name, &format!("sent away by {}", self.name))?;
        Ok(name)
    }

    /// Answers a question; the inner error is the asker's.
    fn get(&self, fields: &Map<String, Value>) -> Result<Result<Value, String>, Error> {
        Ok(match fields.get("get").and_then(Value::as_str) {
            Some("settings") => Ok(json!(self.gate.bus.ask(|state| state.config.clone())?)),
            Some("apis") => Ok(json!(self.gate.apis)),
            Some("blob") => self.blob(fields.get("blob").and_then(Value::as_str)),
            _ => Err("`get` is one of settings, apis and blob".to_owned()),
        })
    }

    fn blob(&self, id: Option<&str>) -> Result<Value, String> {
        let id: BlobId =
            id.ok_or("give its hash as `blob`")?.parse().map_err(|e| format!("`blob`: {e}"))?;
        let bytes = self.gate.bus.blobs().get(id).map_err(|error| error.to_string())?;
        if bytes.len() > BLOB_MAX {
            return Err(format!("blob {id} has {} bytes: too many for a line", bytes.len()));
        }
        String::from_utf8(bytes).map(Value::String).map_err(|_| format!("blob {id} is not text"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.gate.inside.leave(self.name);
    }
}

/// The first [`KEPT`] bytes of `text`, in whole characters.
fn kept(text: &str) -> String {
    let mut end = text.len().min(KEPT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
