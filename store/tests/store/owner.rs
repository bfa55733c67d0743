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
