//! What every log and every blob store must do. Tests of each backend call these with a way to make
//! an empty one; they panic where a promise is broken.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that other crates call")]

use std::sync::Barrier;
use std::thread;

use events::event::{Actor, Draft, Event, Recorded};
use events::ids::{Digest, Seq};
use events::log::{Blobs, Log, LogError};

use crate::codec;

mod samples;

pub use samples::one_of_each;

/// A small draft that is told apart by `number`.
pub fn draft(number: u32) -> Draft {
    let cause = (number > 0).then(|| Seq(u64::from(number)));
    Draft { cause, actor: Actor::RunControl, event: Event::RoundStarted { round: number } }
}

/// Runs the whole suite; `make` gives a new empty log each time.
pub fn log_conforms<L: Log>(make: impl Fn() -> L) {
    starts_empty(&make());
    returns_what_it_recorded(&make());
    reads_by_limit(&make());
    keeps_every_kind_of_event(&make());
    appends_concurrently(&make());
}

/// Checks gapless order and the hash chain from the first event on; returns all events.
pub fn check_chain(log: &impl Log) -> Vec<Recorded> {
    let records = log.read_after(Seq(0), usize::MAX).unwrap();
    let mut previous = Digest::default();
    for (expected, record) in (1..).zip(&records) {
        assert_eq!(record.seq, Seq(expected), "no gap");
        assert_eq!(record.previous, previous, "the chain at {}", record.seq);
        previous = Digest::of(&codec::encode(record).unwrap());
    }
    assert_eq!(log.head(), (Seq(records.len() as u64), previous));
    records
}

fn starts_empty(log: &impl Log) {
    assert_eq!(log.head(), (Seq(0), Digest::default()));
    assert!(log.read_after(Seq(0), 10).unwrap().is_empty());
    assert!(log.append(Vec::new()).unwrap().is_empty());
    assert_eq!(log.head(), (Seq(0), Digest::default()));
}

fn returns_what_it_recorded(log: &impl Log) {
    let drafts: Vec<_> = (0..5).map(draft).collect();
    let returned = log.append(drafts.clone()).unwrap();
    assert_eq!(returned.len(), 5);
    for (record, draft) in returned.iter().zip(&drafts) {
        assert_eq!((record.cause, record.actor), (draft.cause, draft.actor));
        assert_eq!(record.event, draft.event);
    }
    assert_eq!(check_chain(log), returned);
    let more = log.append(vec![draft(9)]).unwrap();
    assert_eq!(more[0].seq, Seq(6));
    assert_eq!(check_chain(log).len(), 6);
}

fn reads_by_limit(log: &impl Log) {
    for at in 0..1000 {
        if at % 3 == 0 {
            log.append((0..3).map(|i| draft(at + i)).collect()).unwrap();
        }
    }
    let all = check_chain(log);
    for (after, limit) in [(0, 0), (0, 1), (0, 7), (1, 2), (2, 500), (500, 1), (999, 9), (1001, 5)]
    {
        let wanted: Vec<_> = all.iter().skip(after).take(limit).cloned().collect();
        assert_eq!(log.read_after(Seq(after as u64), limit).unwrap(), wanted);
    }
    assert!(log.read_after(Seq(5000), 5).unwrap().is_empty());
    assert!(log.read_after(Seq(u64::MAX), 5).unwrap().is_empty());
}

fn keeps_every_kind_of_event(log: &impl Log) {
    let drafts = one_of_each();
    log.append(drafts.clone()).unwrap();
    let events: Vec<_> = check_chain(log).into_iter().map(|r| r.event).collect();
    assert_eq!(events, drafts.into_iter().map(|d| d.event).collect::<Vec<_>>());
}

/// Every batch stays together, in the order of one writer, and no reader sees half of one.
fn appends_concurrently(log: &impl Log) {
    const WRITERS: u32 = 4;
    const BATCHES: u32 = 25;
    const SIZE: u32 = 4;
    let start = Barrier::new(WRITERS as usize + 1);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for batch in 0..BATCHES {
                    let first = (writer * BATCHES + batch) * SIZE;
                    log.append((first..first + SIZE).map(draft).collect()).unwrap();
                }
            });
        }
        start.wait();
        loop {
            let (head, _) = log.head();
            let seen = log.read_after(Seq(0), usize::MAX).unwrap().len() as u64;
            assert!(head.0.is_multiple_of(SIZE.into()) && seen.is_multiple_of(SIZE.into()));
            assert!(seen >= head.0, "what the head says can be read");
            if seen == u64::from(WRITERS * BATCHES * SIZE) {
                break;
            }
        }
    });
    let records = check_chain(log);
    let rounds: Vec<u32> = records.iter().map(round).collect();
    for batch in rounds.chunks(SIZE as usize) {
        assert!(batch.windows(2).all(|w| w[1] == w[0] + 1), "a batch is one");
    }
    for writer in 0..WRITERS {
        let own = |r: &&u32| **r / (BATCHES * SIZE) == writer;
        assert!(rounds.iter().filter(own).is_sorted(), "a writer's order is kept");
    }
}

fn round(record: &Recorded) -> u32 {
    match record.event {
        Event::RoundStarted { round } => round,
        ref other => panic!("{} was never appended", other.name()),
    }
}

/// Runs the whole suite; `make` gives a new empty store each time.
pub fn blobs_conform<B: Blobs>(make: impl Fn() -> B) {
    let blobs = make();
    let noise: Vec<u8> = (0..100_000u32).flat_map(|i| Digest::of(&i.to_le_bytes()).0).collect();
    for bytes in [b"".as_slice(), b"x", &[7; 100_000], &noise] {
        let id = Digest::of(bytes);
        assert!(!blobs.has(id));
        let missing = blobs.get(id).unwrap_err();
        assert!(matches!(missing, LogError::Blob { what: "is missing", .. }), "{missing}");
        assert_eq!(blobs.put(bytes).unwrap(), id);
        assert_eq!(blobs.put(bytes).unwrap(), id, "twice is once");
        assert!(blobs.has(id));
        assert_eq!(blobs.get(id).unwrap(), bytes);
    }
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..20u8 {
                    let id = blobs.put(&[i; 64]).unwrap();
                    assert_eq!(blobs.get(id).unwrap(), [i; 64]);
                }
            });
        }
    });
}
