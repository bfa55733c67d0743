//! Failpoints at every change of a file, for the tests of this crate: see `disk.rs`.
//!
//! A plan belongs to a thread and strikes once, at a numbered change: the process dies (before, in the
//! middle of or after the change; whatever it does then does not happen any more), or the disk is full
//! or broken for some changes. Losing the power is dying, and then what was not synced may be undone.

mod chance;
mod forged;
mod loss;
mod points;
mod schedules;
mod world;

use std::cell::RefCell;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

pub(crate) use chance::Chance;
use loss::Journal;

use crate::disk::Change;

/// What happens to a process and its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is killed.
    Killed,
    /// Everybody's power goes.
    PowerLost,
    /// No space is left for this many changes.
    Full(u64),
    /// This many changes fail with an I/O error.
    Broken(u64),
}

/// What a disk writes as one, in bytes.
const BLOCK: u64 = 512;

/// What is to happen, and what has.
struct Plan {
    strikes: Option<(u64, Fault)>,
    /// Changes so far.
    count: u64,
    dead: bool,
    chance: Chance,
    journal: Journal,
    /// Whether the clock jumps, and by how many seconds it is wrong now.
    clock: Option<i64>,
}

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// From now on the `at`-th change of this thread (from 0) meets `fault`. With `jumps` the clock jumps.
pub(crate) fn arm(strikes: Option<(u64, Fault)>, jumps: bool, chance: Chance) {
    let (count, dead, journal) = (0, false, Journal::default());
    let clock = jumps.then_some(0);
    PLAN.set(Some(Plan { strikes, count, dead, chance, journal, clock }));
}

/// What came of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Struck {
    /// Whether the fault was met at all.
    pub met: bool,
    /// Whether the process died.
    pub dead: bool,
}

/// How the plan stands.
pub(crate) fn struck() -> Struck {
    PLAN.with_borrow(|plan| {
        let plan = plan.as_ref().unwrap();
        let met = plan.strikes.is_some_and(|(at, _)| plan.count > at);
        Struck { met, dead: plan.dead }
    })
}

/// The next process starts: no more faults. If the power was lost, so is what was not synced.
pub(crate) fn disarm() -> Struck {
    let struck = struck();
    let mut plan = PLAN.take().unwrap();
    if plan.dead && matches!(plan.strikes, Some((_, Fault::PowerLost))) {
        plan.journal.lose(&mut plan.chance);
    }
    struck
}

enum Verdict {
    Go,
    GoThenDie,
    Fail(Error),
}

/// Does the change, unless the plan of this thread has something against it.
pub(crate) fn change<T>(
    change: Change<'_>,
    act: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let verdict = PLAN.with_borrow_mut(|plan| plan.as_mut().map(|plan| plan.meet(change)));
    match verdict {
        None | Some(Verdict::Go) => {
            let done = act();
            let after = |plan: &mut Option<Plan>| {
                if let (Some(plan), true) = (plan, done.is_ok()) {
                    plan.journal.after(change);
                }
            };
            PLAN.with_borrow_mut(after);
            done
        }
        Some(Verdict::GoThenDie) => act().and(Err(killed())),
        Some(Verdict::Fail(error)) => Err(error),
    }
}

pub(crate) fn clock(now: SystemTime) -> SystemTime {
    let jump = |plan: &mut Plan| {
        let wrong = plan.clock.as_mut()?;
        if plan.chance.one_in(3) {
            *wrong = plan.chance.below(6_000_000_000) as i64 - 3_000_000_000;
        }
        Some(*wrong)
    };
    match PLAN.with_borrow_mut(|plan| plan.as_mut().and_then(jump)) {
        Some(wrong) if wrong < 0 => now - Duration::from_secs(wrong.unsigned_abs()),
        Some(wrong) => now + Duration::from_secs(wrong.unsigned_abs()),
        None => now,
    }
}

fn killed() -> Error {
    Error::other("this process is dead")
}

impl Plan {
    fn meet(&mut self, change: Change<'_>) -> Verdict {
        let count = self.count;
        self.count += 1;
        if self.dead {
            return Verdict::Fail(killed());
        }
        let verdict = self.decide(count, change);
        if !matches!(verdict, Verdict::Fail(_)) {
            self.journal.before(change);
        }
        verdict
    }

    fn decide(&mut self, count: u64, change: Change<'_>) -> Verdict {
        let Some((at, fault)) = self.strikes else { return Verdict::Go };
        match fault {
            Fault::Killed | Fault::PowerLost if count == at => self.die(change),
            Fault::Full(lasts) if (at..at + lasts).contains(&count) => self.full(change),
            Fault::Broken(lasts) if (at..at + lasts).contains(&count) => {
                self.part_of(change);
                Verdict::Fail(Error::from_raw_os_error(nix::libc::EIO))
            }
            _ => Verdict::Go,
        }
    }

    fn die(&mut self, change: Change<'_>) -> Verdict {
        self.dead = true;
        if self.chance.one_in(3) {
            return Verdict::GoThenDie;
        }
        self.part_of(change);
        Verdict::Fail(killed())
    }

    fn full(&mut self, change: Change<'_>) -> Verdict {
        let fails = match change {
            Change::Create(_) | Change::Write(..) | Change::Folder(_) => true,
            // What was written may get its place only now; a folder may have to grow.
            Change::Sync(_) | Change::Rename(..) => self.chance.one_in(3),
            _ => false,
        };
        if !fails {
            return Verdict::Go;
        }
        self.part_of(change);
        Verdict::Fail(ErrorKind::StorageFull.into())
    }

    /// Of a write that fails any part may have been done; one that lies within a block is done or not.
    fn part_of(&mut self, change: Change<'_>) {
        let Change::Write(path, at, bytes) = change else { return };
        self.journal.before(change);
        let length = bytes.len() as u64;
        let one = at / BLOCK == (at + length.max(1) - 1) / BLOCK;
        let part = if one { self.chance.of(&[0, length]) } else { self.chance.below(length + 1) };
        write_at(path, at, &bytes[..part as usize]);
    }
}

fn write_at(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}
