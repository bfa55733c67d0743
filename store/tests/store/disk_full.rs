//! A full disk: a small tmpfs in a mount namespace of the test's own thread.

use std::fs;
use std::path::Path;

use events::event::{Actor, Draft, Event};
use events::ids::Seq;
use events::log::{Blobs, Log, LogError};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use store::conformance::check_chain;
use store::{Home, OpenMode, is_disk_full};
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

fn blake(number: u32) -> [u8; 32] {
    events::ids::Digest::of(&number.to_le_bytes()).0
}
