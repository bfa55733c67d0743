//! A run whose log fails: an append that was refused, or that was made durable by a process which died
//! before it could say so. Started again each time, the run ends with the same events: nothing that it
//! asked for is lost, nothing is asked for or counted twice.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use actors::Bus;
use actors::shells::{Turn, drive};
use common::{World, config};
use events::event::{Draft, Recorded};
use events::ids::{Digest, Seq};
use events::log::{Log, LogError};
use events::state::RunState;
use store::MemoryLog;

/// Fails at random, by seed.
struct Failing {
    log: Arc<MemoryLog>,
    chance: Mutex<(u64, u64)>,
}

impl Failing {
    fn below(&self, limit: u64) -> u64 {
        let mut chance = self.chance.lock().unwrap();
        chance.1 += 1;
        let hash = Digest::of(&[chance.0.to_le_bytes(), chance.1.to_le_bytes()].concat());
        u64::from_le_bytes(hash.0[..8].try_into().unwrap()) % limit
    }
}

impl Log for Failing {
    fn append(&self, drafts: Vec<Draft>) -> Result<Vec<Recorded>, LogError> {
        let full = || LogError::DiskFull { path: "a full disk".into(), last: self.log.head().0 };
        match self.below(12) {
            0 => Err(full()),
            1 => self.log.append(drafts).and(Err(full())),
            _ => self.log.append(drafts),
        }
    }

    fn read_after(&self, seq: Seq, limit: usize) -> Result<Vec<Recorded>, LogError> {
        self.log.read_after(seq, limit)
    }

    fn head(&self) -> (Seq, Digest) {
        self.log.head()
    }
}

#[test]
fn a_run_whose_log_fails_again_and_again_ends_the_same() {
    let mut restarts = 0;
    for seed in 0..40 {
        let whole = World::new();
        whole.start(&config(seed));
        drive(&mut whole.shells(0), &whole.bus()).unwrap();
        let world = World::new();
        world.start(&config(seed));
        let log = Arc::new(Failing { log: world.log.clone(), chance: Mutex::new((seed, 0)) });
        loop {
            let bus = Bus::open(log.clone(), world.blobs.clone()).unwrap();
            match drive(&mut world.shells(0), &bus) {
                Ok(Turn::Idle) => break,
                Ok(other) => panic!("seed {seed}: {other:?}"),
                Err(_) => restarts += 1,
            }
        }
        assert_eq!(world.events(), whole.events(), "seed {seed}");
        let fold = |events: Vec<events::event::Event>| {
            let mut state = RunState::default();
            for (seq, event) in (1..).zip(&events) {
                state.apply(Seq(seq), event).unwrap();
            }
            state
        };
        assert_eq!(fold(world.events()), fold(whole.events()));
    }
    assert!(restarts > 200, "only {restarts} restarts");
}
