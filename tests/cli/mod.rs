//! The programs as a user calls them.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kernelzero::host::HostConfig;

pub const KERNELZERO: &str = env!("CARGO_BIN_EXE_kernelzero");
pub const KERNELZEROD: &str = env!("CARGO_BIN_EXE_kernelzerod");

pub fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap())
}

/// The laptop's config, with paths that hold from every folder.
pub fn laptop_config() -> String {
    let text = std::fs::read_to_string(root().join("configs/laptop.toml")).unwrap();
    let configs = root().join("configs");
    text.replace("\"policies/", &format!("\"{}/policies/", configs.display()))
        .replace("\"apis.tsv\"", &format!("\"{}/apis.tsv\"", configs.display()))
}

/// The laptop's config with one short round.
pub fn small_config(folder: &Path) -> PathBuf {
    let text = laptop_config()
        .replace("rounds = 2", "rounds = 1")
        .replace("steps-per-phase = 2", "steps-per-phase = 1")
        .replace("batch-prompts = 4", "batch-prompts = 2")
        .replace("batch-prompts = 6", "batch-prompts = 2")
        .replace("group-size = 4", "group-size = 2")
        .replace("coder-samples = 3", "coder-samples = 2");
    let path = folder.join("small.toml");
    std::fs::write(&path, text).unwrap();
    path
}

pub fn kernelzero(home: &Path, arguments: &[&str]) -> Output {
    Command::new(KERNELZERO)
        .arg("--home")
        .arg(home)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs a script that drives one of the Python clients and says "all is well".
#[track_caller]
pub fn drives_client(script: &str, arguments: &[&OsStr]) {
    let output = Command::new(HostConfig::default().python().unwrap())
        .arg(root().join(script))
        .args(arguments)
        .env("PYTHONPATH", root().join("bin/client"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "all is well");
}

pub fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

#[track_caller]
pub fn ends_with(output: &Output, code: i32, named: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", said(output));
    assert!(said(output).contains(named), "`{named}` is not in: {}", said(output));
}

/// Processes that have `text` in their command line or working directory.
pub fn processes_of(text: &str) -> Vec<String> {
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
pub fn run_folder(home: &Path) -> Option<PathBuf> {
    let mut runs = std::fs::read_dir(home.join("runs")).ok()?.flatten().map(|e| e.path());
    let run = runs.next();
    assert!(runs.next().is_none(), "one config is one run, however often it is started");
    run
}
