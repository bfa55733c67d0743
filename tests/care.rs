//! Looking after logs and blobs as a user does it, and audits of parts of a log.
#![allow(clippy::unwrap_used)]

mod cli;
mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use actors::shells::drive;
use cli::{KERNELZERO, ends_with, kernelzero, said};
use common::{HashEvidence, World, config};
use events::event::{Draft, Event, Recorded, Scores};
use events::ids::{RunId, Seq};
use events::log::{Blobs, Log};
use events::rules::audit::{Auditor, check};
use events::state::RunState;
use kernelzero::audit::{Report, Since, audit_log};
use store::{Home, OpenMode};
use tempfile::TempDir;

fn run() -> RunId {
    RunId::new(1, [3; 10])
}

fn drafts(world: &World) -> Vec<Draft> {
    let read = world.log.read_after(Seq(0), usize::MAX).unwrap();
    let draft = |r: Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    read.into_iter().map(draft).collect()
}

/// A finished run of hashes.
fn whole() -> World {
    let world = World::new();
    world.start(&config(4));
    drive(&mut world.shells(0), &world.bus()).unwrap();
    world
}

/// The same run in a home, with its blobs.
fn at_home(home: &Path, world: &World, drafts: Vec<Draft>) -> Home {
    let home = Home::open(home).unwrap();
    let blobs = home.blobs().unwrap();
    for id in drafts.iter().flat_map(|draft| draft.event.blobs()) {
        blobs.put(&world.blobs.get(id).unwrap()).unwrap();
    }
    home.create_run(run()).unwrap().append(drafts).unwrap();
    home
}

fn audited(home: &Home, world: &World, since: Since) -> Report {
    let log = home.open_run(run(), OpenMode::ReadOnly).unwrap();
    audit_log(&log, &HashEvidence(&*world.blobs), since).unwrap()
}

#[test]
fn an_audit_of_a_part_compares_that_part_and_checks_the_rest() {
    let world = whole();
    let mut drafts = drafts(&world);
    let second = drafts.iter().position(|d| d.event == Event::RoundStarted { round: 2 }).unwrap();
    let forged = drafts.iter().position(|d| matches!(d.event, Event::GroupScored { .. })).unwrap();
    assert!(forged < second);
    match &mut drafts[forged].event {
        Event::GroupScored { scores: Scores::Modules(scores), .. } => scores[0].reward += 0.5,
        Event::GroupScored { scores: Scores::Kernels(scores), .. } => scores[0].reward += 0.5,
        _ => unreachable!(),
    }
    let folder = TempDir::new().unwrap();
    let all = drafts.len() as u64;
    let home = at_home(folder.path(), &world, drafts);
    let report = audited(&home, &world, Since::Start);
    assert_eq!((report.events, report.found), (all, 1), "{:?}", report.findings);
    assert_eq!(report.kinds["GroupScored"].findings, 1);
    let report = audited(&home, &world, Since::Seq(Seq(forged as u64 + 1)));
    assert_eq!(report.found, 1);
    for since in [Since::Round(2), Since::Seq(Seq(forged as u64 + 2))] {
        let report = audited(&home, &world, since);
        assert_eq!((report.events, report.found), (all, 0), "{:?}", report.findings);
        let (events, compared) = report
            .kinds
            .values()
            .fold((0, 0), |(all, some), kind| (all + kind.events, some + kind.compared));
        assert!(events == all && compared < all && compared > 0);
        assert_eq!(report.head, home.open_run(run(), OpenMode::ReadOnly).unwrap().head());
    }
}

#[test]
fn what_cannot_follow_is_found_and_the_chain_is_read_to_its_end() {
    let world = whole();
    let mut drafts = drafts(&world);
    let double = drafts.iter().position(|d| d.event.name() == "KernelCompiled").unwrap();
    let again =
        Draft { cause: None, actor: drafts[double].actor, event: drafts[double].event.clone() };
    drafts.insert(double + 1, again);
    for draft in &mut drafts[double + 2..] {
        draft.cause = None;
    }
    let folder = TempDir::new().unwrap();
    let all = drafts.len() as u64;
    let home = at_home(folder.path(), &world, drafts);
    let report = audited(&home, &world, Since::Round(2));
    assert_eq!((report.events, report.found), (all, 1), "the decision, then what cannot follow");
    assert!(report.findings[0].contains("cannot follow"), "{:?}", report.findings);
}

#[test]
fn logs_and_blobs_are_looked_after_by_command() {
    let world = whole();
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("home");
    let home = at_home(&place, &world, drafts(&world));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let run = run().to_string();
    ends_with(&kernelzero(&place, &["log", "verify"]), 0, "0 missing or damaged");
    ends_with(&kernelzero(&place, &["log", "verify", "--all", "--json"]), 0, "\"torn-bytes\": 0");
    ends_with(&kernelzero(&place, &["log", "--limit", "1"]), 0, "RunStarted");
    let two = said(&kernelzero(&place, &["log", "--type", "RunStarted,RunFinished"]));
    assert_eq!(two.lines().count(), 2, "{two}");
    // What begins with digits may be a position or the beginning of an id.
    let last = drafts(&world).len() as u64;
    let ids = drafts(&world).into_iter().flat_map(|draft| draft.event.subject());
    let digits = ids.filter_map(|id| {
        let id = id.to_string();
        let digits = &id[..id.find(|c: char| !c.is_ascii_digit()).unwrap()];
        digits.parse::<u64>().is_ok_and(|number| number > last).then(|| digits.to_owned())
    });
    let digits = digits.max_by_key(String::len).unwrap();
    ends_with(&kernelzero(&place, &["show", &digits]), 0, "");
    ends_with(&kernelzero(&place, &["show", &format!("#{digits}")]), 2, "there is no event");
    ends_with(&kernelzero(&place, &["show", "1"]), 0, "RunStarted");
    ends_with(&kernelzero(&place, &["log", "rebuild"]), 0, "made anew");
    ends_with(&kernelzero(&place, &["audit", "--since", "999999"]), 2, "the log ends with");
    ends_with(&kernelzero(&place, &["audit", "--round", "99"]), 2, "no such round");
    let loose = home.blobs().unwrap().put(b"loose").unwrap();
    ends_with(&kernelzero(&place, &["gc", "--dry-run"]), 0, "younger  1 blobs");
    ends_with(&kernelzero(&place, &["gc", "--older-than", "0"]), 0, "removed  1 blobs");
    assert!(!home.blobs().unwrap().has(loose));

    let (copy, archive) = (text(&folder.path().join("copy")), text(&folder.path().join("r.kz")));
    ends_with(&kernelzero(&place, &["backup", &copy]), 0, "copied to");
    ends_with(&kernelzero(&place, &["backup", &copy]), 2, "something is there already");
    ends_with(&kernelzero(&place, &["restore", &copy]), 2, "something is there already");
    let restored = folder.path().join("restored");
    ends_with(&kernelzero(&restored, &["restore", &copy]), 0, &run);
    ends_with(&kernelzero(&restored, &["log", "verify"]), 0, "agrees");
    ends_with(&kernelzero(&place, &["export", &run, &archive]), 0, "exported to");
    ends_with(&kernelzero(&place, &["export", &run, &archive]), 2, "there is such a file already");
    ends_with(&kernelzero(&restored, &["import", &archive]), 2, "there already");
    let imported = folder.path().join("imported");
    ends_with(&kernelzero(&imported, &["import", &archive]), 0, &run);
    let figures = |home: &Path| said(&kernelzero(home, &["log", "verify", "--json"]));
    assert_eq!(figures(&imported).replace(&text(&imported), ""), figures(&place));
    ends_with(&kernelzero(&imported, &["import", "none.kz"]), 2, "none.kz");
    let bytes = std::fs::read(&archive).unwrap();
    std::fs::write(&archive, &bytes[..bytes.len() / 2]).unwrap();
    let empty = folder.path().join("empty");
    ends_with(&kernelzero(&empty, &["import", &archive]), 4, "damaged or cut off");
}

#[test]
fn an_owner_keeps_others_from_what_it_may_be_writing() {
    let world = whole();
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("home");
    let home = at_home(&place, &world, drafts(&world));
    let owner = home.open_run(run(), OpenMode::Own).unwrap();
    ends_with(&kernelzero(&place, &["gc", "--older-than", "0"]), 5, "is owned by process");
    ends_with(&kernelzero(&place, &["gc", "--dry-run"]), 0, "would go");
    ends_with(&kernelzero(&place, &["log", "rebuild"]), 5, "is owned by process");
    ends_with(&kernelzero(&place, &["log", "verify"]), 0, "agrees");
    let copy = folder.path().join("copy");
    ends_with(&kernelzero(&place, &["backup", copy.to_str().unwrap()]), 0, "copied to");
    drop(owner);
    let head = home.dir().join("heads").join(run().to_string());
    std::fs::write(&head, "").unwrap();
    ends_with(&kernelzero(&place, &["audit"]), 1, "chained anew would not show");
    std::fs::remove_file(head).unwrap();
    ends_with(&kernelzero(&place, &["log", "verify"]), 4, "is missing");
    // Whatever is made of such a log would look whole.
    let (other, archive) = (folder.path().join("other"), folder.path().join("r.kz"));
    for arguments in [
        ["backup", other.to_str().unwrap()].as_slice(),
        &["export", &run().to_string(), archive.to_str().unwrap()],
        &["fork", "--at", "20", "--only"],
        &["audit"],
    ] {
        ends_with(&kernelzero(&place, arguments), 4, "lost records would not show");
    }
    assert!(!other.exists() && !archive.exists());
    ends_with(&kernelzero(&place, &["status"]), 0, "lost records would not show");
    let blob = world.log.read_after(Seq(0), 1).unwrap()[0].event.blobs()[0];
    std::fs::remove_file(home.blobs().unwrap().path(blob)).unwrap();
    ends_with(&kernelzero(&copy, &["log", "verify"]), 0, "0 missing");
    ends_with(&kernelzero(&place, &["log", "verify"]), 4, "1 missing or damaged");
}

#[test]
fn a_branch_whose_maker_is_killed_is_whole_or_not_there() {
    let world = whole();
    let folder = TempDir::new().unwrap();
    let place = folder.path();
    let home = at_home(place, &world, drafts(&world));
    let parent = run().to_string();
    let fork = ["fork", "--run", &parent, "--at", "8", "--only"];
    let began = Instant::now();
    ends_with(&kernelzero(place, &fork), 0, "branch ");
    let whole = began.elapsed();
    for round in 0..24 {
        let mut child = Command::new(KERNELZERO);
        let mut child =
            child.arg("--home").arg(place).args(fork).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole * round / 20);
        child.kill().unwrap();
        child.wait().unwrap();
        ends_with(&kernelzero(place, &["log", "verify", "--all"]), 0, &parent);
    }
    ends_with(&kernelzero(place, &fork), 0, "branch ");
    let runs = home.runs().unwrap();
    let names = |part: &str| std::fs::read_dir(place.join(part)).unwrap().count();
    assert_eq!(
        (names("runs"), names("heads")),
        (runs.len(), runs.len()),
        "nothing half made is left"
    );
    for run in runs {
        let log = home.open_run(run, OpenMode::ReadOnly).unwrap();
        assert_eq!(
            actors::bus::fold(&log).unwrap().branch(),
            Some(run),
            "it begins with its own record"
        );
    }
}

#[test]
fn what_is_remembered_of_a_step_changes_no_finding() {
    let world = whole();
    let events: Vec<Event> = drafts(&world).into_iter().map(|draft| draft.event).collect();
    let evidence = HashEvidence(&*world.blobs);
    let mut differing = 0;
    for left_out in 1..events.len() {
        let mut state = RunState::default();
        let mut auditor = Auditor::default();
        let kept = events.iter().enumerate().filter(|(at, _)| *at != left_out);
        for (seq, (_, event)) in (1..).zip(kept) {
            let alone = check(&state, Seq(seq), event, &evidence);
            differing += u32::from(alone.is_err());
            assert_eq!(auditor.check(&state, Seq(seq), event, &evidence), alone);
            if state.apply(Seq(seq), event).is_err() {
                break;
            }
        }
    }
    assert!(differing as usize >= events.len() / 2, "{differing} findings");
}
