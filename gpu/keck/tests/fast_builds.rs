//! CUDA candidates build with the judge's own headers, and with torch's where these do not serve.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use events::outcome::Backend;
use keck::{Build, BuildJob, Config, Headers, HeadersPolicy, Judge};

fn judge(headers: HeadersPolicy) -> Judge {
    Judge::new(Config { headers, ..Config::default() }).unwrap()
}

fn build(judge: &Judge, source: &str) -> Build {
    let job = BuildJob { source: source.to_owned(), backend: Backend::Cuda };
    judge.build(&job).unwrap()
}

fn headers(build: &Build) -> Option<Headers> {
    if let Build::Cuda { headers, .. } = build { Some(*headers) } else { None }
}

/// The word that a case of `tests/cases/cuda` expects.
fn word(build: &Build) -> &'static str {
    match headers(build) {
        Some(Headers::Fast) => "fast",
        Some(Headers::Full) => "full",
        None => "rejected",
    }
}

/// Runs a script with the path of a build's first module, all of whose symbols must be there.
fn python(build: &Build, script: &Path) -> String {
    let Build::Cuda { artifact, .. } = build else { panic!("{build:?}") };
    let ran = Command::new(Config::default().python)
        .arg(script)
        .arg(artifact.join("keck_extension_0.so"))
        .env("LD_BIND_NOW", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{text}{}", String::from_utf8_lossy(&ran.stderr));
    text
}

/// A build with torch's headers takes a minute or more, so `headers: full` waits for `KECK_FULL`.
#[test]
fn own_cases_take_their_path() {
    let judge = judge(HeadersPolicy::Auto);
    let folder =
        Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("tests/cases/cuda");
    let all = std::env::var_os("KECK_FULL").is_some();
    for case in common::cases(&folder) {
        if case.header["headers"] == "full" && !all {
            continue;
        }
        let start = Instant::now();
        let built = build(&judge, &case.source);
        println!("{:24} {:8} {:.1} s", case.name, word(&built), start.elapsed().as_secs_f64());
        assert_eq!(word(&built), case.header["headers"], "{}: {built:?}", case.name);
        if headers(&built).is_some() {
            python(&built, &folder.join("../host/load.py"));
        }
        if let (Build::Rejected(failure), Some(detail)) = (&built, case.header.get("detail")) {
            assert!(failure.detail.contains(detail), "{}", failure.detail);
        }
    }
}

/// A module without device code, called in a Python of its own.
#[test]
fn a_fast_module_behaves_like_torchs() {
    let folder =
        Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("tests/cases/host");
    let source = std::fs::read_to_string(folder.join("module.cpp")).unwrap();
    let candidate = format!(
        "from torch.utils.cpp_extension import load_inline\nops = load_inline(name='host', \
         cpp_sources=r'''{source}''', cuda_sources='__global__ void k(float* x) {{ x[0] = 1.f; }}\
         void go() {{ k<<<1, 1>>>(nullptr); }}')\n"
    );
    let judge = judge(HeadersPolicy::Auto);
    let built = build(&judge, &candidate);
    assert_eq!(word(&built), "fast", "{built:?}");
    println!("{}", python(&built, &folder.join("check.py")));
}

/// Every honest CUDA case of the corpus; `KECK_FULL` also builds them the long way.
#[test]
fn honest_corpus_builds_fast() {
    let Some(folder) = std::env::var_os("KERNELZERO_JUDGE_CASES").map(PathBuf::from) else {
        println!("KERNELZERO_JUDGE_CASES is not set");
        return;
    };
    let only = std::env::var("KECK_CASES").unwrap_or_default();
    let full = std::env::var_os("KECK_FULL").map(|_| judge(HeadersPolicy::Full));
    let fast = judge(HeadersPolicy::Auto);
    let mut bad = Vec::new();
    for case in common::cases(&folder.join("honest")) {
        if case.backend() != Backend::Cuda || !case.name.contains(&only) {
            continue;
        }
        let timed = |judge: &Judge| {
            let start = Instant::now();
            let built = build(judge, &case.source);
            (word(&built), start.elapsed().as_secs_f64())
        };
        let (path, took) = timed(&fast);
        let other = full.as_ref().map(timed);
        println!("{:28} {path} {took:.1} s {other:?}", case.name);
        if path != "fast" || other.is_some_and(|(path, _)| path != "full") {
            bad.push(case.name);
        }
    }
    assert!(bad.is_empty(), "{bad:?}");
}
