//! A run with the shipped policies whose processes are killed at random moments ends, loses and
//! doubles nothing, leaves nothing behind, and a byte changed in any record or blob is noticed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod cli;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cli::{
    KERNELZERO, ends_with, kernelzero, laptop_config, processes_of, run_folder, said, small_config,
};
use tempfile::TempDir;

/// The daemon of a home, also before it says where it can be reached.
fn daemon_of(config: &Path) -> Option<i32> {
    let found = processes_of(&format!("kernelzerod --config {}", config.display()));
    found.first()?.strip_prefix("/proc/")?.split(':').next()?.parse().ok()
}

/// All processes below another, with their command lines.
fn descendants(of: i32) -> Vec<(i32, String)> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let (Some((pid, _)), Some((_, rest))) = (stat.split_once(' '), stat.rsplit_once(')'))
        else {
            continue;
        };
        let Some(parent) = rest.split_whitespace().nth(1).and_then(|p| p.parse::<i32>().ok())
        else {
            continue;
        };
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        parents.push((pid.parse::<i32>().unwrap(), parent, command));
    }
    let mut found = vec![(of, String::new())];
    let mut next = 0;
    while let Some((parent, _)) = found.get(next).cloned() {
        next += 1;
        let children = parents.iter().filter(|(_, p, _)| *p == parent);
        found.extend(children.map(|(pid, _, command)| (*pid, command.clone())));
    }
    found.remove(0);
    found
}

/// A generator that needs no crate: the top bits of a linear congruence.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.0 >> 33) as usize % limit
    }
}

fn start(home: &Path, config: &Path) -> Child {
    let mut command = Command::new(KERNELZERO);
    command.arg("--home").arg(home).arg("run").arg("--config").arg(config);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills the daemon or one of its processes `kills` times, as long as the run lasts; gives what was
/// killed. Whoever watched a daemon that died starts it again.
fn storm(home: &Path, config: &Path, kills: usize, most_ms: usize) -> Vec<String> {
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    let (mut killed, mut wanted) = (Vec::new(), None);
    let mut watcher = start(home, config);
    while killed.len() < kills {
        std::thread::sleep(Duration::from_millis(300 + chance.below(most_ms) as u64));
        if watcher.try_wait().unwrap().is_some() {
            // A run that is over is not gone on with: starting again would rightly be a new run.
            if finished(home) {
                break;
            }
            watcher = start(home, config);
            continue;
        }
        let Some(daemon) = daemon_of(config) else { continue };
        let (engines, judges): (Vec<_>, Vec<_>) = descendants(daemon)
            .into_iter()
            .partition(|(_, command)| command.contains("kernelzero-engine"));
        let kind = wanted.take().unwrap_or_else(|| chance.below(3));
        let (victim, name) = match kind {
            0 => (daemon, "kernelzerod".to_owned()),
            1 if !engines.is_empty() => engines[0].clone(),
            2 if !judges.is_empty() => judges[chance.below(judges.len())].clone(),
            // Who is not there yet is waited for.
            _ => {
                wanted = Some(kind);
                continue;
            }
        };
        // SAFETY: a signal to a process that this test started.
        if unsafe { libc::kill(victim, libc::SIGKILL) } == 0 {
            killed.push(if name.contains("python") { "judge".to_owned() } else { name });
        }
    }
    watcher.wait().unwrap();
    killed
}

fn finished(home: &Path) -> bool {
    let status = kernelzero(home, &["status", "--json"]);
    let status: Option<serde_json::Value> = serde_json::from_slice(&status.stdout).ok();
    status.is_some_and(|status| status["finished"] == true)
}

fn kills(default: usize) -> usize {
    std::env::var("KERNELZERO_KILLS").map_or(default, |n| n.parse().unwrap())
}

fn survives(config: &Path, most_ms: usize, modules: u64, kills: usize) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("home");
    let killed = storm(&home, config, kills, most_ms);
    println!("{} kills: {killed:#?}", killed.len());
    assert!(2 * killed.len() >= kills, "only {} of {kills} kills met a living run", killed.len());
    for _ in 0..10 {
        if finished(&home) {
            break;
        }
        let last = kernelzero(&home, &["run", "--config", config.to_str().unwrap()]);
        // Workers killed again and again pause the run: that is said, and `run` goes on.
        if last.status.code() != Some(6) {
            ends_with(&last, 0, "finished");
        }
    }
    assert!(finished(&home));
    ends_with(&kernelzero(&home, &["audit"]), 0, "everything agrees");
    let status = kernelzero(&home, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["modules-valid"]["all"], modules, "none lost, none twice");
    let text = home.to_string_lossy().into_owned();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !processes_of(&text).is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(processes_of(&text), Vec::<String>::new(), "processes are left over");
    let run = run_folder(&home).unwrap();
    for left in ["judge", "weights", "daemon.json"] {
        assert!(!run.join(left).exists(), "{left} is left over");
    }
    (folder, home)
}

#[test]
#[ignore = "minutes of two cores: `make kill-storm`"]
fn a_small_run_killed_again_and_again() {
    let configs = TempDir::new().unwrap();
    let (_folder, home) = survives(&small_config(configs.path()), 5_000, 4, kills(8));
    every_changed_byte_is_noticed(&home);
}

#[test]
#[ignore = "a quarter of an hour of two cores: `make kill-storm`"]
fn the_laptop_run_killed_again_and_again() {
    let configs = TempDir::new().unwrap();
    let config = configs.path().join("laptop.toml");
    std::fs::write(&config, laptop_config()).unwrap();
    survives(&config, 20_000, 64, kills(20));
}

/// Offset and length of each frame of a segment.
fn frames(segment: &[u8]) -> Vec<(usize, usize)> {
    let mut frames = Vec::new();
    let mut at = 56;
    while at + 24 <= segment.len() {
        let length = u32::from_le_bytes(segment[at..at + 4].try_into().unwrap()) as usize;
        frames.push((at, 24 + length));
        at += 24 + length;
    }
    assert_eq!(at, segment.len());
    frames
}

/// Flips one byte of the header, of each record and of each blob in turn: the audit fails and
/// names the file.
fn every_changed_byte_is_noticed(home: &Path) {
    let mut chance = Chance(7);
    let run = run_folder(home).unwrap();
    let segments = files(&run.join("log"));
    assert!(!segments.is_empty());
    let mut flips = 0;
    for segment in segments {
        let bytes = std::fs::read(&segment).unwrap();
        let name = segment.file_name().unwrap().to_str().unwrap();
        let records = frames(&bytes).into_iter().map(|(at, length)| at + chance.below(length));
        for offset in [3].into_iter().chain(records) {
            changed(&segment, &bytes, offset, || {
                let audit = kernelzero(home, &["audit"]);
                assert_eq!(audit.status.code(), Some(4), "byte {offset}: {}", said(&audit));
                assert!(said(&audit).contains(name), "byte {offset}: {}", said(&audit));
            });
            flips += 1;
        }
    }
    let blobs: Vec<PathBuf> =
        files(&home.join("blobs")).iter().filter(|p| p.is_dir()).flat_map(|d| files(d)).collect();
    assert!(blobs.len() > 10);
    for blob in &blobs {
        let bytes = std::fs::read(blob).unwrap();
        let name = blob.file_name().unwrap().to_str().unwrap();
        let offset = chance.below(bytes.len());
        changed(blob, &bytes, offset, || {
            let audit = kernelzero(home, &["audit"]);
            assert_ne!(audit.status.code(), Some(0), "byte {offset} of {name}: {}", said(&audit));
            assert!(said(&audit).contains(name), "byte {offset} of {name}: {}", said(&audit));
        });
    }
    println!("a byte of each of {flips} records and {} blobs was noticed", blobs.len());
    ends_with(&kernelzero(home, &["audit"]), 0, "everything agrees");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn changed(path: &Path, good: &[u8], offset: usize, check: impl FnOnce()) {
    let mut bad = good.to_vec();
    bad[offset] ^= 0x20;
    std::fs::write(path, &bad).unwrap();
    check();
    std::fs::write(path, good).unwrap();
}
