//! Logs of every released schema stay readable for ever.

use std::fs;
use std::path::{Path, PathBuf};

use events::event::{Event, Recorded, SCHEMA};
use events::ids::{Digest, Seq};
use events::outcome::{Execution, Timing};
use store::codec::{decode, encode};
use store::conformance::one_of_each;

use super::{Place, all};

fn path(schema: u16) -> PathBuf {
    let name = format!("schema-{schema}.log");
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("tests/golden").join(name)
}

/// What the golden log of the present schema holds.
fn expected() -> Vec<Recorded> {
    let mut previous = Digest::default();
    let mut records = Vec::new();
    for (seq, draft) in (1..).zip(one_of_each()) {
        let at_unix_ms = 1_700_000_000_000 + seq;
        let (cause, actor, event, schema) = (draft.cause, draft.actor, draft.event, SCHEMA);
        let seq = Seq(seq);
        let record = Recorded { seq, at_unix_ms, cause, actor, schema, previous, event };
        previous = Digest::of(&encode(&record).unwrap());
        records.push(record);
    }
    records
}

/// What a golden log of schema 1 is read as: measurements had neither headers nor products, trials
/// did not say what was varied, and there were no replays.
fn as_schema_1(mut record: Recorded) -> Recorded {
    record.schema = 1;
    let Event::KernelMeasured { measurement, .. } = &mut record.event else { return record };
    (measurement.products, measurement.headers) = (false, None);
    if let Execution::Ran { trials, timing, .. } = &mut measurement.execution {
        for (index, trial) in trials.iter_mut().enumerate() {
            trial.varied = if index == 0 { "given" } else { "unknown" }.into();
        }
        if let Timing::Taken(times) = timing {
            (times.calls, times.graph) = (3, None);
        }
    }
    record
}

/// The bytes of a segment that holds `records` as one batch, written out by hand: this is the form
/// that must never change.
fn segment(records: &[Recorded]) -> Vec<u8> {
    let mut bytes = b"KZLOG\r\n\x1a".to_vec();
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend([0; 32]);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    for (index, record) in records.iter().enumerate() {
        let payload = encode(record).unwrap();
        let length = (payload.len() as u32).to_le_bytes();
        let mut rest = record.seq.0.to_le_bytes().to_vec();
        rest.extend((index as u32).to_le_bytes());
        rest.extend((records.len() as u32).to_le_bytes());
        rest.extend(payload);
        let crc = crc32fast::hash(&[&length[..], &rest].concat());
        bytes.extend(length);
        bytes.extend(crc.to_le_bytes());
        bytes.extend(rest);
    }
    bytes
}

/// A run whose log is the golden one of `schema`.
fn golden(schema: u16) -> Place {
    let place = Place::new();
    fs::copy(path(schema), place.dir().join("log").join(format!("{:020}.seg", 1))).unwrap();
    fs::remove_file(place.head()).unwrap();
    place
}

/// What a golden log of schema 2 is read as: only variants were added since.
fn as_schema_2(mut record: Recorded) -> Recorded {
    record.schema = 2;
    record
}

/// Events of the golden logs of schemas 1 and 2: those of runs.
fn of_runs() -> Vec<Recorded> {
    let mut records = expected();
    let first = records.iter().position(|r| matches!(r.event, Event::ServiceStarted { .. }));
    records.truncate(first.unwrap());
    records
}

#[test]
fn the_golden_logs_of_older_schemas_are_read() {
    type AsRead = fn(Recorded) -> Recorded;
    let readers: [(u16, AsRead); 2] = [(1, as_schema_1), (2, as_schema_2)];
    for (schema, as_read) in readers {
        let place = golden(schema);
        let read = all(&place.read().unwrap());
        assert_eq!(read.len(), of_runs().len());
        for (read, expected) in read.into_iter().zip(of_runs()) {
            // The chain is over the bytes that were stored then; `verify` follows it.
            let previous = read.previous;
            assert_eq!(read, Recorded { previous, ..as_read(expected) });
        }
        place.verify().unwrap();
    }
}

#[test]
fn the_golden_log_of_this_schema_is_read_and_written() {
    let place = golden(SCHEMA);
    assert_eq!(all(&place.read().unwrap()), expected());
    place.verify().unwrap();
    assert_eq!(fs::read(path(SCHEMA)).unwrap(), segment(&expected()));
}

#[test]
#[ignore = "writes the golden log of the present schema: only before that schema is released"]
fn write_golden() {
    fs::write(path(SCHEMA), segment(&expected())).unwrap();
}

#[test]
fn every_variant_is_in_it_in_order() {
    // After the schema: seq, time, cause, actor, schema, previous; then the variant.
    let place = |record: &Recorded| {
        let bare = Recorded { event: Event::RunFinished, ..record.clone() };
        encode(&bare).unwrap().len() - 1
    };
    let number = |record: &Recorded| encode(record).unwrap()[place(record)];
    let numbers: Vec<_> = expected().iter().map(number).collect();
    let last = numbers.iter().copied().max().unwrap();
    let first = |(at, n): (usize, &u8)| (!numbers[..at].contains(n)).then_some(*n);
    let firsts: Vec<u8> = numbers.iter().enumerate().filter_map(first).collect();
    assert!(firsts.is_sorted(), "{numbers:?}");
    assert!((0..=last).all(|n| numbers.contains(&n)), "{numbers:?}");
    let mut newer = encode(&expected()[0]).unwrap();
    newer[place(&expected()[0])] = last + 1;
    assert!(decode(&newer).is_err(), "a variant was added: add it to `one_of_each`");
    let mut names: Vec<&str> = Vec::new();
    for record in expected() {
        if !names.contains(&record.event.name()) {
            names.push(record.event.name());
        }
    }
    assert_eq!(names, events::event::NAMES);
}
