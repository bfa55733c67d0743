use std::fs;
use std::path::PathBuf;

use events::event::Recorded;
use events::ids::Seq;
use events::log::Log;
use store::FileLog;

use super::{Place, all, drafts};

/// Compares every answer with what the log says.
fn check(log: &FileLog) {
    let records = all(log);
    let seqs = |wanted: &dyn Fn(&Recorded) -> bool| -> Vec<Seq> {
        records.iter().filter(|r| wanted(r)).map(|r| r.seq).collect()
    };
    for record in &records {
        let name = record.event.name();
        assert_eq!(log.by_name(name).unwrap(), seqs(&|r| r.event.name() == name));
        if let Some(id) = record.event.subject() {
            assert_eq!(log.by_subject(id).unwrap(), seqs(&|r| r.event.subject() == Some(id)));
        }
        assert_eq!(log.by_cause(record.seq).unwrap(), seqs(&|r| r.cause == Some(record.seq)));
        let place = log.offset_of(record.seq).unwrap().unwrap();
        let bytes = fs::read(place.path).unwrap();
        let at = place.offset as usize + 8;
        assert_eq!(bytes[at..at + 8], record.seq.0.to_le_bytes());
    }
    assert!(log.by_name("Round").unwrap().is_empty());
    assert!(log.by_subject(uuid::Uuid::nil()).unwrap().is_empty());
    assert!(log.offset_of(Seq(records.len() as u64 + 1)).unwrap().is_none());
    assert!(log.offset_of(Seq(0)).unwrap().is_none());
}

fn files(place: &Place) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![place.dir().join("index")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

#[test]
fn the_index_answers_like_the_log() {
    let place = Place::filled(600);
    let log = place.own().unwrap();
    assert!(!place.dir().join("index").exists(), "it is made when it is asked");
    check(&log);
    log.append(drafts(50..60)).unwrap();
    check(&log);
    check(&place.read().unwrap());
    drop(log);
    let log = place.own().unwrap();
    check(&log);
}

#[test]
fn a_sound_index_is_used_again() {
    let place = Place::filled(600);
    place.own().unwrap().index_now().unwrap();
    let db = place.dir().join("index").join("db");
    let made = |path: &PathBuf| fs::metadata(path).unwrap().created().unwrap();
    let before = made(&db);
    let log = place.own().unwrap();
    check(&log);
    assert_eq!(made(&db), before);
}

#[test]
fn a_missing_or_damaged_index_is_built_again() {
    let place = Place::filled(600);
    check(&place.own().unwrap());
    fs::remove_dir_all(place.dir().join("index")).unwrap();
    check(&place.own().unwrap());
    for at in 0..files(&place).len() {
        let path = files(&place).swap_remove(at);
        let length = fs::metadata(&path).unwrap().len() as usize;
        fs::write(&path, vec![0xa5; length]).unwrap();
        check(&place.own().unwrap());
    }
    for at in 0..files(&place).len() {
        fs::write(files(&place).swap_remove(at), b"").unwrap();
        check(&place.own().unwrap());
    }
    fs::remove_file(place.dir().join("index.seal")).unwrap();
    check(&place.own().unwrap());
}

#[test]
fn an_index_of_another_log_is_not_believed() {
    let place = Place::filled(600);
    let other = Place::new();
    let log = other.own().unwrap();
    log.append(drafts(0..3)).unwrap();
    log.index_now().unwrap();
    drop(log);
    fs::rename(other.dir().join("index"), place.dir().join("index")).unwrap();
    check(&place.own().unwrap());
}
