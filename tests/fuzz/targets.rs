//! What is done with any bytes, and what must hold then. `make fuzz` looks for bytes for which it does
//! not; the suite (`tests/corpora.rs`) does the same with those that were kept.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::cell::RefCell;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use actors::Bus;
use actors::attached::{Gate, LINE_MAX, Reply, read_line};
use actors::bus::fold;
use actors::shells::{Start, start};
use events::config::RunConfig;
use events::event::{InitialPolicy, Recorded, SCHEMA};
use events::ids::{JobId, Role, RunId, Seq};
use events::log::{Blobs, Log, LogError};
use events::rules::intent::may;
use events::state::RunState;
use kernelzero::attach::socket::hello;
use kernelzero::host::HostConfig;
use kernelzero::service::refused::Refused;
use kernelzero::service::request;
use store::codec::{decode, encode};
use store::conformance::draft;
use store::{Home, MemoryBlobs, MemoryLog, OpenMode, import, verify};
use tempfile::TempDir;

/// A record: what is read is written and read again as the same.
pub fn record(bytes: &[u8]) {
    let Ok(record) = decode(bytes) else { return };
    let (_, _, _) = (record.event.name(), record.event.subject(), record.event.blobs());
    let _ = RunState::default().apply(record.seq, &record.event);
    if record.schema == SCHEMA {
        let stored = encode(&record).unwrap();
        // Compared as bytes: a number may be NaN.
        assert_eq!(encode(&decode(&stored).unwrap()).unwrap(), stored);
    }
}

thread_local! {
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// An empty folder in memory.
fn with_folder(act: impl FnOnce(&Path)) {
    let memory = Path::new("/dev/shm");
    let at = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| TempDir::new_in(at).unwrap());
        for entry in fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        }
        act(folder.path());
    });
}

/// A segment. The first byte says whether checksums are mended, so that what they protect is reached
/// too. A reader changes nothing; a log that its owner opens takes another record and is sound.
pub fn segment(bytes: &[u8]) {
    let Some((mended, bytes)) = bytes.split_first() else { return };
    let bytes = if mended % 2 == 1 { with_checksums(bytes) } else { bytes.to_vec() };
    with_folder(|folder| {
        let home = Home::open(folder).unwrap();
        let run = RunId::new(1, [3; 10]);
        drop(home.create_run(run).unwrap());
        let path = home.run_dir(run).join("log").join(format!("{:020}.seg", 1));
        fs::write(&path, &bytes).unwrap();
        fs::write(folder.join("heads").join(run.to_string()), b"").unwrap();
        let seen = verify(&home.run_dir(run), |_, _| ControlFlow::Continue(()));
        assert_eq!(fs::read(&path).unwrap(), bytes, "a reader changed it");
        let Ok(log) = home.open_run(run, OpenMode::Own) else {
            assert!(seen.is_err());
            return;
        };
        let seen = seen.unwrap();
        assert_eq!(log.head(), seen.head);
        let kept: Vec<Recorded> = log.read_after(Seq(0), usize::MAX).unwrap();
        assert_eq!(kept.len() as u64, seen.events);
        if seen.head.0.0 < u64::MAX - 1 {
            log.append(vec![draft(7)]).unwrap();
            drop(log);
            let report = verify(&home.run_dir(run), |_, _| ControlFlow::Continue(())).unwrap();
            assert_eq!((report.events, report.torn_bytes), (seen.events + 1, 0));
        }
    });
}

fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    const HEADER: usize = 56;
    const FRAME: usize = 24;
    let mut bytes = bytes.to_vec();
    if bytes.len() < HEADER {
        return bytes;
    }
    let crc = crc32fast::hash(&bytes[..52]);
    bytes[52..HEADER].copy_from_slice(&crc.to_le_bytes());
    let mut rest = &mut bytes[HEADER..];
    while let Some((length, _)) = rest.split_first_chunk::<4>() {
        let whole = FRAME.saturating_add(u32::from_le_bytes(*length) as usize);
        if rest.len() < whole {
            break;
        }
        let (frame, after) = rest.split_at_mut(whole);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&frame[..4]);
        hasher.update(&frame[8..]);
        frame[4..8].copy_from_slice(&hasher.finalize().to_le_bytes());
        rest = after;
    }
    bytes
}

/// A run's or a host's config: what is taken has one canonical text.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = toml::from_str::<HostConfig>(text);
    match RunConfig::parse(text) {
        Ok(config) => {
            let canonical = config.to_text().unwrap();
            let again = RunConfig::parse(&canonical).unwrap();
            assert_eq!(again, config);
            assert_eq!(again.to_text().unwrap(), canonical);
        }
        Err(bad) => assert!(!bad.to_string().is_empty()),
    }
}

/// The body of a submission to the judge's service: what is refused is refused by field, with a fix.
pub fn request(bytes: &[u8]) {
    let mut number = 0;
    let mut fresh = || {
        number += 1;
        JobId::named(&format!("fresh {number}"))
    };
    match request::one(bytes, &mut fresh) {
        Ok(job) => {
            assert_eq!(job.spec.reference, events::ids::Digest::of(job.reference.as_bytes()))
        }
        Err(refused) => named(&refused),
    }
    match request::batch(bytes, 16, fresh) {
        Ok(jobs) => assert!((1..=16).contains(&jobs.len())),
        Err(refused) => named(&refused),
    }
}

fn named(refused: &Refused) {
    let Refused::Bad { field, fix, .. } = refused else { panic!("refused for another reason") };
    assert!(!field.is_empty() && !fix.is_empty());
}

/// What an attached actor sends: its hello, then intents and questions, a line each. Each is answered by a
/// line that can be read, and what it brought about may follow and be its doing. So many lines as a gate
/// takes without waiting.
pub fn attach(mut bytes: &[u8]) {
    let hello = match hello(&mut bytes) {
        Ok(hello) => hello,
        Err(why) => return assert!(!why.is_empty()),
    };
    let mut line = || read_line(&mut bytes, LINE_MAX).ok().flatten();
    let (log, blobs) = (Arc::new(MemoryLog::new()), Arc::new(MemoryBlobs::new()));
    let bus = Arc::new(Bus::open(log.clone(), blobs.clone()).unwrap());
    let policy = |role: Role| InitialPolicy { role, files: vec![] };
    let first = Start {
        run: RunId::new(1, [3; 10]),
        config: RunConfig::parse(include_str!("../../configs/laptop.toml"))
            .unwrap()
            .to_text()
            .unwrap(),
        code: "test".into(),
        environment: vec![],
        api_table: blobs.put(b"a.x\t5\na.y\t5\na.z\t5\n").unwrap(),
        policies: vec![policy(Role::Proposer), policy(Role::Coder)],
    };
    start(&bus, first).unwrap();
    let gate = Gate::new(bus.clone(), |_| Ok(())).unwrap();
    let Ok(mut session) = gate.attach(&hello) else { return };
    for _ in 0..50 {
        let Some(text) = line() else { break };
        let Ok(answer) = session.line(&text) else { break };
        let reply = Reply::Answer(answer);
        assert_eq!(serde_json::from_str::<Reply>(&reply.to_line()).unwrap(), reply);
    }
    drop(session);
    for recorded in log.read_after(Seq(0), usize::MAX).unwrap() {
        assert_eq!(may(recorded.actor, &recorded.event), Ok(()));
    }
    assert_eq!(fold(log.as_ref()).unwrap(), bus.ask(Clone::clone).unwrap());
}

/// An archive: it adds a sound run or nothing. The first byte says what the rest is: the file, the tar
/// in it, or its members (a byte with the length of the name, the name, two bytes with the length of
/// the content, the content).
pub fn archive(bytes: &[u8]) {
    let Some((form, rest)) = bytes.split_first() else { return };
    let file = match form % 3 {
        0 => rest.to_vec(),
        1 => packed(rest),
        _ => packed(&tar_of(rest)),
    };
    with_folder(|folder| {
        let path = folder.join("archive");
        fs::write(&path, file).unwrap();
        let home = Home::open(folder.join("home")).unwrap();
        match import(&home, &path) {
            Ok(imported) => {
                let dir = home.run_dir(imported.run);
                let report = verify(&dir, |_, _| ControlFlow::Continue(())).unwrap();
                assert_eq!(report.events, imported.events);
            }
            Err(error) => {
                let expected = matches!(
                    error,
                    LogError::Archive { .. } | LogError::Damaged { .. } | LogError::Newer { .. }
                );
                assert!(expected, "{error}");
                assert_eq!(home.runs().unwrap(), [], "it added a run");
            }
        }
    });
}

fn packed(tar: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(tar, 1).unwrap()
}

fn tar_of(mut bytes: &[u8]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    while let Some((length, rest)) = bytes.split_first() {
        let (name, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        let Some((length, rest)) = rest.split_first_chunk::<2>() else { break };
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (content, rest) = rest.split_at(length);
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        let name = String::from_utf8_lossy(name);
        if tar.append_data(&mut header, name.as_ref(), content).is_err() {
            break;
        }
        bytes = rest;
    }
    tar.into_inner().unwrap()
}
