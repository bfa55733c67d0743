//! A full disk: a small tmpfs in a mount namespace of the test's own thread.

use std::fs;
use std::path::Path;

use events::event::{Actor, Draft, Event};
use events::ids::Seq;
use events::log::{Blobs, Log, LogError};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use store::conformance::check_chain;
use store::{FileLog, Home, OpenMode, Options, backup, is_disk_full};
use tempfile::TempDir;

use super::run;

fn small_disk(dir: &Path) -> nix::Result<()> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some("size=256k"))
}

fn large() -> Draft {
    let event = Event::WorkFailed { work: "w".into(), attempt: 1, error: "x".repeat(10_000) };
    Draft { cause: None, actor: Actor::Trainer, event }
}

#[test]
fn a_full_disk_fails_the_append_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    if let Err(error) = small_disk(folder.path()) {
        eprintln!("SKIPPED: a small disk cannot be mounted here: {error}");
        return;
    }
    let home = Home::open(folder.path()).unwrap();
    let log = home.create_run(run(1)).unwrap();
    for round in 0..3 {
        let ballast = folder.path().join("ballast");
        fs::write(&ballast, vec![1; 120_000 - round * 30_000]).unwrap();
        let before = loop {
            let before = log.head();
            match log.append(vec![large(), large()]) {
                Ok(_) => {}
                Err(LogError::DiskFull { last, .. }) => {
                    assert_eq!(last, before.0);
                    break before;
                }
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(log.head(), before);
        assert!(log.append(vec![large(); 9]).is_err());
        assert_eq!(check_chain(&log).len() as u64, before.0.0, "the log can be read");
        assert!(log.by_cause(Seq(1)).is_ok(), "questions are answered without an index");
        let blobs = home.blobs().unwrap();
        let noise: Vec<u8> = (0..20_000u32).flat_map(blake).collect();
        assert!(is_disk_full(&blobs.put(&noise).unwrap_err()));
        fs::remove_file(&ballast).unwrap();
        log.append(vec![large()]).unwrap();
        assert_eq!(check_chain(&log).len() as u64, before.0.0 + 1);
    }
    fs::write(folder.path().join("ballast"), vec![1; 300_000]).unwrap_err();
    let events = log.head().0;
    drop(log);
    let log = home.open_run(run(1), OpenMode::Own).unwrap();
    assert!(log.recovery().cut.is_none());
    assert_eq!(log.head().0, events, "it opens on a full disk");
    check_chain(&log);
}

/// A disk of each size, from one on which nothing fits: what was acknowledged is there, and the same
/// work ends once there is space.
#[test]
fn a_disk_that_is_full_at_any_point() {
    let folder = TempDir::new().unwrap();
    if let Err(error) = small_disk(folder.path()) {
        eprintln!("SKIPPED: a small disk cannot be mounted here: {error}");
        return;
    }
    let mut filled = 0;
    for pages in 1..50 {
        let none = None::<&str>;
        let resize = |size: &str| {
            mount(none, folder.path(), none, MsFlags::MS_REMOUNT, Some(size)).unwrap();
        };
        resize(&format!("size={}k", pages * 4));
        let mut acknowledged = 0;
        let end = work(folder.path(), pages, &mut acknowledged);
        filled += usize::from(end.is_err());
        if let Err(error) = end {
            assert!(is_disk_full(&error), "{pages} pages: {error}");
        }
        resize("size=4m");
        let before = acknowledged;
        work(folder.path(), pages, &mut acknowledged).unwrap();
        let home = Home::existing(folder.path()).unwrap();
        let log = home.open_run(run(pages), OpenMode::ReadOnly).unwrap();
        let records = check_chain(&log).len() as u64;
        assert!(records >= before && records == acknowledged, "{pages} pages");
        drop(log);
        for part in ["runs", "blobs", "heads", "copy"] {
            fs::remove_dir_all(folder.path().join(part)).unwrap();
        }
    }
    assert!(filled > 20, "only {filled} disks were too small");
}

/// A run of ten records in small segments, blobs, and a copy of all; notes what was acknowledged.
fn work(dir: &Path, number: u64, acknowledged: &mut u64) -> Result<(), LogError> {
    let home = Home::open(dir)?;
    if !home.run_dir(run(number)).exists() {
        drop(home.create_run(run(number))?);
    }
    let options = Options { segment_bytes: 15_000 };
    let log = FileLog::open_with(&home.run_dir(run(number)), OpenMode::Own, options)?;
    assert!(log.head().0.0 >= *acknowledged, "something acknowledged is lost");
    while log.head().0 < Seq(10) {
        log.append(vec![large()])?;
        *acknowledged = log.head().0.0;
    }
    home.blobs()?.put(&(0..300u32).flat_map(blake).collect::<Vec<u8>>())?;
    drop(log);
    let copy = dir.join("copy");
    if copy.exists() { Ok(()) } else { backup(&home, &copy).map(drop) }
}

fn blake(number: u32) -> [u8; 32] {
    events::ids::Digest::of(&number.to_le_bytes()).0
}
