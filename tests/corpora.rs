//! Bytes that were kept from fuzzing, and those that once were too much for the program: each is read
//! again, by the same functions as `make fuzz` calls.
#![allow(clippy::unwrap_used)]

#[path = "fuzz/targets.rs"]
mod targets;

use std::path::PathBuf;

fn replay(name: &str, target: fn(&[u8])) {
    let tests = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("tests");
    let folder = tests.join("fuzz/corpus").join(name);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        target(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 5, "only {count} files in {}", folder.display());
}

#[test]
fn records() {
    replay("record", targets::record);
}

#[test]
fn segments() {
    replay("segment", targets::segment);
}

#[test]
fn configs() {
    replay("config", targets::config);
}

#[test]
fn requests() {
    replay("request", targets::request);
}

#[test]
fn archives() {
    replay("archive", targets::archive);
}

#[test]
fn lines_of_attached_actors() {
    replay("attach", targets::attach);
}
