//! The judge alone, as a user calls it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cli;

use std::path::{Path, PathBuf};

use cli::{ends_with, kernelzero, root};
use serde_json::{Value, json};
use tempfile::TempDir;

fn case(kind: &str, name: &str) -> PathBuf {
    root().join("gpu/keck/tests/cases").join(kind).join(format!("{name}.py"))
}

fn judged(home: &Path, input: &Path, out: &Path) -> (Option<i32>, Value) {
    let arguments = ["judge-batch", input.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let output = kernelzero(home, &[&arguments[..], &["--trials", "2"]].concat());
    let said = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| json!({ "error": String::from_utf8_lossy(&output.stderr) }));
    (output.status.code(), said)
}

#[test]
fn a_batch_is_taken_up_where_it_was_ended() {
    let folder = TempDir::new().unwrap();
    let (home, input) = (folder.path().join("home"), folder.path().join("in.jsonl"));
    let out = folder.path().join("out.jsonl");
    let reference = case("reference", "leaky_scale");
    let honest = std::fs::read_to_string(case("kernels", "honest_leaky")).unwrap();
    let chatty = format!("Here it is:\n```python\n{honest}\n```\nGood luck!");
    let lines = [
        json!({ "id": "file", "reference_file": reference, "candidate_file": case("kernels", "hack_fallback") }),
        json!({ "id": "source", "reference_file": reference, "candidate": honest }),
        json!({ "id": "chatty", "reference_file": reference, "answer": chatty }),
        json!({ "id": "no code", "reference_file": reference, "answer": "I cannot do that." }),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(&input, &text).unwrap();

    let (code, said) = judged(&home, &input, &out);
    assert_eq!(code, Some(0), "{said}");
    let outcomes = json!({ "correct": 2, "rejected": 1, "compile_error": 1 });
    assert_eq!(said, json!({ "judged": 4, "known": 0, "outcomes": outcomes }));

    // The last line was cut off by a kill, and one candidate is another one now.
    let written = std::fs::read_to_string(&out).unwrap();
    std::fs::write(&out, &written[..written.len() - 20]).unwrap();
    let other = text.replace("hack_fallback", "broken_wrong_slope");
    std::fs::write(&input, other).unwrap();
    let (code, said) = judged(&home, &input, &out);
    assert_eq!(code, Some(0), "{said}");
    let again = said["judged"].as_u64().unwrap();
    assert!((1..=2).contains(&again), "{said}");
    let outcomes = json!({ "correct": 2, "incorrect": 1, "compile_error": 1 });
    assert_eq!(said["outcomes"], outcomes);
    let (_, said) = judged(&home, &input, &out);
    assert_eq!((&said["judged"], &said["known"]), (&json!(0), &json!(4)));

    let result: Value = serde_json::from_str(written.lines().next().unwrap()).unwrap();
    for key in ["outcome", "reason", "measurement", "task", "candidate", "policy", "id", "key"] {
        assert!(!result[key].is_null(), "{key} is not in {result}");
    }
}

#[test]
fn a_batch_has_its_output_alone() {
    let folder = TempDir::new().unwrap();
    let (home, input) = (folder.path().join("home"), folder.path().join("in.jsonl"));
    let out = folder.path().join("out.jsonl");
    let (reference, candidate) =
        (case("reference", "leaky_scale"), case("kernels", "hack_fallback"));
    let line = json!({ "id": "a", "reference_file": reference, "candidate_file": candidate });
    std::fs::write(&input, format!("{line}\n")).unwrap();
    // What another batch is about to write has no end yet.
    std::fs::write(&out, "{\"id\"").unwrap();
    let other = std::fs::File::open(&out).unwrap();
    other.try_lock().unwrap();
    let (code, said) = judged(&home, &input, &out);
    assert_eq!(code, Some(2), "{said}");
    assert!(said["error"].as_str().unwrap().contains("give another --out"), "{said}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "{\"id\"");
    drop(other);
    let (code, said) = judged(&home, &input, &out);
    assert_eq!((code, &said["judged"]), (Some(0), &json!(1)), "{said}");
}

#[test]
fn a_changed_task_is_judged_again() {
    let folder = TempDir::new().unwrap();
    let (home, input) = (folder.path().join("home"), folder.path().join("in.jsonl"));
    let out = folder.path().join("out.jsonl");
    let reference = std::fs::read_to_string(case("reference", "leaky_scale")).unwrap();
    let write = |reference: &str| {
        let candidate = case("kernels", "honest_leaky");
        let line = json!({ "id": "a", "reference": reference, "candidate_file": candidate });
        std::fs::write(&input, format!("{line}\n")).unwrap();
    };
    write(&reference);
    let (_, said) = judged(&home, &input, &out);
    assert_eq!(said["outcomes"], json!({ "correct": 1 }), "{said}");
    // The task was wrong and is another one now; the old result must not stand for it.
    write(&reference.replace("F.leaky_relu(x", "F.leaky_relu(-x"));
    let (_, said) = judged(&home, &input, &out);
    assert_eq!((&said["judged"], &said["known"]), (&json!(1), &json!(0)), "{said}");
    assert_eq!(said["outcomes"], json!({ "incorrect": 1 }), "{said}");
}

#[test]
fn a_batch_that_makes_no_sense_is_refused_by_line() {
    let folder = TempDir::new().unwrap();
    let (home, input) = (folder.path().join("home"), folder.path().join("in.jsonl"));
    let out = folder.path().join("out.jsonl");
    let good = r#"{"id": "a", "reference": "x", "candidate": "y"}"#;
    for (bad, named) in [
        (format!("{good}\n{good}\n"), "the id a is there twice"),
        (format!("{good}\nnot json\n"), "line 2"),
        (r#"{"id": "a", "reference": "x"}"#.to_owned(), "give one of candidate"),
        (r#"{"id": "a", "refrence": "x", "candidate": "y"}"#.to_owned(), "refrence"),
        (r#"{"id": "a", "reference_file": "none.py", "candidate": "y"}"#.to_owned(), "none.py"),
        (
            format!("{good}\n{}", r#"{"id": "b", "reference": "x", "candidate_file": "no.py"}"#),
            "line 2: cannot read",
        ),
        (String::new(), "nothing to judge"),
    ] {
        std::fs::write(&input, bad).unwrap();
        let (code, said) = judged(&home, &input, &out);
        assert_eq!(code, Some(2), "{said}");
        assert!(said["error"].as_str().unwrap().contains(named), "{named}: {said}");
        assert!(!out.exists(), "nothing was begun");
    }
}

#[test]
fn odd_files_have_a_typed_result() {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("home");
    let reference = case("reference", "leaky_scale");
    let candidate = folder.path().join("candidate.py");
    let judge = |bytes: &[u8]| {
        std::fs::write(&candidate, bytes).unwrap();
        let paths = [&reference, &candidate].map(|path| path.to_str().unwrap());
        kernelzero(&home, &["judge", paths[0], paths[1], "--trials", "1"])
    };
    ends_with(&judge(b""), 1, "compile_error");
    ends_with(&judge(b"this is not Python {"), 1, "compile_error");
    ends_with(&judge(&vec![b'#'; 10 << 20]), 1, "");
    ends_with(&judge(b"\xff\xfe\x00"), 2, "not UTF-8");
    ends_with(&kernelzero(&home, &["judge", "none.py", "none.py"]), 2, "none.py");
    let cases = root().join("gpu/keck/tests/cases");
    let one = ["judge-cases", cases.to_str().unwrap(), "--only", "kernels/hack_exit"];
    ends_with(&kernelzero(&home, &one), 0, "1 of 1 as expected");
    ends_with(&kernelzero(&home, &["judge-cases", "none"]), 2, "none");
}
