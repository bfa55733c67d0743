//! Where a model's tensors come from: safetensors files of a folder, or a GGUF file.

use std::path::{Path, PathBuf};

use tch::Tensor;

use crate::config::ModelConfig;
use crate::error::Result;
use crate::files;
use crate::gguf::Gguf;

/// The tensors of a model, by Hugging Face's names.
pub(crate) enum Weights {
    /// Safetensors files.
    Files(Vec<PathBuf>),
    /// A GGUF file.
    Gguf(Gguf),
}

/// A path that names a GGUF file and no folder.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
}

impl Weights {
    /// The tensors of the folder or GGUF file `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        match is_gguf(path) {
            true => Ok(Weights::Gguf(Gguf::open(path)?)),
            false => Ok(Weights::Files(files::weight_files(path)?)),
        }
    }

    /// Names and shapes, without reading a number.
    pub(crate) fn shapes(&self) -> Result<Vec<(String, Vec<i64>)>> {
        match self {
            Weights::Files(list) => {
                let each = list.iter().map(|file| files::shapes(file));
                Ok(each.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
            }
            Weights::Gguf(gguf) => Ok(gguf.shapes()),
        }
    }

    /// Calls `f(file, name, tensor on the CPU)` for every tensor.
    pub(crate) fn visit(
        &self,
        config: &ModelConfig,
        mut f: impl FnMut(&Path, &str, Tensor) -> Result<()>,
    ) -> Result<()> {
        match self {
            Weights::Files(list) => {
                for file in list {
                    files::visit(file, |name, tensor| f(file, name, tensor))?;
                }
                Ok(())
            }
            Weights::Gguf(gguf) => gguf.visit(config, |name, t| f(gguf.path(), name, t)),
        }
    }
}
