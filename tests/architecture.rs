//! The arrows between crates, and a few rules about the repository, as tests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap())
}

fn dependencies(manifest: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join(manifest)).unwrap();
    let value: toml::Table = text.parse().unwrap();
    value["dependencies"].as_table().unwrap().keys().cloned().collect()
}

#[track_caller]
fn never(manifest: &str, forbidden: &[&str]) {
    let found = dependencies(manifest);
    for name in forbidden {
        assert!(!found.contains(*name), "{manifest} must not depend on {name}");
    }
}

#[test]
fn arrows_point_to_events_only() {
    never("events/Cargo.toml", &["store", "actors", "keck", "policy", "teacher", "tokio", "actix"]);
    never("store/Cargo.toml", &["actors", "keck", "policy", "teacher", "actix", "tch"]);
    never("actors/Cargo.toml", &["store", "keck", "policy", "teacher", "sled", "tch"]);
    never("actors/example/Cargo.toml", &["store", "keck", "policy", "teacher", "kernelzero"]);
    never("gpu/keck/Cargo.toml", &["store", "actors", "policy", "teacher", "tch", "sled", "actix"]);
    never("gpu/policy/Cargo.toml", &["store", "actors", "keck", "teacher", "sled", "actix"]);
    never(
        "gpu/kernels/Cargo.toml",
        &["events", "store", "actors", "keck", "policy", "teacher", "tch"],
    );
    never(
        "gpu/collective/Cargo.toml",
        &["events", "store", "actors", "keck", "policy", "kernels", "tch"],
    );
    never("gpu/teacher/Cargo.toml", &["store", "actors", "keck", "policy", "tch", "sled"]);
    never("Cargo.toml", &["policy", "tch", "sled", "cudarc"]);
}

#[test]
fn outsiders_live_where_they_belong() {
    for (manifest, only) in [("store/Cargo.toml", "sled"), ("actors/Cargo.toml", "actix")] {
        assert!(dependencies(manifest).contains(only), "{manifest} should hold {only}");
    }
    for manifest in ["events/Cargo.toml", "store/Cargo.toml", "actors/Cargo.toml"] {
        never(manifest, &["anyhow", "clap"]);
    }
}

#[test]
fn every_config_parses_and_a_typo_is_refused_by_name_and_line() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("configs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        seen += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let config = events::config::RunConfig::parse(&text);
        let config = config.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let again = events::config::RunConfig::parse(&config.to_text().unwrap()).unwrap();
        assert_eq!(again, config, "{}: canonical text changes the meaning", path.display());
        refused(&text, "seed = ", "sede = ", "sede");
        refused(&text, "group-size = 4", "group-size = 0", "group-size = 0");
        refused(&text, "group-size = 4", "group-size = 1", "group-size");
        refused(&text, "top-p = 0.95", "top-p = 1.5", "top-p = 1.5");
        refused(&text, "temperature = 0.8", "temperature = 0.0", "temperature");
    }
    assert!(seen > 0);
}

#[track_caller]
fn refused(text: &str, from: &str, to: &str, named: &str) {
    if !text.contains(from) {
        return;
    }
    let error = events::config::RunConfig::parse(&text.replacen(from, to, 1)).unwrap_err();
    assert!(error.to_string().contains(named), "`{to}`: {error}");
}

#[test]
fn shipped_policies_fit_their_limit() {
    let mut bytes = 0;
    for role in ["proposer", "coder"] {
        let folder = root().join("configs/policies").join(role);
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            assert!(folder.join(name).is_file(), "{} is missing", folder.join(name).display());
        }
        bytes += std::fs::metadata(folder.join("model.safetensors")).unwrap().len();
    }
    assert!(bytes <= 30_000_000, "{bytes} bytes of weights");
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn source_files_stay_readable() {
    let mut files = Vec::new();
    rust_files(&root(), &mut files);
    assert!(files.len() > 30);
    for path in files {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        // A table and the closed list of events are exempt.
        let exempt = path.ends_with("gpu/teacher/src/table.rs") || path.ends_with("event.rs");
        assert!(lines <= 420 || exempt, "{} has {lines} lines", path.display());
    }
}
