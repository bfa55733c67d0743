//! Who is attached, and how one is sent away.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use events::intent::ActorName;

/// Ends an actor's stay, told why; must not wait for it.
type Close = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Default)]
struct Stay {
    close: Option<Close>,
    /// Why it was sent away, if it was.
    why: Option<String>,
}

/// Those who are attached, by name.
#[derive(Default)]
pub(super) struct Inside(Mutex<BTreeMap<ActorName, Stay>>);

impl Inside {
    fn stays(&self) -> MutexGuard<'_, BTreeMap<ActorName, Stay>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `name` is attached; an error if someone of that name is.
    pub fn enter(&self, name: ActorName) -> Result<(), String> {
        let mut stays = self.stays();
        if stays.contains_key(&name) {
            return Err(format!("an actor called {name} is attached: give another name"));
        }
        stays.insert(name, Stay::default());
        Ok(())
    }

    /// Notes that `name` is not attached any more.
    pub fn leave(&self, name: ActorName) {
        self.stays().remove(&name);
    }

    /// How the stay of `name` is ended; done at once if it was sent away already.
    pub fn on_sent_away(&self, name: ActorName, close: Close) {
        let why = self.stays().get_mut(&name).and_then(|stay| {
            stay.close = Some(close.clone());
            stay.why.clone()
        });
        if let Some(why) = why {
            close(&why);
        }
    }

    /// Why `name` was sent away, if it was.
    pub fn why(&self, name: ActorName) -> Option<String> {
        self.stays().get(&name).and_then(|stay| stay.why.clone())
    }

    /// Ends the stay of `name`; an error if nobody of that name is attached.
    pub fn send_away(&self, name: ActorName, why: &str) -> Result<(), String> {
        let close = {
            let mut stays = self.stays();
            let names: Vec<String> = stays.keys().map(ToString::to_string).collect();
            let stay = stays.get_mut(&name).ok_or_else(|| {
                format!("no actor called {name} is attached; there are: {}", names.join(", "))
            })?;
            stay.why.get_or_insert_with(|| why.to_owned());
            stay.close.clone()
        };
        if let Some(close) = close {
            close(why);
        }
        Ok(())
    }
}
