//! The programs as a user has them: a small run with the shipped policies, killed and gone on with.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const KERNELZERO: &str = env!("CARGO_BIN_EXE_kernelzero");
const KERNELZEROD: &str = env!("CARGO_BIN_EXE_kernelzerod");

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The laptop's config with one short round, written where the policies can be found from.
fn small_config(folder: &Path) -> PathBuf {
    let text = std::fs::read_to_string(root().join("configs/laptop.toml")).unwrap();
    let configs = root().join("configs");
    let text = text
        .replace("rounds = 2", "rounds = 1")
        .replace("steps-per-phase = 2", "steps-per-phase = 1")
        .replace("batch-prompts = 4", "batch-prompts = 2")
        .replace("batch-prompts = 6", "batch-prompts = 2")
        .replace("group-size = 4", "group-size = 2")
        .replace("coder-samples = 3", "coder-samples = 2")
        .replace("\"policies/", &format!("\"{}/policies/", configs.display()))
        .replace("\"apis.tsv\"", &format!("\"{}/apis.tsv\"", configs.display()));
    let path = folder.join("small.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn kernelzero(home: &Path, arguments: &[&str]) -> Output {
    Command::new(KERNELZERO)
        .arg("--home")
        .arg(home)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

#[track_caller]
fn ends_with(output: &Output, code: i32, named: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", said(output));
    assert!(said(output).contains(named), "`{named}` is not in: {}", said(output));
}

/// Processes that have `text` in their command line or working directory.
fn processes_of(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let folder = std::fs::read_link(path.join("cwd")).unwrap_or_default();
        if command.contains(text) || folder.to_string_lossy().contains(text) {
            found.push(format!("{}: {command}", path.display()));
        }
    }
    found
}

/// The only run's folder.
fn run_folder(home: &Path) -> Option<PathBuf> {
    let mut runs = std::fs::read_dir(home.join("runs")).ok()?.flatten().map(|e| e.path());
    let run = runs.next();
    assert!(runs.next().is_none(), "one config is one run, however often it is started");
    run
}

/// The daemon of this home, also before it says where it can be reached.
fn daemon_of(home: &Path) -> Option<i32> {
    let command = format!("kernelzerod --config {}", home.with_file_name("small.toml").display());
    let found = processes_of(&command).into_iter().next()?;
    found.strip_prefix("/proc/")?.split(':').next()?.parse().ok()
}

#[test]
#[ignore = "minutes of two cores: `make kill-storm`"]
fn a_run_killed_again_and_again_ends_and_audits() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("home");
    let config = small_config(folder.path());
    let config = config.to_str().unwrap();
    let kills = std::env::var("KERNELZERO_KILLS").map_or(4, |n| n.parse().unwrap());
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut made = 0;
    for kill in 0..kills {
        let mut watcher = Command::new(KERNELZERO)
            .arg("--home")
            .arg(&home)
            .args(["run", "--config", config])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(kill);
        let moment = Duration::from_millis(500 + (seed >> 33) % 6_000);
        std::thread::sleep(moment);
        if let Some(pid) = daemon_of(&home) {
            // SAFETY: a signal to a process that this test started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            made += 1;
        }
        // A run that is over is not gone on with: starting again would rightly be a new run.
        if watcher.wait().unwrap().success() {
            break;
        }
    }
    println!("{made} kills of {kills}");
    assert!(2 * made >= kills, "only {made} of {kills} kills met a living run");
    let last = kernelzero(&home, &["run", "--config", config]);
    ends_with(&last, 0, "finished");
    let audit = kernelzero(&home, &["audit"]);
    ends_with(&audit, 0, "everything agrees");
    let status = kernelzero(&home, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["modules-valid"]["all"], 4, "2 sets of 2 modules, none lost, none twice");
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
    a_byte_is_noticed(&home, &run);
}

/// Flips one byte of each kind of file in turn: the audit must fail and name the place.
fn a_byte_is_noticed(home: &Path, run: &Path) {
    let segments = std::fs::read_dir(run.join("log")).unwrap().flatten().map(|e| e.path());
    let segment = segments.into_iter().next().unwrap();
    let length = std::fs::metadata(&segment).unwrap().len() as usize;
    for offset in [length / 5, length / 2, length - 2] {
        flipped(&segment, offset, || {
            let audit = kernelzero(home, &["audit"]);
            assert_eq!(audit.status.code(), Some(4), "byte {offset}: {}", said(&audit));
            assert!(said(&audit).contains(".seg"), "{}", said(&audit));
        });
    }
    let blob = first_blob(home);
    let length = std::fs::metadata(&blob).unwrap().len() as usize;
    flipped(&blob, length / 2, || {
        let audit = kernelzero(home, &["audit"]);
        let name = blob.file_name().unwrap().to_str().unwrap();
        ends_with(&audit, 1, name);
    });
    ends_with(&kernelzero(home, &["audit"]), 0, "everything agrees");
}

fn first_blob(home: &Path) -> PathBuf {
    let folders = std::fs::read_dir(home.join("blobs")).unwrap().flatten().map(|e| e.path());
    let mut blobs: Vec<PathBuf> = folders
        .filter(|path| path.is_dir())
        .flat_map(|path| std::fs::read_dir(path).unwrap().flatten().map(|e| e.path()))
        .filter(|path| path.is_file())
        .collect();
    blobs.sort();
    blobs.into_iter().next().unwrap()
}

fn flipped(path: &Path, offset: usize, check: impl FnOnce()) {
    let good = std::fs::read(path).unwrap();
    let mut bad = good.clone();
    bad[offset] ^= 0x20;
    std::fs::write(path, &bad).unwrap();
    check();
    std::fs::write(path, &good).unwrap();
}

#[test]
fn bad_input_is_refused_before_anything_starts() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("home");
    let config = small_config(folder.path());
    let good = std::fs::read_to_string(&config).unwrap();
    let run = |text: &str| {
        let path = folder.path().join("bad.toml");
        std::fs::write(&path, text).unwrap();
        kernelzero(&home, &["run", "--config", path.to_str().unwrap()])
    };
    ends_with(&run(&good.replace("seed = ", "sede = ")), 2, "sede");
    ends_with(&run(&good.replace("top-k = 20", "top-k = -1")), 2, "top-k = -1");
    ends_with(&run(&good.replace("/policies/coder", "/policies/nobody")), 2, "coder.policy.init");
    ends_with(&run(&good.replace("apis.tsv", "none.tsv")), 2, "sampler.table");
    ends_with(&kernelzero(&home, &["run", "--config", "none.toml"]), 2, "none.toml");
    ends_with(&kernelzero(&home, &["status"]), 2, "start one");
    ends_with(&kernelzero(&home, &["log", "--type", "Nothing"]), 2, "there is no event `Nothing`");
    assert!(run_folder(&home).is_none(), "nothing was started");
}

#[test]
fn what_the_machine_lacks_is_named() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("home");
    let config = small_config(folder.path());
    let daemon = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = Command::new(KERNELZEROD);
        command.arg("--home").arg(&home).arg("--config").arg(&config).args(arguments);
        for (name, value) in variables {
            command.env(name, value);
        }
        command.output().unwrap()
    };
    let output = daemon(&[("KERNELZERO_PYTHON", "/nowhere/python")], &[]);
    ends_with(&output, 3, "make setup");
    let output = daemon(&[("KERNELZERO_ENGINE", "/nowhere/engine")], &[]);
    ends_with(&output, 3, "KERNELZERO_ENGINE");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    ends_with(&daemon(&[], &["--port", &port]), 3, "is in use");
    assert!(run_folder(&home).is_none(), "nothing was started");
}
