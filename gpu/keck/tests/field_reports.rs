//! Faults that other judges had, line by line in `FIELD-REPORTS.md`; those that no other test
//! shows are tried here.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{case, measure, misbehaving};
use events::config::Rules;
use events::outcome::{Backend, Execution, FailureKind, Measurement};
use events::rules::verdict::verdict;
use keck::{Build, BuildJob, Config, Error, Judge};

fn correct(found: &Measurement) -> bool {
    verdict(found, Rules::Strict).is_some_and(|verdict| verdict.is_correct())
}

fn failed(found: &Measurement) -> (FailureKind, String) {
    match &found.execution {
        Execution::Failed(failure) => (failure.kind, failure.detail.clone()),
        other => panic!("no failure: {other:?}"),
    }
}

/// Line 3: what `__init__` draws by chance is replaced by the task's state, and state that does not
/// fit is named.
#[test]
fn own_weights_are_replaced_or_named() {
    let judge = common::judge(1);
    let module = case("reference", "bias_linear");
    assert!(correct(&measure(&judge, &module, &case("kernels", "honest_linear_holder"))));
    let other = measure(&judge, &module, &case("kernels", "broken_state_keys"));
    let (kind, text) = failed(&other);
    assert_eq!(kind, FailureKind::StateMismatch);
    assert!(text.contains("Missing key") || text.contains("Unexpected key"), "{text}");
}

/// Lines 4, 21 and 24: whatever a candidate does to itself, the next one is judged as if it had not
/// been, by the same warm process and with the same one place.
#[test]
fn the_next_candidate_is_not_concerned() {
    let scratch = tempfile::tempdir().unwrap();
    let config = Config {
        scratch: scratch.path().into(),
        trial_timeout: Duration::from_secs(4),
        import_timeout: Duration::from_secs(8),
        memory_mib: 1024,
        ..Config::default()
    };
    let judge = Judge::new(config).unwrap();
    let module = case("reference", "leaky_scale");
    let honest = case("kernels", "honest_leaky");
    let before = common::processes(scratch.path());
    let shape = honest.replace("y = torch.empty_like(x)", "y = torch.empty_like(x)[1:] + x[2:]");
    for (bad, kind) in [
        (case("kernels", "broken_raises"), FailureKind::RuntimeError),
        (shape, FailureKind::RuntimeError),
        (case("kernels", "broken_memory"), FailureKind::OutOfMemory),
        (case("kernels", "broken_loops"), FailureKind::Timeout),
        (case("kernels", "broken_stores_outside"), FailureKind::RuntimeError),
        (misbehaving("import ctypes\nctypes.string_at(1)"), FailureKind::SandboxViolation),
        (
            misbehaving("import os\nos.kill(os.getpid(), 11)\nos.abort()"),
            FailureKind::SandboxViolation,
        ),
    ] {
        let (found, text) = failed(&measure(&judge, &module, &bad));
        assert_eq!(found, kind, "{text}");
        assert!(correct(&measure(&judge, &module, &honest)), "after {kind:?}");
    }
    // A killed process takes a moment to go.
    let start = Instant::now();
    while common::processes(scratch.path()) != before && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(common::processes(scratch.path()), before, "workers are left or were replaced");
}

/// Line 7: memory that was not written to holds nothing that looks like an answer, also when the
/// answer was there before.
#[test]
fn unwritten_memory_is_no_answer() {
    let judge = common::judge(1);
    let module = case("reference", "leaky_scale");
    let found = measure(&judge, &module, &case("kernels", "hack_unwritten"));
    assert!(!correct(&found), "{:?}", found.execution);
    // Right at first and freed, then taken again without a write.
    let code = case("kernels", "honest_leaky").replace(
        "        return run_leaky(x, self.slope)",
        "        right = run_leaky(x, self.slope)\n        del right\n        return torch.empty_like(x)",
    );
    assert!(!correct(&measure(&judge, &module, &code)));
}

/// Lines 9 and 10: what counts is what is called, whatever it is called by.
#[test]
fn names_are_followed_and_words_are_not() {
    let guarded = case("kernels", "honest_cuda_guarded_build");
    assert_eq!(keck::rules::inspect_kernel(&guarded), Ok(Backend::Cuda));
    let honest = case("kernels", "honest_leaky");
    let worded = honest.replace("import torch\n", "import torch  # try: nn.Conv2d pass\n");
    assert_eq!(keck::rules::inspect_kernel(&worded), Ok(Backend::Triton));
    for (import, call) in [
        ("from torch import nn as layers", "layers.functional.leaky_relu(x, self.slope)"),
        ("import torch.nn.functional as words", "words.leaky_relu(x, self.slope)"),
        ("from torch.nn.functional import leaky_relu as kernel", "kernel(x, self.slope)"),
        ("from torch import nn", "nn.LeakyReLU(self.slope)(x)"),
        ("from torch import matmul as helper", "helper(x, x)"),
        ("t = torch", "t.matmul(x, x)"),
    ] {
        let source = honest
            .replace("import triton\n", &format!("import triton\n{import}\n"))
            .replace("return run_leaky(x, self.slope)", &format!("return {call}"));
        let refused = keck::rules::inspect_kernel(&source);
        let kind = refused.as_ref().err().map(|failure| failure.kind);
        assert_eq!(kind, Some(FailureKind::Impure), "{import}: {refused:?}");
    }
}

/// Line 22: a folder that cannot be used is the world's fault, by its name; no device and no
/// candidate is blamed.
#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let scratch = PathBuf::from("/proc/keck");
    let made = Judge::new(Config { scratch: scratch.clone(), ..Config::default() });
    assert!(matches!(made, Err(Error::Scratch { ref path, .. }) if *path == scratch), "{made:?}");
}

/// Line 25: one that hangs holds up nobody else.
#[test]
fn a_slow_candidate_holds_up_nobody() {
    let limit = Duration::from_secs(20);
    let config = Config { trial_timeout: limit, workers: 2, ..Config::default() };
    let judge = Judge::new(config).unwrap();
    let module = case("reference", "leaky_scale");
    measure(&judge, &module, &case("kernels", "honest_leaky"));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let hangs = scope.spawn(|| measure(&judge, &module, &case("kernels", "broken_loops")));
        for _ in 0..3 {
            assert!(correct(&measure(&judge, &module, &case("kernels", "honest_leaky"))));
        }
        assert!(!hangs.is_finished(), "three took as long as the deadline: {:?}", start.elapsed());
        assert_eq!(failed(&hangs.join().unwrap()).0, FailureKind::Timeout);
    });
}

fn build(judge: &Judge, source: &str) -> Build {
    judge.build(&BuildJob { source: source.to_owned(), backend: Backend::Cuda }).unwrap()
}

/// The shared object of a build.
fn object(build: &Build) -> Vec<u8> {
    let Build::Cuda { artifact, .. } = build else { panic!("{build:?}") };
    std::fs::read(artifact.join("keck_extension_0.so")).unwrap()
}

/// Lines 19 and 20: two sources that give their extension the same name, built at once, and again
/// after a builder was killed in the middle of it.
#[test]
fn builds_share_no_folder_and_no_lock() {
    const MARK: &str = "KECK_TEST_BUILDER";
    let one = case("kernels", "honest_cuda_leaky");
    if let Some(scratch) = std::env::var_os(MARK) {
        let judge = Judge::new(Config { scratch: scratch.into(), ..Config::default() }).unwrap();
        println!("ready");
        build(&judge, &one);
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["builds_share_no_folder_and_no_lock", "--exact", "--nocapture"])
        .env(MARK, scratch.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let said = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::lines(said).map(Result::unwrap).find(|line| line.contains("ready")).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    child.kill().unwrap();
    child.wait().unwrap();
    let config = Config { scratch: scratch.path().into(), workers: 2, ..Config::default() };
    let judge = Judge::new(config).unwrap();
    let other = one.replace("__global__ void leaky", "__global__ void another_leaky");
    let other = other.replace("    leaky<<<", "    another_leaky<<<");
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| object(&build(&judge, &one)));
        (object(&build(&judge, &other)), first.join().unwrap())
    });
    let holds = |object: &[u8], name: &[u8]| object.windows(name.len()).any(|part| part == name);
    assert!(holds(&first, b"another_leaky") && !holds(&second, b"another_leaky"));
}

/// Every test and case that the table names is there, and every line has its row.
#[test]
fn the_table_is_whole() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let root = here.join("../..");
    let table = std::fs::read_to_string(here.join("tests/FIELD-REPORTS.md")).unwrap();
    let mut numbers = Vec::new();
    for row in table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| line")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        numbers.push(cells[1].parse::<usize>().unwrap());
        let names: Vec<&str> = cells[3].split('`').skip(1).step_by(2).collect();
        for name in &names {
            assert!(exists(&root, name), "line {}: {name} is not there", cells[1]);
        }
        assert!(!names.is_empty() || !cells[4].is_empty(), "line {} has nothing", cells[1]);
    }
    assert_eq!(numbers, (1..=36).collect::<Vec<_>>());
}

/// `path/to/file.rs::test` or `case_name`.
fn exists(root: &Path, name: &str) -> bool {
    let Some((file, test)) = name.split_once("::") else {
        let cases = root.join("gpu/keck/tests/cases");
        return ["kernels", "cuda"]
            .iter()
            .any(|k| cases.join(k).join(format!("{name}.py")).exists());
    };
    let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
    text.contains(&format!("fn {test}("))
}
