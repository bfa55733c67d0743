//! Whether an error under our own headers is certain to come back under torch's, which take a
//! minute to say so.

use std::fs;
use std::path::{Path, PathBuf};

use crate::toolchain::Toolchain;

/// How compilers call a name that nobody has declared, with the quotes that follow.
const UNKNOWN: [(&str, &str); 4] = [
    ("error: identifier \"", "\" is undefined"),
    ("has no member \"", "\""),
    ("error: \u{2018}", "\u{2019} was not declared in this scope"),
    ("has no member named \u{2018}", "\u{2019}"),
];
/// Shorter names are found somewhere in any case.
const NAME_MIN: usize = 4;
/// Links may lead in circles.
const DEPTH_MAX: usize = 24;

/// A name that the candidate uses, that is missing, and that occurs in no header at all, not even
/// as a part of a word: no header can declare it.
pub(crate) fn unknown_name<'a>(messages: &'a str, tools: &Toolchain) -> Option<&'a str> {
    let mut names: Vec<&str> = messages.lines().filter_map(missing_name).collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| !pasted(name));
    if names.is_empty() {
        return None;
    }
    for root in tools.header_folders() {
        strike(&root, &mut names, DEPTH_MAX)?;
    }
    names.first().copied()
}

/// Whether the first thing that a compiler found wrong is how tokens follow each other.
pub(crate) fn does_not_parse(messages: &str) -> bool {
    let first = messages.lines().find_map(|line| line.split_once("error: ")).map(|found| found.1);
    let starts =
        ["expected ", "unrecognized token", "missing closing quote", "missing terminating"];
    first.is_some_and(|text| starts.iter().any(|start| text.starts_with(start)))
}

fn missing_name(line: &str) -> Option<&str> {
    UNKNOWN.iter().find_map(|(before, after)| {
        let start = line.find(before)? + before.len();
        let name = &line[start..start + line[start..].find(after)?];
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        (plain && name.len() >= NAME_MIN).then_some(name)
    })
}

/// Torch makes `kFloat` and the like from parts, so they need not occur as they are.
fn pasted(name: &str) -> bool {
    name.starts_with('k') && name[1..].starts_with(|c: char| c.is_ascii_uppercase())
}

/// Removes the names that occur in a file below the folder; `None` when a file cannot be read,
/// for then nothing is certain.
fn strike(folder: &Path, names: &mut Vec<&str>, depth: usize) -> Option<()> {
    let entries = fs::read_dir(folder).ok()?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if names.is_empty() {
            return Some(());
        }
        let kind = match fs::metadata(&path) {
            Ok(kind) => kind,
            // A link to nowhere holds nothing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(_) => return None,
        };
        if kind.is_dir() {
            strike(&path, names, depth.checked_sub(1)?)?;
        } else if kind.is_file() {
            let text = fs::read(&path).ok()?;
            names.retain(|name| !holds(&text, name.as_bytes()));
        }
    }
    Some(())
}

fn holds(text: &[u8], name: &[u8]) -> bool {
    // SAFETY: both pointers are valid for the lengths given.
    let found =
        unsafe { libc::memmem(text.as_ptr().cast(), text.len(), name.as_ptr().cast(), name.len()) };
    !found.is_null()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_compilers() {
        for (line, name) in [
            ("cuda.cu(7): error: identifier \"blokDim\" is undefined", Some("blokDim")),
            ("cuda.cu(7): error: class \"at::Tensor\" has no member \"sizess\"", Some("sizess")),
            (
                "main.cpp:3:1: error: \u{2018}tensorr\u{2019} was not declared in this scope; did",
                Some("tensorr"),
            ),
            (
                "main.cpp:3:1: error: \u{2018}class at::Tensor\u{2019} has no member named \u{2018}foo_bar\u{2019}",
                Some("foo_bar"),
            ),
            ("cuda.cu(7): error: identifier \"at::Foo\" is undefined", None),
            ("cuda.cu(7): error: expected a \";\"", None),
        ] {
            assert_eq!(missing_name(line), name, "{line}");
        }
        assert!(pasted("kQInt8") && !pasted("kernel"));
    }

    #[test]
    fn only_the_first_error_counts() {
        assert!(does_not_parse("cuda.cu(11): error: expected a \";\"\ncuda.cu(12): error: more"));
        assert!(!does_not_parse(
            "cuda.cu(3): error: identifier \"a\" is undefined\nx: error: expected"
        ));
        assert!(!does_not_parse(""));
    }

    #[test]
    fn names_in_files_are_struck() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        fs::write(folder.path().join("inner/a.h"), "int one_name(int);").unwrap();
        let mut names = vec!["one_name", "two_names"];
        assert!(strike(folder.path(), &mut names, 3).is_some());
        assert_eq!(names, ["two_names"]);
        assert!(strike(&folder.path().join("gone"), &mut names, 3).is_none());
    }
}
