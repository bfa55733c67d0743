use std::fs;
use std::process::Command;
use std::time::Duration;

use events::log::{Blobs, LogError};
use store::gc;

use super::{Place, family, files, flip, run};

/// What the child that is killed works on.
const DIR: &str = "STORE_TEST_GC_DIR";

#[test]
fn what_no_run_names_goes_and_what_any_run_names_stays() {
    let (place, ids) = family();
    let blobs = place.home.blobs().unwrap();
    let loose = blobs.put(b"nobody names this").unwrap();
    let stray = blobs.path(loose).with_file_name("notes.txt");
    fs::write(&stray, "not a blob").unwrap();
    drop(blobs);
    let before = files(place.home.dir());
    let young = gc(&place.home, Duration::from_secs(3600), false).unwrap();
    assert_eq!((young.kept.0, young.young.0, young.removed.0), (3, 1, 0));
    let would = gc(&place.home, Duration::ZERO, true).unwrap();
    assert_eq!((would.names.as_slice(), would.shared), (&[loose][..], 1));
    assert_eq!(files(place.home.dir()), before, "a dry run and a young blob change nothing");
    let found = gc(&place.home, Duration::ZERO, false).unwrap();
    assert_eq!(found, would);
    let blobs = place.home.blobs().unwrap();
    assert!(!blobs.has(loose) && stray.exists());
    assert!(blobs.verify_all(ids).is_empty());
    assert_eq!(gc(&place.home, Duration::ZERO, true).unwrap().removed, (0, 0));
}

#[test]
fn nothing_goes_while_someone_may_be_writing() {
    let (place, _) = family();
    let blobs = place.home.blobs().unwrap();
    let loose = blobs.put(b"named in a moment").unwrap();
    let refused = gc(&place.home, Duration::ZERO, false).unwrap_err();
    assert!(matches!(&refused, LogError::InUse { .. }), "{refused}");
    let clone = blobs.clone();
    drop(blobs);
    assert!(gc(&place.home, Duration::ZERO, false).is_err(), "a copy of the handle counts too");
    drop(clone);
    let owner = place.home.open_run(run(3), store::OpenMode::Own).unwrap();
    let refused = gc(&place.home, Duration::ZERO, false).unwrap_err();
    assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
    drop(owner);
    assert!(place.home.blobs().unwrap().has(loose));
    assert_eq!(gc(&place.home, Duration::ZERO, false).unwrap().names, vec![loose]);
}

#[test]
fn a_damaged_log_stops_it_before_anything_goes() {
    let (place, _) = family();
    place.home.blobs().unwrap().put(b"loose").unwrap();
    flip(&place.segments()[1], 100);
    let before = files(place.home.dir());
    for dry_run in [true, false] {
        let error = gc(&place.home, Duration::ZERO, dry_run).unwrap_err();
        assert!(matches!(error, LogError::Damaged { .. }), "{error}");
    }
    assert_eq!(files(place.home.dir()), before);
}

#[test]
#[ignore = "run by the test below"]
fn collector() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let home = store::Home::existing(dir.as_ref()).unwrap();
    gc(&home, Duration::ZERO, false).unwrap();
}

#[test]
fn killed_in_the_middle_it_only_has_less_to_do() {
    let (place, ids) = family();
    let mut between = 0;
    for round in 0..12u64 {
        let blobs = place.home.blobs().unwrap();
        let loose: Vec<_> =
            (0..300u32).map(|n| blobs.put(&(n, round).0.to_le_bytes()).unwrap()).collect();
        drop(blobs);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "gc::collector", "--ignored"])
            .env(DIR, place.home.dir())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(4000 + 1500 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let blobs = place.home.blobs().unwrap();
        let left = loose.iter().filter(|id| blobs.has(**id)).count();
        between += usize::from(left > 0 && left < loose.len());
        assert!(blobs.verify_all(ids.iter().copied()).is_empty());
        assert!(blobs.verify_all(loose.into_iter().filter(|id| blobs.has(*id))).is_empty());
    }
    println!("killed between the first and the last blob in {between} of 12 rounds");
    gc(&place.home, Duration::ZERO, false).unwrap();
    assert!(place_is_whole(&place));
}

fn place_is_whole(place: &Place) -> bool {
    (1..=3).all(|number| {
        store::verify(&place.home.run_dir(run(number)), |_, _| std::ops::ControlFlow::Break(()))
            .is_ok()
    })
}
