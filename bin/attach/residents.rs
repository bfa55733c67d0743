//! Built-in actors that a run's config names: each on a thread of the daemon, with a place of its own
//! in the log. They come in by the same gate as everyone else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use actors::attached::{Bell, DAEMON_ENDS, Filter, Gate, Hello, PROTOCOL, Session, Tended};
use anyhow::Result;
use events::config::BuiltIn;
use events::ids::Seq;
use events::intent::ActorName;
use events::log::Blobs;

/// How long the end of the daemon waits for them to see what is left.
const LAST: Duration = Duration::from_secs(5);

/// The actors of a config.
pub struct Residents {
    bell: Arc<Bell>,
    closing: Arc<AtomicBool>,
    inside: Arc<AtomicUsize>,
}

impl Residents {
    /// Attaches all that the config names and returns when each has seen the whole log and asked for
    /// what it wants at once, so that this is recorded before any work. One that fails is detached, with
    /// the reason in the log.
    pub fn start(gate: &Arc<Gate>, blobs: &Arc<dyn Blobs>) -> Result<Self> {
        let all =
            Self { bell: Bell::of(gate.bus()), closing: Arc::default(), inside: Arc::default() };
        let wanted = gate.bus().ask(|state| state.config.as_ref().map(|c| c.actors.clone()))?;
        for (name, wanted) in wanted.into_iter().flatten() {
            if let Err(why) = all.attach(gate, name, &wanted, blobs.clone()) {
                tracing::warn!(%name, why, "an actor of the config is not attached");
            }
        }
        Ok(all)
    }

    fn attach(
        &self,
        gate: &Arc<Gate>,
        name: ActorName,
        wanted: &BuiltIn,
        blobs: Arc<dyn Blobs>,
    ) -> Result<(), String> {
        let what = serde_json::to_string(wanted).unwrap_or_default();
        let (after, filter) = (Seq(0), Filter::default());
        let mut session =
            gate.attach(&Hello { protocol: PROTOCOL, name, what, after, filter, key: None })?;
        let last = gate.bus().log().head().0;
        let tended = super::make(name, wanted, blobs).and_then(|actor| {
            let mut tended = Tended::new(actor, last);
            while !tended.is_caught_up() {
                lot(&mut tended, &mut session)?;
            }
            Ok(tended)
        });
        match tended {
            Ok(tended) => self.stay(tended, session).map_err(|error| error.to_string()),
            Err(why) => {
                session.leave(&why);
                Err(why)
            }
        }
    }

    fn stay(&self, mut tended: Tended, mut session: Session) -> std::io::Result<()> {
        let (bell, closing) = (self.bell.clone(), self.closing.clone());
        let inside = self.inside.clone();
        inside.fetch_add(1, Ordering::SeqCst);
        let started = std::thread::Builder::new().name("resident".to_owned()).spawn(move || {
            let wake = bell.clone();
            session.on_sent_away(move |_| wake.ring());
            let why = loop {
                let (rung, last) = (bell.count(), closing.load(Ordering::SeqCst));
                if let Some(why) = session.sent_away() {
                    break why;
                }
                match lot(&mut tended, &mut session) {
                    Ok(true) if last => break DAEMON_ENDS.to_owned(),
                    Ok(true) => bell.wait(rung),
                    Ok(false) => {}
                    Err(why) => break why,
                }
            };
            tracing::info!(name = %session.name(), why, "detached");
            session.leave(&why);
            inside.fetch_sub(1, Ordering::SeqCst);
        });
        started.map(drop).inspect_err(|_| {
            self.inside.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// Lets them see what is left, for a few seconds.
    pub fn close(self) {
        self.closing.store(true, Ordering::SeqCst);
        self.bell.ring();
        let end = Instant::now() + LAST;
        while self.inside.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The next events for one actor; whether there were none.
fn lot(tended: &mut Tended, session: &mut Session) -> Result<bool, String> {
    let gate = session.gate();
    let mut ask = |intent| session.ask(intent).map_err(|error| error.to_string());
    tended.lot(gate.bus().log(), &mut ask)
}
