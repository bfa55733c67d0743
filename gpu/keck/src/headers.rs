//! Our own headers in place of torch's: the part that kernels use, which compiles in seconds. What
//! it cannot serve is built with the real ones.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::compile::Extension;
use crate::rules;

pub use events::outcome::Headers;

/// Which headers builds may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadersPolicy {
    /// The judge's own where they serve, else torch's.
    #[default]
    Auto,
    /// Always torch's.
    Full,
}

/// Folder of the set below the one where compilers run.
pub(crate) const FOLDER: &str = "include";

/// The version of torch whose functions the set declares.
pub(crate) const TORCH: (u32, u32) = (2, 11);

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../include/", $name)))),*]
    };
}

const FILES: &[(&str, &str)] = files!(
    "ATen/ATen.h" "ATen/AccumulateType.h" "ATen/Dispatch.h" "ATen/OpMathType.h" "ATen/Tensor.h"
    "ATen/TensorAccessor.h" "ATen/core/Tensor.h" "ATen/core/TensorAccessor.h"
    "ATen/cuda/CUDAContext.h" "ATen/cuda/Exceptions.h" "c10/core/Scalar.h" "c10/core/ScalarType.h"
    "c10/cuda/CUDAException.h" "c10/cuda/CUDAFunctions.h" "c10/cuda/CUDAGuard.h"
    "c10/cuda/CUDAMacros.h" "c10/cuda/CUDAStream.h" "c10/macros/Macros.h" "c10/util/ArrayRef.h"
    "c10/util/BFloat16.h" "c10/util/Exception.h" "c10/util/Half.h" "c10/util/Optional.h"
    "keck/accessor.h" "keck/base.h" "keck/bind.h" "keck/convert.h" "keck/cuda.h"
    "keck/dispatch.h" "keck/guard.h" "keck/half.h" "keck/make.h" "keck/native.h" "keck/options.h"
    "keck/tensor.h" "pybind11/pybind11.h" "pybind11/stl.h" "torch/all.h" "torch/extension.h"
    "torch/python.h" "torch/torch.h" "torch/types.h"
);

/// Where torch and pybind11 keep theirs.
const THEIRS: [&str; 6] = ["ATen/", "c10/", "caffe2/", "pybind11/", "tensorpipe/", "torch/"];

/// The set as a JSON object from names to texts.
pub(crate) fn packed() -> Vec<u8> {
    let files: Map<String, Value> =
        FILES.iter().map(|(name, text)| ((*name).to_owned(), Value::from(*text))).collect();
    Value::Object(files).to_string().into_bytes()
}

/// What results depend on.
pub(crate) fn identity() -> String {
    blake3::hash(&packed()).to_hex().to_string()
}

/// Whether the set has every header of torch's that an extension names. What else it may lack the
/// compiler finds.
pub(crate) fn serve(extension: &Extension) -> bool {
    let mut names = texts(extension).flat_map(rules::includes);
    names.all(|name| {
        !THEIRS.iter().any(|folder| name.starts_with(folder))
            || FILES.iter().any(|(known, _)| *known == name)
    })
}

/// Definitions that switch on parts of the set which an extension's words ask for. Each part is
/// slow to read, and most kernels need none. A part more does no harm; for a part too few the
/// compiler refuses and torch's headers serve.
pub(crate) fn parts(extension: &Extension) -> Vec<&'static str> {
    let mut parts = Vec::new();
    let names: BTreeSet<String> = texts(extension).flat_map(rules::words).collect();
    if names.iter().any(|name| short_float(&name.to_ascii_lowercase())) {
        parts.push("-DKECK_SHORT_FLOATS");
    }
    if texts(extension)
        .any(|text| rules::of_std(text).iter().any(|name| !STD.contains(&name.as_str())))
    {
        parts.push("-DKECK_ALGORITHMS");
    }
    // The driver's functions, types and constants: `cuInit`, `CUdevice`, `CU_FAILED`.
    let driver = |name: &str| {
        let after = |prefix| name.strip_prefix(prefix).and_then(|rest| rest.chars().next());
        name == "CUDA_VERSION"
            || after("cu").is_some_and(|c| c.is_ascii_uppercase())
            || after("CU").is_some_and(|c| c.is_ascii_lowercase() || c == '_')
    };
    if names.iter().any(|name| driver(name)) {
        parts.push("-DKECK_DRIVER");
    }
    // Only then does nvcc read Python's headers.
    let binds =
        |name: &String| ["PYBIND11_MODULE", "pybind11", "py", "PyObject"].contains(&&**name);
    if extension.cuda.iter().any(|text| rules::words(text).iter().any(binds)) {
        parts.push("-DKECK_BINDS");
    }
    parts
}

/// Whether an extension names what looks like a macro and is neither the set's nor its own. Whether
/// its text parses may depend on that.
pub(crate) fn lacks_macro_of(extension: &Extension) -> bool {
    let own = texts(extension).flat_map(|text| text.lines()).filter(|line| {
        line.trim_start()
            .strip_prefix('#')
            .is_some_and(|rest| rest.trim_start().starts_with("define"))
    });
    let known = FILES.iter().map(|(_, text)| *text).chain(own).collect::<Vec<_>>();
    let looks = |name: &String| {
        let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        name.len() > 3 && name.chars().all(upper)
    };
    let mut names = texts(extension).flat_map(rules::words).filter(looks);
    names.any(|name| !known.iter().any(|text| text.contains(&name)))
}

/// What the set offers of `std` without `<algorithm>` and `<functional>`.
const STD: &[&str] = &[
    "array",
    "conditional_t",
    "enable_if_t",
    "exp",
    "fabs",
    "floor",
    "forward",
    "get",
    "int32_t",
    "int64_t",
    "integral_constant",
    "invalid_argument",
    "is_same",
    "is_same_v",
    "log",
    "make_tuple",
    "max",
    "min",
    "move",
    "nullopt",
    "numeric_limits",
    "optional",
    "pair",
    "pow",
    "runtime_error",
    "size_t",
    "sqrt",
    "string",
    "swap",
    "tie",
    "to_string",
    "tuple",
    "uint32_t",
    "uint64_t",
    "vector",
];

fn short_float(name: &str) -> bool {
    ["half", "bfloat", "fp16", "bf16", "reduced"].iter().any(|part| name.contains(part))
}

fn texts(extension: &Extension) -> impl Iterator<Item = &str> {
    extension.cpp.iter().chain(&extension.cuda).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn including(name: &str) -> Extension {
        let cuda = vec![format!("#include <vector>\n#include <{name}>\n")];
        Extension { cpp: vec![], cuda, functions: vec![], flags: vec![], key: String::new() }
    }

    #[test]
    fn only_known_headers_are_served() {
        for name in ["torch/extension.h", "ATen/cuda/CUDAContext.h", "cub/cub.cuh"] {
            assert!(serve(&including(name)), "{name}");
        }
        for name in ["torch/library.h", "ATen/native/Copy.h", "pybind11/embed.h"] {
            assert!(!serve(&including(name)), "{name}");
        }
    }

    #[test]
    fn words_switch_parts_on() {
        let with = |text: &str| {
            let cuda = vec![format!("#include <torch/extension.h>\n{text}\n")];
            Extension { cpp: vec![], cuda, functions: vec![], flags: vec![], key: String::new() }
        };
        assert!(
            parts(&with("__global__ void k(float* x) { x[0] = std::max(1.f, 2.f); }")).is_empty()
        );
        assert_eq!(parts(&with("__half2 x;")), ["-DKECK_SHORT_FLOATS"]);
        assert_eq!(
            parts(&with("AT_DISPATCH_REDUCED_FLOATING_TYPES(t, n, f)")),
            ["-DKECK_SHORT_FLOATS"]
        );
        assert_eq!(parts(&with("int a = std::max({1, 2, 3});")), ["-DKECK_ALGORITHMS"]);
        assert_eq!(parts(&with("std::sort(a, b);")), ["-DKECK_ALGORITHMS"]);
        assert_eq!(parts(&with("CUdeviceptr p; // half")), ["-DKECK_DRIVER"]);
        assert_eq!(parts(&with("PYBIND11_MODULE(a, m) {}")), ["-DKECK_BINDS"]);
        assert!(lacks_macro_of(&with("AT_DISPATCH_V2(x)")));
        assert!(!lacks_macro_of(&with("#define THREADS 128\nTORCH_CHECK(THREADS > 1)")));
    }

    #[test]
    fn the_set_includes_nothing_that_it_lacks() {
        for (file, text) in FILES {
            for line in text.lines().filter_map(|l| l.strip_prefix("#include \"")) {
                let name = line.trim_end_matches('"');
                assert!(FILES.iter().any(|(known, _)| *known == name), "{file}: {name}");
            }
        }
    }
}
