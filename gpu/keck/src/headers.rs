//! Our own headers in place of torch's: the part that kernels use, which compiles in seconds. What
//! it cannot serve is built with the real ones.

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
    let texts = extension.cpp.iter().chain(&extension.cuda);
    let mut names = texts.flat_map(|text| rules::includes(text));
    names.all(|name| {
        !THEIRS.iter().any(|folder| name.starts_with(folder))
            || FILES.iter().any(|(known, _)| *known == name)
    })
}

/// Whether CUDA text also holds a binding. Only then does nvcc read Python's headers.
pub(crate) fn binds(extension: &Extension) -> bool {
    const WORDS: [&str; 4] = ["PYBIND11", "pybind11", "py::", "PyObject"];
    extension.cuda.iter().any(|text| WORDS.iter().any(|word| text.contains(word)))
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
    fn the_set_includes_nothing_that_it_lacks() {
        for (file, text) in FILES {
            for line in text.lines().filter_map(|l| l.strip_prefix("#include \"")) {
                let name = line.trim_end_matches('"');
                assert!(FILES.iter().any(|(known, _)| *known == name), "{file}: {name}");
            }
        }
    }
}
