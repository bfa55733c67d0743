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
