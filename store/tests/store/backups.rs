use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use events::event::{Actor, Draft, Event};
use events::ids::Seq;
use events::log::{Blobs, Log, LogError};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use store::conformance::{check_chain, draft};
use store::{Home, OpenMode, backup, is_disk_full, restore};
use tempfile::TempDir;

use super::{all, family, files, flip, naming, run};

#[test]
fn a_copy_is_a_home_and_comes_back_as_it_was() {
    let (place, ids) = family();
    let folder = TempDir::new().unwrap();
    let to = folder.path().join("copy");
    let copied = backup(&place.home, &to).unwrap();
    assert_eq!((copied.runs.len(), copied.blobs), (3, 3));
    // An empty home, as commands that look for runs make it, is no obstacle.
    let again = folder.path().join("again");
    drop(Home::open(&again).unwrap().blobs().unwrap());
    assert_eq!(restore(&to, &again).unwrap(), copied);
    for home in [Home::existing(&to).unwrap(), Home::existing(&again).unwrap()] {
        for number in 1..=3 {
            let before = all(&place.home.open_run(run(number), OpenMode::ReadOnly).unwrap());
            let log = home.open_run(run(number), OpenMode::Own).unwrap();
            assert_eq!(check_chain(&log), before, "run {number}");
            log.append(vec![draft(7)]).unwrap();
        }
        assert!(home.blobs().unwrap().verify_all(ids.iter().copied()).is_empty());
    }
    let left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "no partial copies: {left:?}");
}

#[test]
fn the_home_of_the_service_comes_along() {
    let (place, _) = family();
    let service = Home::open(place.home.dir().join("service")).unwrap();
    let jobs = service.blobs().unwrap().put(b"a job").unwrap();
    service.create_run(run(9)).unwrap().append(vec![naming(jobs)]).unwrap();
    let folder = TempDir::new().unwrap();
    let (to, again) = (folder.path().join("copy"), folder.path().join("again"));
    assert_eq!(backup(&place.home, &to).unwrap().runs.len(), 4);
    restore(&to, &again).unwrap();
    let service = Home::existing(&again.join("service")).unwrap();
    assert_eq!(all(&service.open_run(run(9), OpenMode::Own).unwrap()).len(), 1);
    assert!(service.blobs().unwrap().has(jobs));
}

#[test]
fn a_copy_is_made_while_an_owner_appends() {
    let (place, _) = family();
    let folder = TempDir::new().unwrap();
    let stop = AtomicBool::new(false);
    let log = place.open_with(2000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                log.append(vec![draft(1), draft(2), draft(3)]).unwrap();
            }
        });
        for number in 0..10 {
            let to = folder.path().join(number.to_string());
            let least = log.head().0;
            backup(&place.home, &to).unwrap();
            let copy = Home::existing(&to).unwrap();
            let copied = copy.open_run(run(1), OpenMode::Own).unwrap();
            assert!(copied.recovery().cut.is_none(), "whole batches only");
            let records = check_chain(&copied);
            assert!(Seq(records.len() as u64) >= least, "what was acknowledged before is in it");
            let own = log.read_after(Seq(0), records.len()).unwrap();
            assert_eq!(records, own, "a prefix of the log");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn nothing_is_overwritten_and_nothing_damaged_is_copied() {
    let (place, ids) = family();
    let folder = TempDir::new().unwrap();
    let to = folder.path().join("copy");
    backup(&place.home, &to).unwrap();
    let before = files(&to);
    let refused = |found: Result<_, LogError>| {
        let error = found.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("something is there already"), "{error}");
    };
    refused(backup(&place.home, &to));
    refused(restore(&to, place.home.dir()));
    assert_eq!(files(&to), before);
    assert!(restore(folder.path(), &folder.path().join("x")).is_err(), "not a backup");
    let path = place.home.blobs().unwrap().path(ids[1]);
    let blob = fs::read(&path).unwrap();
    let second = folder.path().join("second");
    for damage in [Some(&blob[..blob.len() - 3]), None] {
        match damage {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = backup(&place.home, &second).unwrap_err();
        assert!(matches!(error, LogError::Blob { id, .. } if id == ids[1]), "{error}");
    }
    fs::write(&path, blob).unwrap();
    flip(&place.segments()[2], 80);
    let error = backup(&place.home, &second).unwrap_err();
    assert!(matches!(error, LogError::Damaged { .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only the first copy");
}

#[test]
fn a_full_disk_leaves_no_copy() {
    let (place, _) = family();
    let log = place.home.open_run(run(3), OpenMode::Own).unwrap();
    let event = Event::WorkFailed { work: "w".into(), attempt: 1, error: "x".repeat(9_000) };
    for _ in 0..40 {
        let draft = Draft { cause: None, actor: Actor::Trainer, event: event.clone() };
        log.append(vec![draft]).unwrap();
    }
    drop(log);
    let folder = TempDir::new().unwrap();
    let none = None::<&str>;
    let mounted = unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
        .and_then(|()| {
            let size = Some("size=256k");
            mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), size)
        });
    if let Err(error) = mounted {
        eprintln!("SKIPPED: a small disk cannot be mounted here: {error}");
        return;
    }
    let to = folder.path().join("copy");
    let error = backup(&place.home, &to).unwrap_err();
    assert!(is_disk_full(&error), "{error}");
    let error = store::export(&place.home, run(3), &folder.path().join("a.kz"));
    assert!(error.is_ok(), "40 equal events are small in an archive: {error:?}");
    fs::remove_file(folder.path().join("a.kz")).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the space is free again");
}
