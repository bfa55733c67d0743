//! A log of a newer program is refused as that, not as damage.

use std::fs;

use events::event::SCHEMA;
use events::log::LogError;

use super::{Place, drafts};

const HEADER: usize = 56;
const FRAME: usize = 24;

fn resum(
    bytes: &mut [u8],
    crc_at: usize,
    before: std::ops::Range<usize>,
    after: std::ops::Range<usize>,
) {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[before]);
    hasher.update(&bytes[after]);
    let crc = hasher.finalize();
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn refused(place: &Place) {
    for found in [place.own().map(|_| ()), place.read().map(|_| ()), place.verify().map(|_| ())] {
        let error = found.unwrap_err();
        assert!(matches!(error, LogError::Newer { .. }), "{error}");
        assert!(error.to_string().contains("use a newer program"), "{error}");
    }
}

#[test]
fn a_record_of_a_newer_schema() {
    let place = Place::new();
    let log = place.own().unwrap();
    events::log::Log::append(&log, drafts(0..1)).unwrap();
    drop(log);
    let path = place.segments().remove(0);
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[HEADER + FRAME..HEADER + FRAME + 2].copy_from_slice(&(SCHEMA + 1).to_le_bytes());
    resum(&mut bytes, HEADER + 4, HEADER..HEADER + 4, HEADER + 8..end);
    fs::write(&path, &bytes).unwrap();
    refused(&place);
    assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is cut");
}

#[test]
fn a_segment_of_a_newer_layout() {
    let place = Place::filled(1 << 20);
    let path = place.segments().remove(0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
    resum(&mut bytes, 52, 0..52, 0..0);
    fs::write(&path, &bytes).unwrap();
    refused(&place);
    assert_eq!(fs::read(&path).unwrap(), bytes, "nothing is cut");
}
