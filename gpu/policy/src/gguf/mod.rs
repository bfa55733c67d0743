//! GGUF files (version 2 and 3): llama.cpp's one-file format, read where it lies.
//!
//! `mod` is the container, `blocks` the quantised numbers, `model` what its keys and
//! names mean, `tokenizer` how it reads text.

mod blocks;
mod model;
mod tokenizer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tch::Tensor;

use crate::error::{Error, Result};
pub use model::Gguf;

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Any whole number.
    Int(i64),
    /// Any fraction.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list of values of one type.
    List(Vec<Value>),
}

/// A tensor's place.
struct Info {
    /// Rows first, as libtorch has it.
    shape: Vec<i64>,
    format: u32,
    start: usize,
}

/// A mapped file.
pub(crate) struct Container {
    path: PathBuf,
    map: memmap2::Mmap,
    pub(crate) keys: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Info>,
}

/// A place in the header, which says no more than the file holds.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Longest list, nested lists and their elements included, and deepest nesting.
const MOST: usize = 1 << 24;

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let part = self.bytes.get(self.at..self.at.checked_add(N)?)?;
        self.at += N;
        part.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take()?))
    }

    fn size(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.take()?)).ok()
    }

    fn text(&mut self) -> Option<String> {
        let n = self.size()?;
        let part = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        String::from_utf8(part.to_vec()).ok()
    }

    fn value(&mut self, kind: u32, depth: u32) -> Option<Value> {
        Some(match kind {
            0 => Value::Int(u8::from_le_bytes(self.take()?).into()),
            1 => Value::Int(i8::from_le_bytes(self.take()?).into()),
            2 => Value::Int(u16::from_le_bytes(self.take()?).into()),
            3 => Value::Int(i16::from_le_bytes(self.take()?).into()),
            4 => Value::Int(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.take()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.take()?).into()),
            7 => Value::Bool(self.take::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 if depth < 4 => {
                let (inner, n) = (self.u32()?, self.size()?);
                if n > MOST {
                    return None;
                }
                Value::List((0..n).map(|_| self.value(inner, depth + 1)).collect::<Option<_>>()?)
            }
            10 => Value::Int(i64::try_from(u64::from_le_bytes(self.take()?)).ok()?),
            11 => Value::Int(i64::from_le_bytes(self.take()?)),
            12 => Value::Float(f64::from_le_bytes(self.take()?)),
            _ => return None,
        })
    }

    fn header(&mut self) -> Option<(BTreeMap<String, Value>, BTreeMap<String, Info>)> {
        let (tensors, keys) = (self.size()?, self.size()?);
        let mut map = BTreeMap::new();
        for _ in 0..keys {
            let (name, kind) = (self.text()?, self.u32()?);
            map.insert(name, self.value(kind, 0)?);
        }
        let mut infos = BTreeMap::new();
        for _ in 0..tensors {
            let (name, dims) = (self.text()?, self.u32()?);
            if dims > 4 {
                return None;
            }
            let mut shape = Vec::new();
            for _ in 0..dims {
                shape.push(i64::try_from(self.size()?).ok()?);
            }
            shape.reverse();
            let (format, start) = (self.u32()?, self.size()?);
            infos.insert(name, Info { shape, format, start });
        }
        let align = match map.get("general.alignment") {
            Some(Value::Int(n)) if *n > 0 => usize::try_from(*n).ok()?,
            _ => 32,
        };
        let data = self.at.checked_next_multiple_of(align)?;
        for info in infos.values_mut() {
            info.start = info.start.checked_add(data)?;
        }
        Some((map, infos))
    }
}

impl Container {
    /// Maps `path` and reads its header.
    ///
    /// # Errors
    /// A missing file, another format or version, a header that is cut short or makes no sense.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if !path.is_file() {
            let fix = "give a .gguf file or the folder of a Hugging Face model";
            return Err(Error::Missing { path: path.to_owned(), fix });
        }
        let map = crate::files::map(path)?;
        let fault = |problem: &str| {
            let problem = problem.to_owned();
            Error::Gguf { path: path.to_owned(), problem }
        };
        let mut cursor = Cursor { bytes: &map, at: 4 };
        if map.get(..4) != Some(b"GGUF") {
            return Err(fault("does not begin with GGUF"));
        }
        match cursor.u32() {
            Some(2 | 3) => {}
            found => return Err(fault(&format!("is of version {found:?}; 2 and 3 are known"))),
        }
        let header = cursor.header().ok_or_else(|| fault("has a damaged header"))?;
        let (keys, tensors) = header;
        Ok(Container { path: path.to_owned(), map, keys, tensors })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Names and shapes.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (&String, &Vec<i64>)> {
        self.tensors.iter().map(|(name, info)| (name, &info.shape))
    }

    /// A tensor as float32 on the CPU.
    ///
    /// # Errors
    /// No such tensor, a format that is not known, a file that is too short.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor> {
        let path = || self.path.clone();
        let Some(info) = self.tensors.get(name) else {
            return Err(Error::MissingTensor { path: path(), names: name.into() });
        };
        let n = usize::try_from(info.shape.iter().product::<i64>()).unwrap_or(usize::MAX);
        let format = blocks::format(info.format).ok_or_else(|| {
            let found = format!("GGUF type {}", info.format);
            Error::Dtype { path: path(), name: name.into(), found, known: blocks::KNOWN }
        })?;
        let bytes = format
            .bytes(n)
            .and_then(|size| self.map.get(info.start..info.start.checked_add(size)?));
        let Some(bytes) = bytes else {
            let problem = format!("is too short for `{name}` or splits a block of it");
            return Err(Error::Gguf { path: path(), problem });
        };
        Ok(Tensor::f_from_slice(&format.decode(bytes))?.f_view(&info.shape[..])?)
    }
}
