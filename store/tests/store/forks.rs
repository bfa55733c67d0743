use std::fs;

use events::ids::Seq;
use events::log::{Log, LogError};
use store::conformance::{check_chain, draft};
use store::{FileLog, OpenMode};

use super::{Place, all, drafts, flip, run};

fn read(place: &Place, number: u64) -> Result<FileLog, LogError> {
    place.home.open_run(run(number), OpenMode::ReadOnly)
}

#[test]
fn a_fork_shares_the_past_and_goes_its_own_way() {
    let place = Place::filled(600);
    let parent = place.own().unwrap();
    let before = all(&parent);
    let files: Vec<_> = place.segments().iter().map(|p| fs::read(p).unwrap()).collect();
    for (number, at) in (10..).zip(1..=before.len()) {
        let first = vec![draft(1), draft(2)];
        let fork = place.home.fork_run(run(1), Seq(at as u64), run(number), first).unwrap();
        assert_eq!(fork.base().unwrap().parent, run(1));
        fork.append(vec![draft(3)]).unwrap();
        let records = check_chain(&fork);
        assert_eq!((records.len(), &records[..at]), (at + 3, &before[..at]));
        assert_eq!(fork.read_after(Seq(at as u64 - 1), 2).unwrap(), records[at - 1..=at]);
        drop(fork);
        assert_eq!(all(&read(&place, number).unwrap()), records);
    }
    let after: Vec<_> = place.segments().iter().map(|p| fs::read(p).unwrap()).collect();
    assert_eq!(files, after, "nothing of the parent is written");
    parent.append(vec![draft(5)]).unwrap();
    assert_eq!(all(&read(&place, 10).unwrap()).len(), 4);
    assert!(place.home.fork_run(run(1), Seq(0), run(8), vec![draft(1)]).is_err());
    assert!(place.home.fork_run(run(1), Seq(999), run(8), vec![draft(1)]).is_err());
    assert!(place.home.fork_run(run(1), Seq(1), run(8), vec![]).is_err(), "nothing of its own");
    assert_eq!(place.home.runs().unwrap().len(), before.len() + 1);
}

#[test]
fn a_fork_of_a_fork() {
    let place = Place::filled(600);
    let first = place.home.fork_run(run(1), Seq(4), run(2), drafts(20..25)).unwrap();
    let middle = all(&first);
    for (number, at) in [(3, 2), (4, 4), (5, 5), (6, 9)] {
        let fork = place.home.fork_run(run(2), Seq(at), run(number), drafts(30..32)).unwrap();
        assert_eq!(all(&fork)[..at as usize], middle[..at as usize]);
        drop(fork);
        let fork = place.home.open_run(run(number), OpenMode::Own).unwrap();
        assert_eq!(check_chain(&fork).len(), at as usize + 2);
        fork.append(drafts(40..41)).unwrap();
        check_chain(&fork);
        assert_eq!(fork.by_cause(Seq(30)).unwrap(), [Seq(at + 1)]);
        let shared = fork.offset_of(Seq(1)).unwrap().unwrap();
        assert!(shared.path.starts_with(place.dir()));
    }
}

#[test]
fn a_branch_that_has_lost_its_own_records_is_damaged_and_not_its_parent() {
    let place = Place::filled(64 << 20);
    drop(place.home.fork_run(run(1), Seq(4), run(2), vec![draft(1)]).unwrap());
    let log = place.home.run_dir(run(2)).join("log");
    let head = place.home.dir().join("heads").join(run(2).to_string());
    fs::remove_dir_all(&log).unwrap();
    fs::create_dir(&log).unwrap();
    // With its head, and as older programs left a branch when they were killed.
    for _ in 0..2 {
        for mode in [OpenMode::ReadOnly, OpenMode::Own] {
            let error = place.home.open_run(run(2), mode).unwrap_err();
            assert!(matches!(error, LogError::Damaged { .. }), "{error}");
        }
        let _ = fs::remove_file(&head);
    }
}

#[test]
fn branches_made_at_once_are_all_there() {
    let place = Place::filled(64 << 20);
    std::thread::scope(|scope| {
        for number in 10..18 {
            let home = place.home.clone();
            scope.spawn(move || home.fork_run(run(1), Seq(4), run(number), drafts(0..3)).unwrap());
        }
        for _ in 0..2 {
            scope.spawn(|| {
                // Of those that want the same id, one gets it.
                let made = place.home.fork_run(run(1), Seq(2), run(20), drafts(0..1));
                assert!(made.is_ok() || made.unwrap_err().to_string().contains("this id"));
            });
        }
    });
    for number in (10..18).chain([20]) {
        check_chain(&place.home.open_run(run(number), OpenMode::Own).unwrap());
    }
    let names = |part: &str| fs::read_dir(place.home.dir().join(part)).unwrap().count();
    assert_eq!((names("runs"), names("heads")), (10, 10));
}

#[test]
fn a_fork_finds_a_changed_parent() {
    let place = Place::filled(64 << 20);
    drop(place.home.fork_run(run(1), Seq(4), run(2), vec![draft(1)]).unwrap());
    let base = place.home.run_dir(run(2)).join("base.json");
    for at in 0..fs::metadata(&base).unwrap().len() as usize {
        flip(&base, at);
        assert!(read(&place, 2).is_err(), "byte {at} of the base");
        flip(&base, at);
    }
    let parent = place.segments().remove(0);
    let whole = fs::read(&parent).unwrap();
    flip(&parent, 56 + 30);
    let error = read(&place, 2).unwrap_err();
    assert!(matches!(error, LogError::Damaged { .. }), "{error}");
    fs::write(&parent, &whole).unwrap();
    flip(&parent, whole.len() - 1);
    assert_eq!(all(&read(&place, 2).unwrap()).len(), 5, "what is not shared does not matter");
}
