//! Safetensors files: a visit over one file or many shards, and a deterministic writer.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors, View};
use tch::{Kind, Tensor};

use crate::error::{Error, Result};

/// The weight files of a model folder: one file, or the shards of an index.
///
/// # Errors
/// Neither is there, the index is damaged, or a shard it names is missing.
pub fn weight_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let single = dir.join("model.safetensors");
    if single.is_file() {
        return Ok(vec![single]);
    }
    let index = dir.join("model.safetensors.index.json");
    if !index.is_file() {
        let fix = "the folder needs model.safetensors or model.safetensors.index.json";
        return Err(Error::Missing { path: single, fix });
    }
    let object = crate::config::read_object(&index)?;
    let map = object.get("weight_map").and_then(|m| m.as_object()).ok_or_else(|| {
        let problem = "must be an object of tensor name to file".to_owned();
        Error::Config { path: index.clone(), key: "weight_map".into(), problem }
    })?;
    let names: BTreeSet<&str> = map.values().filter_map(|v| v.as_str()).collect();
    let files: Vec<PathBuf> = names.iter().map(|n| dir.join(n)).collect();
    match files.iter().find(|f| !f.is_file()) {
        Some(path) => {
            let fix = "the index names this shard; copy it too";
            Err(Error::Missing { path: path.clone(), fix })
        }
        None => Ok(files),
    }
}

/// Calls `f(name, tensor on the CPU)` for every tensor of `path` and returns the metadata.
///
/// # Errors
/// An unreadable or damaged file, a type other than F32, F16 and BF16, or `f`'s error.
pub fn visit(
    path: &Path,
    mut f: impl FnMut(&str, Tensor) -> Result<()>,
) -> Result<HashMap<String, String>> {
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    // SAFETY: the map is read-only and dropped here; a file cut short meanwhile would be a
    // fault of whoever writes into a checkpoint that is in use.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io(path))?;
    let damaged = |e: safetensors::SafeTensorError| Error::Safetensors {
        path: path.to_owned(),
        problem: e.to_string(),
    };
    let (_, metadata) = SafeTensors::read_metadata(&map).map_err(damaged)?;
    let tensors = SafeTensors::deserialize(&map).map_err(damaged)?;
    let views: BTreeMap<&str, _> = tensors.iter().collect();
    for (name, view) in views {
        let kind = match view.dtype() {
            Dtype::F32 => Kind::Float,
            Dtype::F16 => Kind::Half,
            Dtype::BF16 => Kind::BFloat16,
            other => {
                let (name, found) = (name.to_owned(), format!("{other:?}"));
                return Err(Error::Dtype { path: path.to_owned(), name, found });
            }
        };
        let shape: Vec<i64> = view.shape().iter().map(|&n| n as i64).collect();
        f(name, Tensor::f_from_data_size(view.data(), &shape, kind)?)?;
    }
    Ok(metadata.metadata().clone().unwrap_or_default())
}

/// A tensor on its way into a file.
pub struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    /// Copies `tensor` to the CPU as `kind` (f32 or bf16).
    pub fn new(tensor: &Tensor, kind: Kind) -> Result<Self> {
        let dtype = if kind == Kind::BFloat16 { Dtype::BF16 } else { Dtype::F32 };
        let kind = if kind == Kind::BFloat16 { kind } else { Kind::Float };
        let cpu = tensor.f_detach()?.f_to_kind(kind)?.f_to_device(tch::Device::Cpu)?;
        let cpu = cpu.f_contiguous()?;
        let mut bytes = vec![0; cpu.numel() * kind.elt_size_in_bytes()];
        cpu.f_copy_data_u8(&mut bytes, cpu.numel())?;
        let shape = cpu.size().iter().map(|&n| n as usize).collect();
        Ok(Stored { dtype, shape, bytes })
    }
}

impl View for &Stored {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Writes `tensors` to `path`, the same bytes for the same content: names sorted, and a
/// single metadata entry because the format keeps entries in a hash map's order.
///
/// # Errors
/// The system's, with the file's name.
pub fn write(
    path: &Path,
    tensors: &BTreeMap<String, Stored>,
    key: &str,
    value: String,
) -> Result<()> {
    let info = HashMap::from([(key.to_owned(), value)]);
    let entries = tensors.iter().map(|(name, t)| (name.as_str(), t));
    let part = partial(path);
    safetensors::serialize_to_file(entries, Some(info), &part)
        .map_err(|e| Error::Safetensors { path: part.clone(), problem: e.to_string() })?;
    settle(&part, path)
}

/// Writes `bytes` so that a crash leaves either the old file or the new one.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = partial(path);
    let mut file = std::fs::File::create(&part).map_err(Error::io(&part))?;
    file.write_all(bytes).map_err(Error::io(&part))?;
    settle(&part, path)
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

fn settle(part: &Path, path: &Path) -> Result<()> {
    let file = std::fs::File::open(part).map_err(Error::io(part))?;
    file.sync_all().map_err(Error::io(part))?;
    std::fs::rename(part, path).map_err(Error::io(path))
}
