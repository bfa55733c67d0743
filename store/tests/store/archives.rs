use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use events::ids::Seq;
use events::log::{Blobs, Log, LogError};
use store::conformance::{check_chain, draft};
use store::{Home, OpenMode, backup, export, gc, import};
use tempfile::TempDir;

use super::{all, family, files, naming, run};

const FROM: &str = "STORE_TEST_IMPORT_FROM";
const TO: &str = "STORE_TEST_IMPORT_TO";

struct Target {
    folder: TempDir,
    home: Home,
    archive: PathBuf,
}

fn target() -> Target {
    let folder = TempDir::new().unwrap();
    let home = Home::open(folder.path().join("home")).unwrap();
    let archive = folder.path().join("run.kz");
    Target { folder, home, archive }
}

#[test]
fn a_branch_comes_with_what_it_branched_from() {
    let (place, ids) = family();
    let t = target();
    let copied = export(&place.home, run(2), &t.archive).unwrap();
    assert_eq!(copied.runs, vec![(run(1), 39), (run(2), 19)]);
    let found = import(&t.home, &t.archive).unwrap();
    assert_eq!((found.run, found.events, found.blobs), (run(2), 19, 2));
    assert_eq!(found.ancestors, vec![run(1)]);
    for number in [1, 2] {
        let before = all(&place.home.open_run(run(number), OpenMode::ReadOnly).unwrap());
        let log = t.home.open_run(run(number), OpenMode::Own).unwrap();
        assert_eq!(check_chain(&log), before);
    }
    let blobs = t.home.blobs().unwrap();
    assert!(blobs.verify_all(ids[..2].iter().copied()).is_empty() && !blobs.has(ids[2]));
    assert_eq!(fs::read_dir(t.home.dir()).unwrap().count(), 3, "runs, blobs, heads");
}

#[test]
fn a_run_that_is_there_is_refused_and_an_ancestor_that_is_there_is_used() {
    let (place, _) = family();
    let t = target();
    export(&place.home, run(1), &t.archive).unwrap();
    assert!(export(&place.home, run(1), &t.archive).is_err(), "a file is not overwritten");
    import(&t.home, &t.archive).unwrap();
    let before = files(t.home.dir());
    for home in [&t.home, &place.home] {
        let error = import(home, &t.archive).unwrap_err();
        assert!(error.to_string().contains("there already"), "{error}");
    }
    assert_eq!(files(t.home.dir()), before);
    // The parent went on in both places.
    t.home.open_run(run(1), OpenMode::Own).unwrap().append(vec![draft(50)]).unwrap();
    let branch = t.folder.path().join("branch.kz");
    export(&place.home, run(2), &branch).unwrap();
    let found = import(&t.home, &branch).unwrap();
    assert!(found.ancestors.is_empty());
    assert_eq!(t.home.open_run(run(1), OpenMode::ReadOnly).unwrap().head().0, Seq(40));
    check_chain(&t.home.open_run(run(2), OpenMode::ReadOnly).unwrap());
}

#[test]
fn an_ancestor_with_other_records_is_refused() {
    let (place, _) = family();
    let t = target();
    let other = t.home.create_run(run(1)).unwrap();
    other.append((0..20).map(draft).collect()).unwrap();
    drop(other);
    export(&place.home, run(2), &t.archive).unwrap();
    let before = files(t.home.dir());
    let error = import(&t.home, &t.archive).unwrap_err();
    assert!(matches!(error, LogError::Damaged { .. }), "{error}");
    assert!(!t.home.run_dir(run(2)).exists());
    let same = |list: Vec<(PathBuf, Vec<u8>)>| -> Vec<_> {
        list.into_iter().filter(|(path, _)| !path.ends_with("lock")).collect()
    };
    assert_eq!(same(files(t.home.dir())), same(before));
}

#[test]
fn a_damaged_or_cut_archive_adds_nothing() {
    let (place, _) = family();
    let t = target();
    export(&place.home, run(2), &t.archive).unwrap();
    let bytes = fs::read(&t.archive).unwrap();
    let bad = t.folder.path().join("bad.kz");
    let mut tried = 0;
    let mut refuse = |bytes: &[u8]| {
        fs::write(&bad, bytes).unwrap();
        let error = import(&t.home, &bad).unwrap_err();
        assert!(matches!(error, LogError::Archive { .. }), "{error}");
        assert!(!error.to_string().contains("import-"), "{error}");
        assert!(t.home.runs().unwrap().is_empty());
        tried += 1;
    };
    for at in (0..bytes.len()).step_by(bytes.len() / 60) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x55;
        refuse(&flipped);
        refuse(&bytes[..at]);
    }
    refuse(&bytes[..bytes.len() - 1]);
    // More after its end: another archive, a frame that a decoder passes over, anything.
    refuse(&[bytes.as_slice(), &bytes].concat());
    refuse(&[&bytes[..], &[0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 7]].concat());
    refuse(&[&bytes[..], &[0]].concat());
    assert!(tried > 100);
    assert_eq!(fs::read_dir(t.home.dir()).unwrap().count(), 3, "no stage is left");
    import(&t.home, &t.archive).unwrap();
}

/// Packs members again, as someone who makes an archive by hand could.
fn repacked(archive: &Path, to: &Path, change: impl Fn(&str, &mut Vec<u8>) -> Option<String>) {
    let mut from = tar::Archive::new(zstd::Decoder::new(fs::File::open(archive).unwrap()).unwrap());
    let packed = zstd::Encoder::new(fs::File::create(to).unwrap(), 1).unwrap();
    let mut out = tar::Builder::new(packed);
    for entry in from.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        let Some(name) = change(&name, &mut bytes) else { continue };
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        out.append(&header, bytes.as_slice()).unwrap();
    }
    out.into_inner().unwrap().finish().unwrap();
}

#[test]
fn an_archive_made_by_hand_is_held_to_its_hashes_and_names() {
    let (place, _) = family();
    let t = target();
    export(&place.home, run(2), &t.archive).unwrap();
    let bad = t.folder.path().join("bad.kz");
    let refuse = |what: &str, says: &str, change: &dyn Fn(&str, &mut Vec<u8>) -> Option<String>| {
        repacked(&t.archive, &bad, change);
        let error = import(&t.home, &bad).unwrap_err();
        assert!(
            matches!(error, LogError::Archive { .. }) && error.to_string().contains(says),
            "{what}: {error}"
        );
        assert!(t.home.runs().unwrap().is_empty(), "{what}");
    };
    let keep = |name: &str| Some(name.to_owned());
    refuse("a changed blob", "has another content", &|name, bytes| {
        if name.starts_with("blobs/") {
            bytes[5] ^= 1;
        }
        keep(name)
    });
    refuse("a changed record", "at byte", &|name, bytes| {
        if name.ends_with(".seg") {
            bytes[90] ^= 1;
        }
        keep(name)
    });
    refuse("a blob is missing", "is not in it", &|name, _| {
        if name.starts_with("blobs/") { None } else { keep(name) }
    });
    refuse("a segment is missing", "is missing", &|name, _| {
        if name.ends_with("01.seg") { None } else { keep(name) }
    });
    refuse("the parent is missing", "does not end as the manifest says", &|name, _| {
        if name.contains(&run(1).to_string()) { None } else { keep(name) }
    });
    refuse("a path outside", "does not belong there", &|name, _| {
        if name.starts_with("blobs/") { Some("../../escaped".into()) } else { keep(name) }
    });
    refuse("no manifest", "does not begin with a manifest", &|name, _| {
        if name.ends_with(".json") { None } else { keep(name) }
    });
    refuse("a newer layout", "use a newer program", &|name, bytes| {
        if name == "kernelzero.json" {
            let text = String::from_utf8(bytes.clone()).unwrap();
            *bytes = text.replace("\"format\": 1", "\"format\": 2").into_bytes();
        }
        keep(name)
    });
    refuse("a run twice", "names a run twice", &|name, bytes| {
        if name == "kernelzero.json" {
            let text = String::from_utf8(bytes.clone()).unwrap();
            let id = run(1).to_string();
            *bytes = text.replace(&id, &run(2).to_string()).into_bytes();
        }
        keep(name)
    });
    assert!(!t.folder.path().join("escaped").exists());
    repacked(&t.archive, &bad, |name, _| keep(name));
    import(&t.home, &bad).unwrap();
}

#[test]
fn several_at_once_make_one_run() {
    let (place, _) = family();
    let t = target();
    export(&place.home, run(2), &t.archive).unwrap();
    let (copy, file) = (t.folder.path().join("copy"), t.folder.path().join("again.kz"));
    type Work<'a> = &'a (dyn Fn() -> Result<(), LogError> + Sync);
    let at_once = |work: Work<'_>| {
        let done = std::thread::scope(|scope| {
            let others: Vec<_> = (0..6).map(|_| scope.spawn(work)).collect();
            others.into_iter().map(|other| other.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1, "{done:?}");
        for error in done.into_iter().filter_map(Result::err) {
            let error = error.to_string();
            assert!(["just now", "already"].iter().any(|why| error.contains(why)), "{error}");
        }
    };
    at_once(&|| import(&t.home, &t.archive).map(drop));
    at_once(&|| backup(&place.home, &copy).map(drop));
    at_once(&|| export(&place.home, run(2), &file).map(drop));
    assert_eq!(fs::read(&file).unwrap(), fs::read(&t.archive).unwrap());
    for home in [&t.home, &Home::existing(&copy).unwrap()] {
        for number in [1, 2] {
            check_chain(&home.open_run(run(number), OpenMode::Own).unwrap());
        }
    }
    assert_eq!(fs::read_dir(t.home.dir()).unwrap().count(), 3, "no stage and no lock is left");
    assert_eq!(fs::read_dir(t.folder.path()).unwrap().count(), 4, "home, copy, two archives");
}

#[test]
fn two_branches_imported_at_once_share_what_they_branched_from() {
    let (place, _) = family();
    drop(place.home.fork_run(run(1), Seq(9), run(5), vec![draft(6)]).unwrap());
    let t = target();
    let other = t.folder.path().join("other.kz");
    export(&place.home, run(2), &t.archive).unwrap();
    export(&place.home, run(5), &other).unwrap();
    std::thread::scope(|scope| {
        for archive in [&t.archive, &other] {
            scope.spawn(|| import(&t.home, archive).unwrap());
        }
    });
    for number in [1, 2, 5] {
        check_chain(&t.home.open_run(run(number), OpenMode::Own).unwrap());
    }
}

#[test]
#[ignore = "run by the test below"]
fn importer() {
    let (Some(from), Some(to)) = (std::env::var_os(FROM), std::env::var_os(TO)) else { return };
    import(&Home::existing(to.as_ref()).unwrap(), from.as_ref()).unwrap();
}

#[test]
fn killed_in_the_middle_it_can_be_done_again() {
    let (place, _) = family();
    let blobs = place.home.blobs().unwrap();
    let log = place.home.open_run(run(2), OpenMode::Own).unwrap();
    let named = (0..200u32).map(|n| naming(blobs.put(&n.to_le_bytes()).unwrap()));
    log.append(named.collect()).unwrap();
    drop(log);
    let t = target();
    export(&place.home, run(2), &t.archive).unwrap();
    let (mut none, mut done) = (0, 0);
    for round in 0..12u64 {
        let home = Home::open(t.folder.path().join(format!("home {round}"))).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "archives::importer", "--ignored"])
            .env(FROM, &t.archive)
            .env(TO, home.dir())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(5 + 6 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        if home.runs().unwrap().contains(&run(2)) {
            done += 1;
        } else {
            none += 1;
            import(&home, &t.archive).unwrap();
        }
        check_chain(&home.open_run(run(2), OpenMode::Own).unwrap());
        let blobs = home.blobs().unwrap();
        let named = all(&home.open_run(run(2), OpenMode::ReadOnly).unwrap());
        let named = named.iter().flat_map(|record| record.event.blobs());
        assert!(blobs.verify_all(named).is_empty());
        drop(blobs);
        // One that was killed between its last move and its end leaves its folder.
        gc(&home, Duration::ZERO, false).unwrap();
        let left = fs::read_dir(home.dir()).unwrap().flatten().map(|entry| entry.file_name());
        let left: Vec<_> =
            left.filter(|name| name.to_string_lossy().starts_with("import-")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    println!("killed before the run was there in {none} rounds, after it in {done}");
}
