//! A writer that is killed in the middle of its work loses nothing that it said was done.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use events::ids::Seq;
use events::log::Log;
use store::conformance::check_chain;
use store::{FileLog, OpenMode, Options};

use super::{Place, drafts};

const DIR: &str = "STORE_TEST_KILLED_DIR";

/// The child: appends and says so, until it is killed.
#[test]
#[ignore = "run by the test below"]
fn writer() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let options = Options { segment_bytes: 20_000 };
    let log = FileLog::open_with(Path::new(&dir), OpenMode::Own, options).unwrap();
    for size in (1..9).cycle() {
        let records = log.append(drafts(0..size)).unwrap();
        println!("\nacknowledged {}", records[records.len() - 1].seq.0);
        if size == 5 {
            log.index_now().unwrap();
        }
    }
}

/// Three who want the log at once and are killed again and again: one of them has it at a time, and
/// what any of them was told is there in the end, once.
#[test]
fn a_storm_over_several_owners() {
    let place = Place::new();
    let start = || {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "killed::contender", "--ignored", "--nocapture"]);
        child.env(DIR, place.dir()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut told = Vec::new();
    let mut heard = |child: std::process::Child| {
        let lines = BufReader::new(child.stdout.unwrap()).lines().map(Result::unwrap);
        let numbers = lines.filter_map(|line| line.strip_prefix("told ")?.parse::<u32>().ok());
        told.extend(numbers);
    };
    let mut children: Vec<_> = (0..3).map(|_| start()).collect();
    for round in 0..30u64 {
        std::thread::sleep(std::time::Duration::from_millis(15 + round * 7 % 40));
        let mut victim = children.remove(round as usize % 3);
        victim.kill().unwrap();
        victim.wait().unwrap();
        heard(victim);
        children.push(start());
    }
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
        heard(child);
    }
    let log = place.own().unwrap();
    let found = check_chain(&log).into_iter().map(|record| match record.event {
        events::event::Event::RoundStarted { round } => round,
        other => panic!("{} was never appended", other.name()),
    });
    let found: Vec<u32> = found.collect();
    let once: std::collections::BTreeSet<u32> = found.iter().copied().collect();
    assert_eq!(once.len(), found.len(), "nothing is there twice");
    assert!(told.iter().all(|number| once.contains(number)), "what was told is there");
    assert!(told.len() > 50, "only {} appends were told", told.len());
}

/// Tries to own the log; who has it appends numbers of its own.
#[test]
#[ignore = "run by the test above"]
fn contender() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let log = loop {
        match FileLog::open_with(Path::new(&dir), OpenMode::Own, Options { segment_bytes: 5_000 }) {
            Ok(log) => break log,
            Err(events::log::LogError::Owned { .. }) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    };
    for number in std::process::id() * 10_000.. {
        log.append(drafts(number..number + 1)).unwrap();
        println!("\ntold {number}");
    }
}

#[test]
fn nothing_acknowledged_is_lost() {
    let place = Place::new();
    let mut acknowledged = 0;
    for round in 0..25 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::writer", "--ignored", "--nocapture"])
            .env(DIR, place.dir())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut left = 3 + round * 2;
        for line in lines {
            let line = line.unwrap();
            let Some(seq) = line.strip_prefix("acknowledged ") else { continue };
            acknowledged = seq.parse::<u64>().unwrap();
            left -= i32::from(left > 0);
            if left == 0 {
                child.kill().unwrap(); // What it said before it died is still read.
            }
        }
        child.wait().unwrap();
        assert!(place.read().unwrap().head().0 >= Seq(acknowledged));
        let log = place.own().unwrap();
        assert!(log.head().0 >= Seq(acknowledged), "round {round}");
        check_chain(&log);
        let rounds = log.by_name("RoundStarted").unwrap();
        assert_eq!(rounds.len() as u64, log.head().0.0);
    }
    assert!(acknowledged > 100 && place.segments().len() > 1);
}
