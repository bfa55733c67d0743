//! A record that someone has changed who knows how its checksum is made.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use events::log::LogError;

use super::Chance;
use crate::frame::{FRAME, Frame, HEADER, finish};
use crate::verify;

/// Changes the end of one record and makes its checksum right again: only the chain can tell. Which one
/// depends on the seed alone, so that schedules are what they were before there was this.
pub(super) fn forge(seed: u64, files: &[PathBuf]) {
    let mut chance = Chance::new(seed);
    let mut records = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "seg")) {
        let bytes = fs::read(path).unwrap();
        let mut at = HEADER;
        while at < bytes.len() {
            let end = at + FRAME + Frame::read(&bytes[at..]).length as usize;
            records.push((path, at..end));
            at = end;
        }
    }
    if records.is_empty() {
        return;
    }
    let (path, place) = records.swap_remove(chance.below(records.len() as u64) as usize);
    let sound = fs::read(path).unwrap();
    let mut bytes = sound.clone();
    let record = &mut bytes[place];
    let Frame { seq, index, count, .. } = Frame::read(record);
    *record.last_mut().unwrap() ^= 1;
    finish(record, 0, seq, index, count);
    fs::write(path, bytes).unwrap();
    let run = path.parent().and_then(Path::parent).unwrap();
    let seen = verify(run, |_, _| ControlFlow::Continue(()));
    let said = matches!(seen, Err(LogError::Damaged { .. }));
    assert!(said, "seed {seed}: record {seq} of {path:?} was forged: {seen:?}");
    fs::write(path, sound).unwrap();
}
