//! From what a worker reports to typed failures with clean text.

use events::outcome::{Failure, FailureKind};
use serde_json::Value;

/// Exceptions by which a Triton kernel's own compilation ends.
const TRITON_COMPILE: [&str; 4] = [
    "CompilationError",
    "CompileTimeAssertionFailure",
    "UnsupportedLanguageConstruct",
    "PTXASError",
];

/// The failed step of a reply and its last lines, if it reports a failure.
pub fn step(reply: &Value) -> Option<(String, String)> {
    let step = reply["failed"].as_str()?;
    Some((step.to_owned(), scrub(reply["detail"].as_str().unwrap_or_default())))
}

/// A candidate's failure, if the reply reports one.
pub fn failure(reply: &Value) -> Option<Failure> {
    let (step, detail) = step(reply)?;
    let types: Vec<&str> =
        reply["types"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let message = reply["message"].as_str().unwrap_or_default();
    Some(Failure::new(kind(&step, &types, message), detail))
}

fn kind(step: &str, types: &[&str], message: &str) -> FailureKind {
    let is = |name: &str| types.contains(&name);
    let says = |part: &str| message.contains(part);
    if is("MemoryError") || is("OutOfMemoryError") || says("can't allocate memory") {
        return FailureKind::OutOfMemory;
    }
    if says("illegal memory access") || says("misaligned address") || says("launch failure") {
        return FailureKind::IllegalAccess;
    }
    if is("SyntaxError") || TRITON_COMPILE.iter().any(|name| is(name)) {
        return FailureKind::CompileError;
    }
    match step {
        "import" => FailureKind::ImportError,
        "entry" => FailureKind::MissingEntry,
        "init" => FailureKind::InitError,
        "state" => FailureKind::StateMismatch,
        _ => FailureKind::RuntimeError,
    }
}

/// Text that may be shown to a model: no paths of this machine, no control characters.
pub fn scrub(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for line in text.lines() {
        let words = line.split_inclusive([' ', '"', '\'', '(', ',', ':', '=']);
        for word in words {
            let end = word.trim_end_matches([' ', '"', '\'', '(', ',', ':', '=']);
            if end.starts_with('/') && end.len() > 1 {
                clean.push_str(end.rsplit('/').next().unwrap_or_default());
                clean.push_str(&word[end.len()..]);
            } else {
                clean.push_str(word);
            }
        }
        clean.push('\n');
    }
    clean.retain(|c| c == '\n' || c == '\t' || !c.is_control());
    clean.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrubs_paths() {
        let text = "  File \"/home/me/x/candidate.py\", line 3\n/a/b.cu(4): error\u{7}";
        assert_eq!(scrub(text), "  File \"candidate.py\", line 3\nb.cu(4): error");
    }

    #[test]
    fn kinds_by_step_and_type() {
        assert_eq!(kind("forward", &["AttributeError"], ""), FailureKind::RuntimeError);
        assert_eq!(kind("import", &["SyntaxError"], ""), FailureKind::CompileError);
        assert_eq!(kind("init", &["TypeError"], ""), FailureKind::InitError);
        assert_eq!(kind("forward", &["MemoryError"], ""), FailureKind::OutOfMemory);
        assert_eq!(
            kind("forward", &[], "CUDA error: an illegal memory access was encountered"),
            FailureKind::IllegalAccess
        );
    }
}
