//! Every point of every piece of work: each change of a file in turn is where the process dies, the
//! power goes, the disk is full or broken. What was there before is there after, what was said to be
//! done is done, and the same work succeeds when it is tried again.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use events::ids::Seq;
use events::log::{Blobs, Log, LogError};
use events::state::RunState;

use super::world::{draft, folder, numbers, run};
use super::{Chance, Fault, arm, disarm};
use crate::{FileLog, Home, Kept, OpenMode, Options, backup, export, gc, import, restore, verify};

const FAULTS: [Fault; 6] = [
    Fault::Killed,
    Fault::PowerLost,
    Fault::Full(1),
    Fault::Full(30),
    Fault::Broken(1),
    Fault::Broken(3),
];

type Act = dyn Fn(&Path) -> Result<(), LogError>;

/// Does `act` in a prepared folder once for each change that it makes and each fault there; `holds`
/// looks at what is left, told whether `act` said that all went well.
fn every_point(prepare: &Act, act: &Act, holds: &dyn Fn(&Path, bool)) {
    for fault in FAULTS {
        let mut at = 0;
        loop {
            let place = folder();
            prepare(place.path()).unwrap();
            arm(Some((at, fault)), false, Chance::new(at));
            let said = act(place.path());
            let struck = disarm();
            if let Err(error) = &said {
                let fair = matches!(error, LogError::Io { .. } | LogError::DiskFull { .. });
                assert!(fair && struck.met, "{fault:?} at {at}: {error}");
            }
            holds(place.path(), said.is_ok() && !struck.dead);
            act(place.path()).unwrap_or_else(|e| panic!("again after {fault:?} at {at}: {e}"));
            holds(place.path(), true);
            if !struck.met {
                assert!(at > 2, "{fault:?} had only {at} points");
                break;
            }
            at += 1;
        }
    }
}

fn home(dir: &Path) -> Result<Home, LogError> {
    Home::open(dir.join("home"))
}

/// A home with a run of three records, a branch of it after the second with one of its own, and a blob
/// that nothing names.
fn family(dir: &Path) -> Result<(), LogError> {
    let home = home(dir)?;
    let log = home.create_run(run(1))?;
    for number in 1..=3 {
        log.append(vec![draft(number, 10)])?;
    }
    drop(log);
    drop(home.fork_run(run(1), Seq(2), run(2), vec![draft(5, 10)])?);
    home.blobs()?.put(b"a blob that nothing names").map(drop)
}

/// The numbers in a run of a home that is sound.
#[track_caller]
fn sound(home: &Path, number: u64) -> Vec<u32> {
    let dir = home.join("runs").join(run(number).to_string());
    verify(&dir, |_, _| ControlFlow::Continue(())).unwrap();
    numbers(&FileLog::open(&dir, OpenMode::ReadOnly).unwrap()).unwrap()
}

#[track_caller]
fn family_holds(home: &Path) {
    assert_eq!(sound(home, 1), [1, 2, 3]);
    assert_eq!(sound(home, 2), [1, 2, 5]);
}

/// Appends 1 to 8 in batches of two, with a new segment every few, asking first what is there.
fn appends(dir: &Path) -> Result<(), LogError> {
    let home = home(dir)?;
    let id = run(1);
    if !home.run_dir(id).exists() {
        drop(home.create_run(id)?);
    }
    let options = Options { segment_bytes: 500 };
    let log = FileLog::open_with(&home.run_dir(id), OpenMode::Own, options)?;
    while log.head().0 < Seq(8) {
        let next = log.head().0.0 as u32 + 1;
        log.append(vec![draft(next, 30), draft(next + 1, 600)])?;
    }
    Ok(())
}

#[test]
fn appending() {
    every_point(&|_| Ok(()), &appends, &|dir, done| {
        let runs = home(dir).unwrap().runs().unwrap();
        let found = if runs.is_empty() { vec![] } else { sound(&dir.join("home"), 1) };
        let whole: Vec<u32> = (1..=8).collect();
        assert!(whole.starts_with(&found) && found.len() % 2 == 0, "{found:?}");
        assert!(!done || found == whole);
    });
}

#[test]
fn branching() {
    let branch = |dir: &Path| {
        let home = home(dir)?;
        let id = run(7);
        if !home.run_dir(id).exists() {
            // Two records of a size that no write of a disk takes as one.
            drop(home.fork_run(run(1), Seq(3), id, vec![draft(4, 600), draft(5, 600)])?);
        }
        // Another branch removes what is left of one whose maker died.
        if !home.run_dir(run(8)).exists() {
            drop(home.fork_run(run(1), Seq(1), run(8), vec![draft(9, 5)])?);
        }
        Ok(())
    };
    every_point(&family, &branch, &|dir, done| {
        family_holds(&dir.join("home"));
        let runs = home(dir).unwrap().runs().unwrap();
        for (number, whole) in [(7, vec![1, 2, 3, 4, 5]), (8, vec![1, 9])] {
            let there = runs.contains(&run(number));
            assert!(there || !done);
            assert!(!there || sound(&dir.join("home"), number) == whole, "whole or not at all");
        }
        if done {
            let names = |part: &str| fs::read_dir(dir.join("home").join(part)).unwrap().count();
            assert_eq!((names("runs"), names("heads")), (4, 4), "nothing else is left");
        }
    });
}

#[test]
fn storing_blobs() {
    let contents = || [vec![7; 5_000], b"short".to_vec(), (0..=255).collect::<Vec<u8>>()];
    let store = move |dir: &Path| {
        let blobs = home(dir)?.blobs()?;
        for content in contents() {
            let id = blobs.put(&content)?;
            let out = dir.join("out");
            blobs.export_to(id, &out)?;
            assert_eq!(fs::read(&out).unwrap(), content);
            blobs.put_file(&out)?;
        }
        Ok(())
    };
    every_point(&family, &store, &move |dir, done| {
        family_holds(&dir.join("home"));
        let blobs = home(dir).unwrap().blobs().unwrap();
        for content in contents() {
            let id = events::ids::Digest::of(&content);
            assert!(!done || blobs.has(id));
            assert!(!blobs.has(id) || blobs.get(id).unwrap() == content, "whole or not at all");
        }
        let out = dir.join("out");
        assert!(!out.exists() || contents().contains(&fs::read(out).unwrap()));
    });
}

#[test]
fn copying() {
    let copy = |dir: &Path| {
        for (from, to) in [("home", "copy"), ("copy", "restored")] {
            let to = dir.join(to);
            if !to.exists() {
                match from {
                    "home" => backup(&home(dir)?, &to)?,
                    from => restore(&dir.join(from), &to)?,
                };
            }
        }
        Ok(())
    };
    every_point(&family, &copy, &|dir, done| {
        family_holds(&dir.join("home"));
        for to in ["copy", "restored"].map(|to| dir.join(to)) {
            assert!(!done || to.exists());
            if to.exists() {
                family_holds(&to);
            }
        }
    });
}

#[test]
fn carrying_over() {
    let carry = |dir: &Path| {
        let archive = dir.join("archive");
        if !archive.exists() {
            export(&home(dir)?, run(2), &archive)?;
        }
        let other = Home::open(dir.join("other"))?;
        if !other.run_dir(run(2)).exists() {
            import(&other, &archive)?;
        }
        Ok(())
    };
    every_point(&family, &carry, &|dir, done| {
        family_holds(&dir.join("home"));
        let other = dir.join("other");
        let there = other.join("runs").join(run(2).to_string()).exists();
        assert!(there || !done);
        if there {
            assert_eq!(sound(&other, 2), [1, 2, 5]);
        }
    });
}

#[test]
fn collecting() {
    let collect = |dir: &Path| gc(&home(dir)?, Duration::ZERO, false).map(drop);
    every_point(&family, &collect, &|dir, done| {
        family_holds(&dir.join("home"));
        let collected = gc(&home(dir).unwrap(), Duration::ZERO, true).unwrap();
        assert!(!done || collected.removed.0 == 0);
    });
}

#[test]
fn indexing() {
    let index = |dir: &Path| {
        let log = home(dir)?.open_run(run(1), OpenMode::Own)?;
        assert_eq!(log.by_name("WorkFailed")?, [1, 2, 3].map(Seq));
        drop(log);
        // A failure to throw the old one away is said; the log answers all the same.
        let log = home(dir)?.open_run(run(1), OpenMode::Own)?;
        let built = log.rebuild_index();
        assert_eq!(log.by_name("WorkFailed")?, [1, 2, 3].map(Seq));
        built
    };
    every_point(&family, &index, &|dir, _| family_holds(&dir.join("home")));
}

#[test]
fn keeping_a_state() {
    let fold = |log: &FileLog| RunState { last: log.head().0, ..RunState::default() };
    let keep = move |dir: &Path| {
        let log = home(dir)?.open_run(run(1), OpenMode::Own)?;
        if log.kept()? == Kept::Nothing {
            log.keep(&RunState { last: Seq(1), ..RunState::default() })?;
        }
        log.keep(&fold(&log))
    };
    every_point(&family, &keep, &move |dir, done| {
        family_holds(&dir.join("home"));
        let log = home(dir).unwrap().open_run(run(1), OpenMode::ReadOnly).unwrap();
        match log.kept().unwrap() {
            Kept::State(kept) => assert!(*kept == fold(&log) || (!done && kept.last == Seq(1))),
            // A state that was never synced under its name may have gone with the power.
            other => assert!(!done && other == Kept::Nothing, "{other:?}"),
        }
    });
}
