//! What is wrong with input or machine is named, and nothing is started or touched.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod cli;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use cli::{KERNELZEROD, ends_with, kernelzero, root, run_folder, said, small_config};
use tempfile::TempDir;

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
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("timing = false", "timing = true")).unwrap();
    ends_with(&daemon(&[], &[]), 2, "judge.timing");
    assert!(run_folder(&home).is_none(), "nothing was started");
}

/// The shipped policy of `role`, copied where `spoil` may change it, and a config that names it.
fn spoilt_policy(folder: &Path, role: &str, spoil: impl FnOnce(&Path)) -> PathBuf {
    let shipped = root().join("configs/policies").join(role);
    let copy = folder.join("spoilt");
    std::fs::create_dir_all(&copy).unwrap();
    for entry in std::fs::read_dir(&shipped).unwrap().flatten() {
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    spoil(&copy);
    let config = small_config(folder);
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace(&shipped.display().to_string(), &copy.display().to_string());
    std::fs::write(&config, text).unwrap();
    config
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from} is not in {}", path.display());
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

fn daemon(home: &Path, config: &Path) -> Output {
    Command::new(KERNELZEROD)
        .arg("--home")
        .arg(home)
        .arg("--config")
        .arg(config)
        .arg("--exit-when-done")
        .output()
        .unwrap()
}

#[test]
fn policies_that_do_not_fit_are_refused_before_anything_starts() {
    type Case = (&'static str, &'static str, fn(&Path));
    let cases: [Case; 3] = [
        ("coder", "token id 1354", |model| {
            replace(&model.join("config.json"), "\"vocab_size\": 1408", "\"vocab_size\": 1300");
        }),
        ("proposer", "shape", |model| {
            let [from, to] = ["\"intermediate_size\": 704", "\"intermediate_size\": 700"];
            replace(&model.join("config.json"), from, to);
        }),
        ("coder", "model.safetensors", |model| {
            let path = model.join("model.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..bytes.len() / 3]).unwrap();
        }),
    ];
    for (role, named, spoil) in cases {
        let folder = TempDir::new().unwrap();
        let home = folder.path().join("home");
        let config = spoilt_policy(folder.path(), role, spoil);
        let output = daemon(&home, &config);
        ends_with(&output, 2, named);
        ends_with(&output, 2, &folder.path().join("spoilt").display().to_string());
        assert!(run_folder(&home).is_none(), "nothing was started");
    }
}

/// A run of a small config whose daemon was killed soon after its first event.
fn begun(folder: &Path) -> (PathBuf, PathBuf) {
    let (home, config) = (folder.join("home"), small_config(folder));
    let mut child = Command::new(KERNELZEROD)
        .args([Path::new("--home"), &home, Path::new("--config"), &config])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(100);
    while !run_folder(&home).is_some_and(|run| run.join("daemon.json").exists()) {
        assert!(Instant::now() < end, "the run does not begin");
        assert!(child.try_wait().unwrap().is_none(), "the daemon ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    (home, config)
}

fn only_file(folder: &Path) -> PathBuf {
    let mut paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let path = paths.next().unwrap();
    assert!(paths.next().is_none());
    path
}

#[test]
fn a_damaged_log_and_a_missing_blob_stop_every_command_and_change_nothing() {
    let folder = TempDir::new().unwrap();
    let (home, config) = begun(folder.path());
    let segment = only_file(&run_folder(&home).unwrap().join("log"));
    let good = std::fs::read(&segment).unwrap();
    let mut bad = good.clone();
    bad[200] ^= 1;
    std::fs::write(&segment, &bad).unwrap();
    let name = segment.file_name().unwrap().to_str().unwrap();
    for output in [
        kernelzero(&home, &["audit"]),
        kernelzero(&home, &["status"]),
        kernelzero(&home, &["replay"]),
        daemon(&home, &config),
    ] {
        ends_with(&output, 4, name);
    }
    assert_eq!(std::fs::read(&segment).unwrap(), bad, "a damaged log is left as it is");
    std::fs::write(&segment, &good).unwrap();

    let weights = kernelzero(&home, &["log", "--type", "RunStarted", "--json"]);
    let started: serde_json::Value = serde_json::from_slice(&weights.stdout).unwrap();
    let files = started.to_string();
    let blobs: Vec<PathBuf> = std::fs::read_dir(home.join("blobs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .flat_map(|path| std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()))
        .filter(|path| files.contains(path.file_name().unwrap().to_str().unwrap()))
        .collect();
    let largest = blobs.iter().max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    let name = largest.file_name().unwrap().to_str().unwrap();
    let before = std::fs::read(&segment).unwrap();
    std::fs::rename(largest, folder.path().join("aside")).unwrap();
    let audit = kernelzero(&home, &["audit"]);
    assert_ne!(audit.status.code(), Some(0));
    assert!(said(&audit).contains(name), "{}", said(&audit));
    ends_with(&daemon(&home, &config), 4, name);
    assert_eq!(std::fs::read(&segment).unwrap(), before, "nothing is recorded");
    std::fs::rename(folder.path().join("aside"), largest).unwrap();
    ends_with(&kernelzero(&home, &["audit"]), 0, "everything agrees");
}

/// A file system of `mib` MiB at `at`; only root can have one.
fn small_disk(at: &Path, mib: u32) -> bool {
    std::fs::create_dir_all(at).unwrap();
    let size = format!("size={mib}m");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).status();
    mount.is_ok_and(|status| status.success())
}

#[test]
fn a_full_disk_is_named_and_the_run_goes_on_when_there_is_room() {
    // Too small for the first weights, and too small for the first checkpoint.
    for mib in [20, 60] {
        let folder = TempDir::new().unwrap();
        let disk = folder.path().join("disk");
        if !small_disk(&disk, mib) {
            println!("not run: mounting a small file system needs root");
            return;
        }
        let home = disk.join("home");
        let config = small_config(folder.path());
        let full = daemon(&home, &config);
        if mib == 20 {
            ends_with(&full, 3, "No space left");
            assert!(run_folder(&home).is_none(), "nothing was started");
            assert!(Command::new("umount").arg("--lazy").arg(&disk).status().unwrap().success());
            continue;
        }
        let more = Command::new("mount").args(["-o", "remount,size=1g"]).arg(&disk).status();
        let rest = daemon(&home, &config);
        let audit = kernelzero(&home, &["audit"]);
        // Lazily: a worker that was killed a moment ago may still be going.
        let gone = Command::new("umount").arg("--lazy").arg(&disk).status();
        ends_with(&full, 3, "No space left");
        assert!(more.unwrap().success() && gone.unwrap().success());
        ends_with(&rest, 0, "");
        ends_with(&audit, 0, "everything agrees");
    }
}

#[test]
fn a_process_number_in_a_file_is_not_a_daemon() {
    let folder = TempDir::new().unwrap();
    let (home, _) = begun(folder.path());
    let run = run_folder(&home).unwrap();
    let mut bystander = Command::new("sleep").arg("60").spawn().unwrap();
    let says = format!("{{\"pid\":{},\"port\":1}}", bystander.id());
    std::fs::write(run.join("daemon.json"), says).unwrap();
    std::fs::write(run.join("lock"), bystander.id().to_string()).unwrap();
    ends_with(&kernelzero(&home, &["status"]), 0, "daemon          none");
    ends_with(&kernelzero(&home, &["stop"]), 0, "has no daemon");
    assert!(bystander.try_wait().unwrap().is_none(), "it was killed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}
