//! Seeded schedules: a home lives several lives under random work and random faults, is damaged in
//! between, and must keep its word: what was acknowledged is never lost, nothing is there twice,
//! damage is reported and never passed over.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use events::event::Event;
use events::ids::Seq;
use events::log::{Blobs, Log, LogError};

use super::forged::forge;
use super::world::{World, files, numbers, run};
use super::{Chance, Fault, arm, disarm, struck};
use crate::frame::HEADER;
use crate::{FileLog, HeadState, Home, OpenMode, backup, export, gc, import, verify};

/// Seeds beyond the first [`SCHEDULES`] that once failed. Of those, 4 and 258 (heads lost with the power),
/// 112 (a branch without its parent) and 392 (a segment that stayed) did.
const ONCE_FAILED: &[u64] = &[1_957, 2_303];
const SCHEDULES: u64 = 500;

#[test]
fn five_hundred_schedules_keep_every_promise() {
    let mut met = 0;
    for seed in ONCE_FAILED.iter().copied().chain(0..SCHEDULES) {
        met += schedule(seed);
    }
    assert!(met > SCHEDULES, "only {met} faults were met");
}

/// More of them, from a seed on: `KERNELZERO_SEEDS=1000..9000 cargo nextest run -p store
/// --run-ignored only more_schedules`.
#[test]
#[ignore = "as many as are asked for"]
fn more_schedules() {
    let asked = std::env::var("KERNELZERO_SEEDS").unwrap_or_else(|_| "500..5000".into());
    let (from, to) = asked.split_once("..").unwrap();
    for seed in from.parse::<u64>().unwrap()..to.parse().unwrap() {
        schedule(seed);
    }
}

/// Lives through one schedule; returns how many faults were met.
fn schedule(seed: u64) -> u64 {
    let mut chance = Chance::new(seed);
    let mut world = World::new(seed);
    let mut met = 0;
    for _ in 0..5 {
        arm(strike(&mut chance), chance.one_in(4), chance.split());
        live(&mut world, &mut chance);
        met += u64::from(disarm().met);
        world.check();
        if chance.one_in(2) {
            damage(&mut world, &mut chance);
            world.check();
        }
    }
    met
}

fn strike(chance: &mut Chance) -> Option<(u64, Fault)> {
    let within = chance.of(&[12, 40, 150]);
    let at = chance.below(within);
    let lasts = chance.of(&[1, 2, 3, 20]);
    let fault = match chance.below(9) {
        0..3 => Fault::Killed,
        3..5 => Fault::PowerLost,
        5..7 => Fault::Full(lasts),
        7 => Fault::Broken(lasts),
        _ => return None,
    };
    Some((at, fault))
}

/// One process: opens a run, works, ends or dies.
fn live(world: &mut World, chance: &mut Chance) {
    let Some(home) = excused(world, Home::open(world.dir())) else { return };
    let Some(blobs) = excused(world, home.blobs()) else { return };
    let id = run(1 + chance.below(3));
    if !home.run_dir(id).exists() {
        let Some(log) = excused(world, home.create_run(id)) else { return };
        drop(log);
        world.runs.entry(id).or_default();
    }
    let segment_bytes = chance.of(&[200, 900, 5_000, 64 << 20]);
    let opened = world.own(&home, id, segment_bytes);
    let Some(mut log) = excused(world, opened) else { return };
    for _ in 0..chance.below(25) {
        match chance.below(20) {
            0..12 if !world.append(&log, id, chance) => return,
            0..12 => {}
            12..15 => {
                let content = vec![chance.below(256) as u8; chance.of(&[0, 10, 3_000])];
                if let Some(blob) = excused(world, blobs.put(&content)) {
                    world.blobs.push((blob, content));
                }
            }
            15 => world.look(id),
            16 => {
                drop(log);
                let opened = world.own(&home, id, segment_bytes);
                let Some(again) = excused(world, opened) else { return };
                log = again;
            }
            17 => branch(world, &home, &log, chance),
            18 => copies(world, &home, &log),
            _ if chance.one_in(4) => asked(world, &log),
            _ => {}
        }
        if struck().dead {
            return;
        }
        let found = numbers(&log).unwrap();
        assert_eq!(found, world.runs[&id].kept, "seed {}", world.seed);
    }
}

/// Nothing, if the world was the cause of it.
#[track_caller]
fn excused<T>(world: &World, outcome: Result<T, LogError>) -> Option<T> {
    outcome.map_err(|error| world.excuse(&error, struck().met)).ok()
}

/// A branch somewhere, once.
fn branch(world: &mut World, home: &Home, log: &FileLog, chance: &mut Chance) {
    let (last, _) = log.head();
    let id = run(10 + chance.below(2));
    if last == Seq(0) || home.run_dir(id).exists() {
        return;
    }
    let at = 1 + chance.below(last.0);
    let parent = log.dir().file_name().and_then(|n| n.to_str()).unwrap().parse().unwrap();
    let shared = numbers(log).unwrap()[..at as usize].to_vec();
    let (drafts, batch) = world.batch(chance);
    let whole = [shared, batch].concat();
    // Where it is made though its maker died, it is whole.
    world.branches.insert(id, whole.clone());
    if let Some(fork) = excused(world, home.fork_run(parent, Seq(at), id, drafts)) {
        world.runs.entry(id).or_default().kept = whole;
        world.append(&fork, id, chance);
    }
}

/// A backup and an archive appear whole or not at all.
fn copies(world: &World, home: &Home, log: &FileLog) {
    let to = world.folder.path().join("copy");
    let _ = fs::remove_dir_all(&to);
    let copied = excused(world, backup(home, &to));
    if copied.is_some() || to.exists() {
        let copy = Home::existing(&to).unwrap();
        for run in copy.runs().unwrap() {
            verify(&copy.run_dir(run), |_, _| ControlFlow::Continue(())).unwrap();
            let found = numbers(&copy.open_run(run, OpenMode::ReadOnly).unwrap()).unwrap();
            world.may_hold(run, &found);
        }
    }
    let id = log.dir().file_name().and_then(|n| n.to_str()).unwrap().parse().unwrap();
    let archive = world.folder.path().join("archive");
    let _ = fs::remove_file(&archive);
    let exported = excused(world, export(home, id, &archive));
    if exported.is_none() && !archive.exists() {
        return;
    }
    let other = world.folder.path().join("other");
    let _ = fs::remove_dir_all(&other);
    let Some(other) = excused(world, Home::open(&other)) else { return };
    let imported = excused(world, import(&other, &archive));
    if imported.is_some() || other.run_dir(id).exists() {
        let found = numbers(&other.open_run(id, OpenMode::ReadOnly).unwrap()).unwrap();
        world.may_hold(id, &found);
    }
}

/// The index answers as the log does.
fn asked(world: &World, log: &FileLog) {
    let found = log.by_name("WorkFailed").unwrap();
    let said = log.head().0.0;
    assert_eq!(found, (1..=said).map(Seq).collect::<Vec<_>>(), "seed {}", world.seed);
    let Some(one) = log.get(Seq(said)).unwrap() else { return };
    assert!(matches!(one.event, Event::WorkFailed { .. }));
}

/// Damages a sound home in one place: that is said, or what was acknowledged is there all the same.
fn damage(world: &mut World, chance: &mut Chance) {
    let home = Home::open(world.dir()).unwrap();
    let mut bare = Vec::new();
    for run in home.runs().unwrap() {
        // Brings the heads up to date: what a head does not know may be lost unseen with the power.
        let log = home.open_run(run, OpenMode::Own).unwrap();
        let found = numbers(&log).unwrap();
        world.compare(run, &found);
        if log.base().map_or(0, |base| base.at.0) == found.len() as u64 {
            bare.push(world.dir().join("heads").join(run.to_string()));
        }
    }
    gc(&home, Duration::from_secs(3_600), false).unwrap();
    // Not the index, which is nobody's memory, and not what a dead process was still making.
    let counts = |path: &PathBuf| {
        let other = |part: &str| {
            ["index", "lock", "tmp"].contains(&part)
                || ["new-", "import-"].iter().any(|start| part.starts_with(start))
                || [".seal", ".tmp"].iter().any(|end| part.ends_with(end))
        };
        !path.iter().any(|part| part.to_str().is_some_and(other))
    };
    let victims: Vec<PathBuf> = files(&world.dir()).into_iter().filter(counts).collect();
    if victims.is_empty() {
        return;
    }
    let victim = victims[chance.below(victims.len() as u64) as usize].clone();
    let sound = fs::read(&victim).unwrap();
    let what = spoil(&victim, &sound, chance);
    let (mut said, mut without_head) = (Vec::new(), false);
    for run in home.runs().unwrap() {
        let owned = home.open_run(run, OpenMode::Own);
        let read = owned.and_then(|log| {
            let found = numbers(&log)?;
            Ok((found, log.recovery().outside))
        });
        let verified = verify(&home.run_dir(run), |_, _| ControlFlow::Continue(()));
        match (read, verified) {
            (Ok((found, outside)), Ok(_)) => {
                without_head |= outside == HeadState::Missing;
                let kept = &world.runs[&run].kept;
                assert_eq!(found, *kept, "seed {}: {what} of {victim:?}", world.seed);
            }
            (read, verified) => said.extend([read.err(), verified.err()].into_iter().flatten()),
        }
    }
    let blobs = home.blobs().unwrap();
    said.extend(blobs.verify_all(world.blobs.iter().map(|(id, _)| *id)));
    for error in &said {
        let named = matches!(
            error,
            LogError::Damaged { .. } | LogError::Blob { .. } | LogError::Newer { .. }
        ) || (what == "gone" && matches!(error, LogError::Io { .. }));
        assert!(named, "seed {}: {what} of {victim:?}: {error}", world.seed);
    }
    // A blob that was said to be stored and reads as the same bytes is not damaged.
    let blob = victim.starts_with(world.dir().join("blobs"));
    // What lies after the last record was never acknowledged; without records there is no head.
    let tail = ["longer", "repeated", "zeros"].contains(&what);
    let empty = victim.extension().is_some_and(|e| e == "seg") && sound.len() == HEADER;
    let harmless = tail || bare.contains(&victim) || empty || without_head || blob;
    assert!(!said.is_empty() || harmless, "seed {}: {what} of {victim:?} unseen", world.seed);
    fs::write(&victim, &sound).unwrap();
    forge(world.seed, &victims);
}

/// Changes a file; returns how.
fn spoil(path: &Path, sound: &[u8], chance: &mut Chance) -> &'static str {
    let mut bytes = sound.to_vec();
    let part = |chance: &mut Chance| chance.below(sound.len().max(1) as u64) as usize;
    let what = match chance.below(7) {
        _ if sound.is_empty() => "gone",
        0..2 => {
            bytes[part(chance)] ^= 1 << chance.below(8);
            "a bit"
        }
        2 => {
            bytes.truncate(part(chance));
            "shorter"
        }
        3 => {
            bytes.extend((0..1 + chance.below(300)).map(|_| chance.below(256) as u8));
            "longer"
        }
        4 => {
            bytes.extend(vec![0; 1 + chance.below(900) as usize]);
            "zeros"
        }
        5 => {
            let from = part(chance);
            bytes.extend_from_within(from..);
            "repeated"
        }
        _ => "gone",
    };
    if what == "gone" {
        fs::remove_file(path).unwrap();
    } else {
        fs::write(path, bytes).unwrap();
    }
    what
}
