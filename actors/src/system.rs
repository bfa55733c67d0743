//! The shells as actix actors: each on a thread of its own, woken by an empty message.
//!
//! A wake-up carries nothing, so a lost or doubled one changes nothing. The daemon aborts on any
//! panic: actix would leave a dead actor behind that swallows its messages.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::{Actor, Handler, Message, SyncArbiter, SyncContext, System};
use events::state::Position;

use crate::bus::{Bus, Error};
use crate::shells::{Shell, Shells, Turn, turn};

/// The log grew, or someone wants everyone to look again.
#[derive(Clone, Copy, Debug)]
struct Appended;

impl Message for Appended {
    type Result = ();
}

/// Why the system ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All rounds are over.
    Finished,
    /// The run is paused; the reason is in the log.
    Paused,
    /// It was asked to stop.
    Stopped,
}

/// Where the first end or error is left.
type Outcome = Arc<Mutex<Option<Result<End, Error>>>>;

/// One actor: a shell and its mailbox.
struct Mailbox {
    shell: Option<Box<dyn Shell>>,
    bus: Arc<Bus>,
    /// Whether a wake-up is already on its way.
    pending: Arc<AtomicBool>,
    outcome: Outcome,
    /// How many shells are in the middle of something.
    busy: Arc<AtomicUsize>,
}

impl Actor for Mailbox {
    type Context = SyncContext<Self>;
}

impl Handler<Appended> for Mailbox {
    type Result = ();

    fn handle(&mut self, _: Appended, _: &mut Self::Context) {
        self.pending.store(false, Ordering::SeqCst);
        let Some(shell) = self.shell.as_mut() else { return };
        self.busy.fetch_add(1, Ordering::SeqCst);
        let result = exhaust(shell.as_mut(), &self.bus);
        self.busy.fetch_sub(1, Ordering::SeqCst);
        let ended = match result {
            Err(error) => Some(Err(error)),
            Ok(()) => match self.bus.ask(|s| (s.position, s.paused.is_some())) {
                Err(error) => Some(Err(error)),
                Ok((Position::Finished, _)) => Some(Ok(End::Finished)),
                Ok((_, true)) => Some(Ok(End::Paused)),
                Ok(_) => (self.bus.stopping() && self.busy.load(Ordering::SeqCst) == 0)
                    .then_some(Ok(End::Stopped)),
            },
        };
        if let Some(ended) = ended {
            self.outcome.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(ended);
        }
    }
}

/// Does all the work there is; waits longer after each failure of the world.
fn exhaust(shell: &mut dyn Shell, bus: &Bus) -> Result<(), Error> {
    loop {
        match turn(shell, bus)? {
            Turn::Worked => {}
            Turn::Idle | Turn::Paused => return Ok(()),
            Turn::Failed(times) => std::thread::sleep(Duration::from_secs(1 << times.min(5))),
        }
    }
}

/// How often the end is looked for.
const POLL: Duration = Duration::from_millis(50);

/// Runs all shells until the run finishes, pauses, is stopped, or the bus fails.
pub fn run(bus: &Arc<Bus>, shells: Shells) -> Result<End, Error> {
    shells.begin(bus)?;
    let outcome: Outcome = Arc::default();
    let busy = Arc::new(AtomicUsize::new(0));
    let system = System::new();
    let (watched, looked_at) = (outcome.clone(), bus.clone());
    system.block_on(async move {
        for shell in shells.shells {
            let pending = Arc::new(AtomicBool::new(false));
            let slot = Mutex::new(Some(shell));
            let (bus, outcome, busy) = (looked_at.clone(), outcome.clone(), busy.clone());
            let mark = pending.clone();
            let address = SyncArbiter::start(1, move || Mailbox {
                // actix asks for a factory; with one thread it is called once.
                shell: slot.lock().unwrap_or_else(PoisonError::into_inner).take(),
                bus: bus.clone(),
                pending: mark.clone(),
                outcome: outcome.clone(),
                busy: busy.clone(),
            });
            looked_at.listen(move || {
                if !pending.swap(true, Ordering::SeqCst) {
                    address.do_send(Appended);
                }
            });
        }
        looked_at.wake();
        loop {
            let ended = watched.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(ended) = ended {
                return ended;
            }
            actix::clock::sleep(POLL).await;
        }
    })
}
