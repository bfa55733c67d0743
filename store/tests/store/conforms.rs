use std::cell::RefCell;

use events::ids::Seq;
use events::log::Log;
use store::conformance::{blobs_conform, check_chain, log_conforms};
use store::{BlobDir, MemoryBlobs, MemoryLog};
use tempfile::TempDir;

use super::{Place, all, drafts};

#[test]
fn logs_conform() {
    log_conforms(MemoryLog::new);
    let places = RefCell::new(Vec::new());
    for segment_bytes in [1, 400, 64 << 20] {
        log_conforms(|| {
            let place = Place::new();
            let log = place.open_with(segment_bytes);
            places.borrow_mut().push(place);
            log
        });
    }
    for place in places.take() {
        check_chain(&place.own().unwrap());
        place.verify().unwrap();
    }
}

#[test]
fn blobs_conform_both_ways() {
    blobs_conform(MemoryBlobs::new);
    let folder = TempDir::new().unwrap();
    blobs_conform(|| BlobDir::open(folder.path()).unwrap());
}

#[test]
fn a_log_goes_on_after_it_was_closed() {
    let place = Place::new();
    let mut before = Vec::new();
    for at in 0..30 {
        let log = place.open_with(500);
        assert_eq!(all(&log), before);
        assert!(log.recovery().cut.is_none());
        before.extend(log.append(drafts(at..at + 2)).unwrap());
        assert_eq!(log.get(Seq(1)).unwrap().as_ref(), before.first());
    }
    assert!(place.segments().len() > 3, "it was rolled");
    check_chain(&place.read().unwrap());
    let report = place.verify().unwrap();
    assert_eq!((report.events, report.torn_bytes), (60, 0));
    assert_eq!(report.segments, place.segments().len());
}
