//! The dynamic half of the purity policy: what a checked call may make torch do.

use events::outcome::{Backend, Failure, FailureKind};
use serde_json::Value;

/// Version of the rules here and in [`crate::rules`]; stored with verdicts by the caller.
pub const POLICY_VERSION: u32 = 1;

/// Operators that allocate, view, copy or describe. Everything else is arithmetic that belongs to
/// the candidate's own kernels, however small.
const ALLOWED: [&str; 58] = [
    "_has_same_storage_numel",
    "_reshape_alias",
    "_to_copy",
    "_unsafe_view",
    "alias",
    "as_strided",
    "chunk",
    "clone",
    "contiguous",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "expand_as",
    "fill_",
    "flatten",
    "full",
    "full_like",
    "is_contiguous",
    "is_same_size",
    "lift",
    "lift_fresh",
    "movedim",
    "narrow",
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_zeros",
    "numel",
    "ones",
    "ones_like",
    "permute",
    "reshape",
    "resolve_conj",
    "resolve_neg",
    "select",
    "size",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "stride",
    "swapaxes",
    "sym_numel",
    "sym_size",
    "sym_stride",
    "t",
    "to",
    "transpose",
    "unbind",
    "unflatten",
    "unsqueeze",
    "view",
    "zero_",
    "zeros",
    "zeros_like",
];

/// A failure if the candidate's kernels were not launched, or torch did more than it may.
/// `operators` is the log of a call, by name.
pub fn dynamic(backend: Backend, launches: u64, operators: Option<&Value>) -> Option<Failure> {
    let impure = |text: String| Some(Failure::new(FailureKind::Impure, text));
    let names = operators.and_then(Value::as_object).into_iter().flat_map(|o| o.keys());
    let foreign: Vec<&str> = names.map(String::as_str).filter(|name| !allowed(name)).collect();
    if !foreign.is_empty() {
        return impure(format!("torch-operator: forward ran {}", foreign.join(", ")));
    }
    if backend == Backend::Triton && launches == 0 {
        return impure("never-launched: no kernel of the candidate ran in forward".to_owned());
    }
    None
}

fn allowed(name: &str) -> bool {
    name.strip_prefix("aten::").is_some_and(|op| ALLOWED.binary_search(&op).is_ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn table_is_sorted() {
        assert!(ALLOWED.is_sorted());
    }

    #[test]
    fn arithmetic_is_foreign() {
        let honest = json!({ "aten::empty_like": 1, "aten::clone": 1 });
        assert_eq!(dynamic(Backend::Triton, 1, Some(&honest)), None);
        assert!(dynamic(Backend::Triton, 0, Some(&honest)).is_some());
        let lazy = json!({ "aten::empty_like": 1, "aten::relu": 1 });
        assert!(dynamic(Backend::Triton, 1, Some(&lazy)).is_some());
    }
}
