//! Every cut and every flipped byte of a small log.

use std::fs::{self, OpenOptions};

use events::log::{Log, LogError};
use store::HeadState;
use store::conformance::{check_chain, draft};

use super::{Place, all, flip};

fn truncate(path: &std::path::Path, length: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

#[test]
fn every_cut_leaves_whole_batches_and_goes_on() {
    let place = Place::filled(64 << 20);
    let path = place.segments().remove(0);
    let whole = fs::read(&path).unwrap();
    let before = all(&place.read().unwrap());
    let ends: Vec<_> = [0, 1, 3, 6, before.len() - 1, before.len()].into();
    for length in (0..whole.len() as u64).rev() {
        fs::write(&path, &whole[..length as usize]).unwrap();
        fs::write(place.head(), b"").unwrap();
        let reader = place.read().unwrap();
        let seen = all(&reader);
        assert_eq!(fs::metadata(&path).unwrap().len(), length, "readers never cut");
        let log = place.own().unwrap();
        let kept = all(&log);
        assert_eq!(kept, seen);
        assert!(ends.contains(&kept.len()) && before.starts_with(&kept), "{}", kept.len());
        assert_eq!(log.recovery().outside, HeadState::Missing);
        let left = fs::metadata(&path).map_or(0, |m| m.len());
        let cut = log.recovery().cut.as_ref();
        assert_eq!(cut.map_or(0, |c| c.bytes), length - left, "the cut is reported");
        assert_eq!(cut.map_or(left, |c| c.offset), left);
        log.append(vec![draft(77), draft(78)]).unwrap();
        assert_eq!(all(&log).len(), kept.len() + 2);
        drop(log);
        check_chain(&place.own().unwrap());
    }
}

#[test]
fn a_log_without_its_head_is_not_gone_on_with() {
    let place = Place::filled(64 << 20);
    let path = place.segments().remove(0);
    let whole = fs::read(&path).unwrap();
    for length in [whole.len() / 2, whole.len()] {
        fs::remove_file(place.head()).unwrap();
        fs::write(&path, &whole[..length]).unwrap();
        let error = place.own().unwrap_err();
        assert!(error.to_string().contains("make it empty"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), whole[..length], "the log is untouched");
        assert!(!place.head().exists(), "what is missing is not made up");
        assert!(place.read().is_ok(), "reading is possible, and says that the head is missing");
        fs::write(place.head(), b"").unwrap();
        drop(place.own().unwrap());
    }
}

#[test]
fn a_cut_of_acknowledged_records_is_damage() {
    let place = Place::filled(64 << 20);
    let path = place.segments().remove(0);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() as u64 {
        truncate(&path, length);
        let error = place.own().unwrap_err();
        assert!(matches!(error, LogError::Damaged { .. }), "at {length}: {error}");
        assert!(place.read().is_err());
        assert_eq!(fs::read(&path).unwrap(), whole[..length as usize], "the log is untouched");
        fs::write(&path, &whole).unwrap();
    }
    check_chain(&place.own().unwrap());
}

#[test]
fn a_lagging_head_allows_a_cut_behind_it() {
    let place = Place::new();
    let log = place.own().unwrap();
    log.append(vec![draft(1)]).unwrap();
    let head = fs::read(place.head()).unwrap();
    log.append(vec![draft(2), draft(3)]).unwrap();
    drop(log);
    fs::write(place.head(), &head).unwrap();
    assert!(matches!(place.verify().unwrap().outside, HeadState::Lags(_)));
    let path = place.segments().remove(0);
    truncate(&path, fs::metadata(&path).unwrap().len() - 1);
    let report = place.verify().unwrap();
    assert!(report.torn_bytes > 0 && report.events == 1);
    let log = place.own().unwrap();
    assert!(log.recovery().cut.is_some());
    assert_eq!(check_chain(&log).len(), 1);
}

#[test]
fn every_flipped_byte_is_found_and_named() {
    for segment_bytes in [64 << 20, 600] {
        let place = Place::filled(segment_bytes);
        let paths = place.segments();
        assert_eq!(paths.len() > 1, segment_bytes == 600);
        for path in &paths {
            let whole = fs::read(path).unwrap();
            for at in 0..whole.len() {
                flip(path, at);
                let error = match place.own() {
                    Err(error) => error,
                    Ok(_) => place.verify().unwrap_err(),
                };
                let LogError::Damaged { path: named, offset, .. } = &error else {
                    panic!("byte {at}: {error}");
                };
                // The hash in a header is compared with the segment before it.
                assert!(paths.iter().any(|p| named == &p.display().to_string()), "{error}");
                assert!(*offset <= at as u64 || named != &path.display().to_string(), "{error}");
                fs::write(path, &whole).unwrap();
            }
        }
        place.verify().unwrap();
    }
}

#[test]
fn every_flipped_byte_of_the_head_is_found() {
    let place = Place::filled(64 << 20);
    for at in 0..fs::metadata(place.head()).unwrap().len() as usize {
        flip(&place.head(), at);
        let error = place.own().unwrap_err().to_string();
        assert!(error.contains("heads"), "{error}");
        assert!(place.verify().is_err());
        flip(&place.head(), at);
    }
    place.verify().unwrap();
    // What the error advises helps.
    flip(&place.head(), 3);
    let error = place.verify().unwrap_err().to_string();
    assert!(error.contains("make it empty to accept the log as it is"), "{error}");
    fs::write(place.head(), b"").unwrap();
    drop(place.own().unwrap());
    place.verify().unwrap();
}

#[test]
fn damage_before_a_later_batch_is_never_cut() {
    let place = Place::filled(64 << 20);
    let path = place.segments().remove(0);
    let whole = fs::read(&path).unwrap();
    let last_batch = 24 + 64;
    for at in 0..whole.len() - last_batch {
        flip(&path, at);
        fs::write(place.head(), b"").unwrap();
        let error = place.own().unwrap_err();
        assert!(matches!(error, LogError::Damaged { .. }), "byte {at}: {error}");
        fs::write(&path, &whole).unwrap();
    }
    place.own().unwrap();
}

#[test]
fn a_log_chained_again_differs_from_the_head() {
    let (place, other) = (Place::filled(64 << 20), Place::filled(64 << 20));
    let mut log = fs::read(&other.segments()[0]).unwrap();
    if log == fs::read(&place.segments()[0]).unwrap() {
        return; // Both were written in one millisecond.
    }
    fs::write(&place.segments()[0], &log).unwrap();
    let error = place.verify().unwrap_err().to_string();
    assert!(error.contains("differs from the head"), "{error}");
    log.truncate(10);
    assert!(place.own().is_err());
}

#[test]
fn missing_segments_are_damage() {
    let place = Place::filled(300);
    let paths = place.segments();
    for path in &paths {
        let whole = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        let opened = place.own().map(drop).and_then(|()| place.verify().map(drop));
        assert!(matches!(opened, Err(LogError::Damaged { .. })), "{opened:?}");
        fs::write(path, whole).unwrap();
    }
    place.verify().unwrap();
    assert!(paths.len() > 2);
}
