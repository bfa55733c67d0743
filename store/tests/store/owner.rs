use std::sync::Arc;
use std::thread;

use events::ids::Seq;
use events::log::{Log, LogError};
use store::OpenMode;
use store::conformance::draft;

use super::{Place, all, drafts, run};

#[test]
fn a_second_owner_is_refused_by_name() {
    let place = Place::new();
    let log = place.own().unwrap();
    let LogError::Owned { owner, .. } = place.own().unwrap_err() else { panic!() };
    assert_eq!(owner, std::process::id().to_string());
    drop(log);
    place.own().unwrap();
}

#[test]
fn a_reader_follows_a_writer() {
    let place = Place::new();
    let log = place.open_with(2000);
    let reader = Arc::new(place.read().unwrap());
    let following = {
        let reader = reader.clone();
        thread::spawn(move || {
            let mut seen = 0;
            while seen < 400 {
                for record in reader.read_after(Seq(seen), 7).unwrap() {
                    assert_eq!(record.seq.0, seen + 1);
                    seen += 1;
                }
                assert!(reader.head().0.0.is_multiple_of(4));
            }
        })
    };
    for at in 0..100 {
        log.append(drafts(at * 4..at * 4 + 4)).unwrap();
        if at == 50 {
            place.verify().unwrap();
        }
    }
    following.join().unwrap();
    assert_eq!(all(&*reader), all(&log));
    assert!(reader.append(vec![draft(1)]).is_err());
}

#[test]
fn runs_are_listed_by_age_and_made_once() {
    let place = Place::new();
    drop(place.home.create_run(run(5)).unwrap());
    drop(place.home.create_run(run(3)).unwrap());
    assert_eq!(place.home.runs().unwrap(), [run(1), run(3), run(5)]);
    assert!(place.home.create_run(run(3)).is_err());
    assert!(place.home.open_run(run(9), OpenMode::ReadOnly).is_err());
}

/// Appends that arrive together are made durable together, and each is told its own records.
#[test]
fn appends_of_many_threads_are_told_their_own_records() {
    let place = Place::new();
    let log = place.open_with(4_000);
    thread::scope(|scope| {
        for writer in 0..8u32 {
            let log = &log;
            scope.spawn(move || {
                for round in 0..40 {
                    let size = 1 + (writer + round) % 3;
                    let first = writer * 1_000 + round * 3;
                    let wanted = drafts(first..first + size);
                    let told = log.append(wanted.clone()).unwrap();
                    assert_eq!(told.len(), wanted.len());
                    for (record, draft) in told.iter().zip(wanted) {
                        assert_eq!(record.event, draft.event);
                        assert_eq!(log.get(record.seq).unwrap().as_ref(), Some(record));
                    }
                }
            });
        }
    });
    let events = log.head().0;
    drop(log);
    assert_eq!(place.verify().unwrap().events, events.0);
}

/// A failure is told to everyone whose append it met, and nothing of any of them is there.
#[test]
fn appends_that_fail_together_are_told_so() {
    let place = Place::new();
    let log = place.open_with(64 << 20);
    log.append(vec![draft(1)]).unwrap();
    let large = || {
        let mut draft = draft(2);
        let error = "x".repeat((64 << 20) + 1);
        draft.event = events::event::Event::WorkFailed { work: String::new(), attempt: 1, error };
        draft
    };
    let failed = thread::scope(|scope| {
        let all: Vec<_> = (0..3).map(|_| scope.spawn(|| log.append(vec![large()]))).collect();
        all.into_iter().map(|one| one.join().unwrap().is_err()).collect::<Vec<_>>()
    });
    assert_eq!(failed, [true; 3]);
    assert_eq!(log.head().0, Seq(1));
    log.append(vec![draft(3)]).unwrap();
    drop(log);
    assert_eq!(place.verify().unwrap().events, 2);
}
