//! Safetensors files: a visit over one file or many shards, and a deterministic writer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
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

/// Maps a file for reading.
pub(crate) fn map(path: &Path) -> Result<memmap2::Mmap> {
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    // SAFETY: the map is read-only; a file cut short meanwhile would be a fault of whoever writes
    // into a checkpoint that is in use.
    unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io(path))
}

fn damaged(path: &Path) -> impl Fn(safetensors::SafeTensorError) -> Error + '_ {
    move |e| Error::Safetensors { path: path.to_owned(), problem: e.to_string() }
}

/// Names and shapes of the tensors of `path`, from its header alone.
///
/// # Errors
/// An unreadable or damaged file, one that is shorter than its header says included.
pub fn shapes(path: &Path) -> Result<BTreeMap<String, Vec<i64>>> {
    let map = map(path)?;
    let tensors = SafeTensors::deserialize(&map).map_err(damaged(path))?;
    let shape = |s: &[usize]| s.iter().map(|&n| n as i64).collect();
    Ok(tensors.iter().map(|(name, view)| (name.to_owned(), shape(view.shape()))).collect())
}

/// Calls `f(name, tensor on the CPU)` for every tensor of `path` and returns the metadata.
///
/// # Errors
/// An unreadable or damaged file, a type other than F32, F16 and BF16, or `f`'s error.
pub fn visit(
    path: &Path,
    mut f: impl FnMut(&str, Tensor) -> Result<()>,
) -> Result<HashMap<String, String>> {
    let map = map(path)?;
    let (_, metadata) = SafeTensors::read_metadata(&map).map_err(damaged(path))?;
    let tensors = SafeTensors::deserialize(&map).map_err(damaged(path))?;
    let views: BTreeMap<&str, _> = tensors.iter().collect();
    for (name, view) in views {
        let kind = match view.dtype() {
            Dtype::F32 => Kind::Float,
            Dtype::F16 => Kind::Half,
            Dtype::BF16 => Kind::BFloat16,
            other => {
                let (name, found) = (name.to_owned(), format!("{other:?}"));
                let known = "F32, F16 and BF16";
                return Err(Error::Dtype { path: path.to_owned(), name, found, known });
            }
        };
        let shape: Vec<i64> = view.shape().iter().map(|&n| n as i64).collect();
        f(name, Tensor::f_from_data_size(view.data(), &shape, kind)?)?;
    }
    Ok(metadata.metadata().clone().unwrap_or_default())
}

/// A tensor on its way into a file. It is read when it is written, so that a file of any size
/// needs the memory of one tensor.
pub struct Stored<'a> {
    /// Its name in the file.
    pub name: String,
    shape: Vec<i64>,
    kind: Kind,
    read: Box<dyn Fn() -> Result<Tensor> + 'a>,
}

impl<'a> Stored<'a> {
    /// A tensor of `shape` that `read` will answer, stored as bfloat16 if `kind` is that and as
    /// float32 otherwise.
    pub fn new(
        name: String,
        shape: Vec<i64>,
        kind: Kind,
        read: impl Fn() -> Result<Tensor> + 'a,
    ) -> Self {
        let kind = if kind == Kind::BFloat16 { kind } else { Kind::Float };
        Stored { name, shape, kind, read: Box::new(read) }
    }

    /// Bytes in the file.
    pub fn size(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64 * self.kind.elt_size_in_bytes() as u64
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let _guard = tch::no_grad_guard();
        let cpu = (self.read)()?.f_detach()?.f_to_kind(self.kind)?;
        let cpu = cpu.f_to_device(tch::Device::Cpu)?.f_contiguous()?;
        let mut bytes = vec![0; self.size() as usize];
        cpu.f_copy_data_u8(&mut bytes, cpu.numel())?;
        Ok(bytes)
    }
}

/// Writes `tensors` to `path` as safetensors, the same bytes for the same content: names
/// sorted, and a single metadata entry.
///
/// # Errors
/// The system's, with the file's name; then `path` is as it was.
pub fn write(path: &Path, tensors: &[Stored], key: &str, value: &str) -> Result<()> {
    let mut order: Vec<&Stored> = tensors.iter().collect();
    order.sort_by(|a, b| a.name.cmp(&b.name));
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ key: value }));
    let mut at = 0;
    for t in &order {
        let (dtype, end) = (if t.kind == Kind::BFloat16 { "BF16" } else { "F32" }, at + t.size());
        let entry = json!({"dtype": dtype, "shape": t.shape, "data_offsets": [at, end]});
        header.insert(t.name.clone(), entry);
        at = end;
    }
    let mut text = Value::Object(header).to_string();
    // Tensors begin at a multiple of eight bytes.
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let part = partial(path);
    let file = std::fs::File::create(&part).map_err(Error::io(&part))?;
    let mut out = std::io::BufWriter::with_capacity(1 << 20, file);
    let mut put = |bytes: &[u8]| out.write_all(bytes).map_err(Error::io(&part));
    put(&(text.len() as u64).to_le_bytes())?;
    put(text.as_bytes())?;
    for t in order {
        put(&t.bytes()?)?;
    }
    out.flush().map_err(Error::io(&part))?;
    settle(&part, path)
}

/// Largest file of a model's weights, in bytes; more become shards with an index.
pub const SHARD_BYTES: u64 = 4 << 30;

/// Writes a model's weights into `dir`: `model.safetensors`, or shards of at most `limit` bytes
/// (a larger tensor has one of its own) and their index, as Hugging Face names them.
///
/// # Errors
/// The system's, with the file's name.
pub fn write_weights(dir: &Path, tensors: Vec<Stored>, limit: u64) -> Result<()> {
    let index = dir.join("model.safetensors.index.json");
    let single = dir.join("model.safetensors");
    let total: u64 = tensors.iter().map(Stored::size).sum();
    if total <= limit {
        write(&single, &tensors, "format", "pt")?;
        return remove(&index);
    }
    let mut shards: Vec<(u64, Vec<Stored>)> = Vec::new();
    for t in tensors {
        match shards.last_mut() {
            Some((size, list)) if *size + t.size() <= limit => {
                *size += t.size();
                list.push(t);
            }
            _ => shards.push((t.size(), vec![t])),
        }
    }
    let (count, mut places) = (shards.len(), Map::new());
    for (i, (_, list)) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{count:05}.safetensors", i + 1);
        write(&dir.join(&name), list, "format", "pt")?;
        places.extend(list.iter().map(|t| (t.name.clone(), Value::from(name.clone()))));
    }
    let text = json!({"metadata": {"total_size": total}, "weight_map": places}).to_string();
    write_bytes(&index, text.as_bytes())?;
    remove(&single)
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(e)),
        _ => Ok(()),
    }
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
