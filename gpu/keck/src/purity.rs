//! The dynamic half of the purity policy: what a checked call may make torch do.

use events::outcome::{Backend, Failure, FailureKind};
use serde_json::Value;

/// Version of the rules here and in [`crate::rules`]; stored with verdicts by the caller.
pub const POLICY_VERSION: u32 = 4;

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

/// What torch does besides to load state.
const LOADS: [&str; 2] = ["aten::copy_", "aten::set_"];

/// Parts of the names of device work that only allocates, fills or copies.
const PLAIN_KERNELS: [&str; 6] =
    ["FillFunctor", "Memcpy", "Memset", "copy_kernel", "fill", "memset"];

/// What a worker reports of one checked call. All of it is a claim: it can only speak against the
/// candidate.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Launches of own Triton kernels.
    pub launches: u64,
    /// Operators by name, where the call was logged.
    pub operators: Option<Vec<String>>,
    /// Operators while the state was loaded.
    pub loading: Vec<String>,
    /// Kernels that ran on the device, where there is a profiler.
    pub kernels: Option<Vec<String>>,
}

impl Seen {
    /// Reads a reply.
    pub fn of(reply: &Value, logged: bool) -> Self {
        let strings = |value: &Value| -> Option<Vec<String>> {
            let list = value.as_array()?;
            Some(list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect())
        };
        Self {
            launches: reply["launches"].as_u64().unwrap_or(0),
            operators: reply["ops"]
                .as_object()
                .filter(|_| logged)
                .map(|o| o.keys().cloned().collect()),
            loading: reply["loading"]
                .as_object()
                .map(|o| o.keys().cloned().collect())
                .unwrap_or_default(),
            kernels: strings(&reply["kernels"]),
        }
    }

    /// Launches of own kernels: for Triton as counted, for CUDA by name from the profiler. `own`
    /// are the names of the candidate's `__global__` functions.
    pub fn own_launches(&self, backend: Backend, own: &[String]) -> Option<u64> {
        match (backend, &self.kernels) {
            (Backend::Triton, _) => Some(self.launches),
            (Backend::Cuda, Some(kernels)) => {
                Some(kernels.iter().filter(|k| is_own(k, own)).count() as u64)
            }
            // An unlogged call is not profiled.
            (Backend::Cuda, None) => None,
        }
    }

    /// A failure if the candidate's kernels were not launched, or others did the work.
    pub fn check(&self, backend: Backend, own: &[String]) -> Option<Failure> {
        let impure = |text: String| Some(Failure::new(FailureKind::Impure, text));
        let operators = self.operators.iter().flatten().map(String::as_str);
        let foreign: Vec<&str> = operators.filter(|name| !allowed(name)).collect();
        if !foreign.is_empty() {
            return impure(format!("torch-operator: forward ran {}", foreign.join(", ")));
        }
        let loaded = self.loading.iter().map(String::as_str);
        let foreign: Vec<&str> =
            loaded.filter(|name| !allowed(name) && !LOADS.contains(name)).collect();
        if !foreign.is_empty() {
            return impure(format!("torch-operator: loading state ran {}", foreign.join(", ")));
        }
        if self.own_launches(backend, own) == Some(0) {
            let text = "never-launched: no kernel of the candidate ran in forward";
            return impure(text.to_owned());
        }
        let ran = self.kernels.iter().flatten();
        let other = ran
            .into_iter()
            .find(|k| !is_own(k, own) && !PLAIN_KERNELS.iter().any(|plain| k.contains(plain)));
        match other.filter(|_| backend == Backend::Cuda) {
            Some(kernel) => impure(format!("foreign-kernel: {kernel}")),
            None => None,
        }
    }
}

/// Whether a demangled name such as `void scale<float>(float*, int)` is one of the own ones.
fn is_own(kernel: &str, own: &[String]) -> bool {
    let head = kernel.split(['<', '(']).next().unwrap_or(kernel);
    let name = head.split([' ', ':']).next_back().unwrap_or(head);
    own.iter().any(|o| o == name)
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
        let seen = |launches: u64, ops: Value| {
            Seen::of(&json!({ "launches": launches, "ops": ops }), true).check(Backend::Triton, &[])
        };
        assert_eq!(seen(1, json!({ "aten::empty_like": 1, "aten::clone": 1 })), None);
        assert!(seen(0, json!({ "aten::empty_like": 1 })).is_some());
        assert!(seen(1, json!({ "aten::empty_like": 1, "aten::relu": 1 })).is_some());
    }

    #[test]
    fn device_kernels_are_matched_by_name() {
        let own = ["scale".to_owned()];
        let seen = |kernels: Value| Seen::of(&json!({ "kernels": kernels }), true);
        let good = seen(json!(["void scale<float>(float const*, int)", "Memset (Device)"]));
        assert_eq!(good.own_launches(Backend::Cuda, &own), Some(1));
        assert_eq!(good.check(Backend::Cuda, &own), None);
        let mixed = seen(json!(["scale(float*)", "ampere_sgemm_128x64_nn"]));
        assert!(mixed.check(Backend::Cuda, &own).is_some());
        assert!(seen(json!(["ampere_sgemm"])).check(Backend::Cuda, &own).is_some());
    }
}
