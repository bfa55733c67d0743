//! Reading the tensor blobs that workers hand over. Their content is hostile: every offset and
//! count is checked.

use serde::Deserialize;

/// What a blob says of one tensor.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Entry {
    /// Torch's name of the dtype.
    pub dtype: String,
    /// The logical shape.
    pub shape: Vec<u64>,
    /// Where the tensor lived: `cpu` or `cuda`.
    pub device: String,
    offset: u64,
    bytes: u64,
}

impl Entry {
    /// Whether the other has the same dtype, shape and count of bytes, wherever it lived.
    pub fn like(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes == other.bytes
    }
}

#[derive(Deserialize)]
struct Header {
    tensors: Vec<Entry>,
}

/// A blob whose header has been read and whose offsets are inside.
#[derive(Debug)]
pub struct Blob<'a> {
    /// The tensors in order.
    pub entries: Vec<Entry>,
    data: &'a [u8],
}

impl<'a> Blob<'a> {
    /// Reads a blob; `None` if it is not well formed.
    pub fn read(blob: &'a [u8]) -> Option<Self> {
        let length = usize::try_from(u64::from_le_bytes(blob.get(..8)?.try_into().ok()?)).ok()?;
        let end = length.checked_add(8)?;
        let header: Header = serde_json::from_slice(blob.get(8..end)?).ok()?;
        let read = Self { entries: header.tensors, data: &blob[end..] };
        let well_formed = read.entries.iter().enumerate().all(|(i, entry)| {
            read.slice(entry).is_some_and(|bytes| {
                let width = DType::named(&entry.dtype).map_or(0, DType::width);
                width != 0 && read.raw(i).len() == bytes.len() && bytes.len() % width == 0
            })
        });
        well_formed.then_some(read)
    }

    fn slice(&self, entry: &Entry) -> Option<&'a [u8]> {
        let start = usize::try_from(entry.offset).ok()?;
        let end = start.checked_add(usize::try_from(entry.bytes).ok()?)?;
        self.data.get(start..end)
    }

    /// The bytes of a tensor.
    pub fn raw(&self, index: usize) -> &'a [u8] {
        self.entries.get(index).and_then(|e| self.slice(e)).unwrap_or_default()
    }

    /// Whether a tensor's bytes are exactly its shape's, as they are for outputs.
    pub fn is_dense(&self, index: usize) -> bool {
        let Some(entry) = self.entries.get(index) else { return false };
        let width = DType::named(&entry.dtype).map_or(0, DType::width) as u64;
        let count = entry.shape.iter().try_fold(1u64, |a, n| a.checked_mul(*n));
        count.and_then(|c| c.checked_mul(width)) == Some(entry.bytes)
    }
}

/// The dtypes that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// IEEE double.
    F64,
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// Upper half of a single.
    BF16,
    /// Signed integers by width.
    Int(usize),
    /// One unsigned byte.
    U8,
    /// A byte of 0 or 1.
    Bool,
    /// Pairs of singles, compared part by part.
    C64,
}

impl DType {
    /// By torch's name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "float64" => Self::F64,
            "float32" => Self::F32,
            "float16" => Self::F16,
            "bfloat16" => Self::BF16,
            "int8" => Self::Int(1),
            "int16" => Self::Int(2),
            "int32" => Self::Int(4),
            "int64" => Self::Int(8),
            "uint8" => Self::U8,
            "bool" => Self::Bool,
            "complex64" => Self::C64,
            _ => return None,
        })
    }

    /// Bytes of one value as it is read here (complex: of one part).
    pub fn width(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 | Self::C64 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Int(width) => width,
            Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether values are compared exactly.
    pub fn is_exact(self) -> bool {
        matches!(self, Self::Int(_) | Self::U8 | Self::Bool)
    }

    /// One value as a double. Integers beyond 2^53 are rounded here; equality is decided on bytes.
    pub fn value(self, bytes: &[u8]) -> f64 {
        let wide = |bytes: &[u8]| {
            let mut buffer = [0; 8];
            buffer[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(buffer)
        };
        let bits = wide(bytes);
        match self {
            Self::F64 => f64::from_bits(bits),
            Self::F32 | Self::C64 => f64::from(f32::from_bits(bits as u32)),
            Self::F16 => half(bits as u16),
            Self::BF16 => f64::from(f32::from_bits((bits as u32) << 16)),
            Self::Int(width) => {
                let shift = 64 - 8 * width as u32;
                ((bits << shift) as i64 >> shift) as f64
            }
            Self::U8 | Self::Bool => bits as f64,
        }
    }
}

/// The value of a half-precision number.
fn half(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 10 & 0x1F);
    let fraction = f64::from(bits & 0x3FF);
    match exponent {
        0 => sign * fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_dtype() {
        assert_eq!(DType::F16.value(&0x3C00u16.to_le_bytes()), 1.0);
        assert_eq!(DType::F16.value(&0xC400u16.to_le_bytes()), -4.0);
        assert_eq!(DType::F16.value(&0x0001u16.to_le_bytes()), 2f64.powi(-24));
        assert!(DType::F16.value(&0x7E00u16.to_le_bytes()).is_nan());
        assert_eq!(DType::BF16.value(&0x3F80u16.to_le_bytes()), 1.0);
        assert_eq!(DType::Int(2).value(&(-3i16).to_le_bytes()), -3.0);
        assert_eq!(DType::Int(8).value(&(-3i64).to_le_bytes()), -3.0);
        assert_eq!(DType::F32.value(&1.5f32.to_le_bytes()), 1.5);
    }

    #[test]
    fn refuses_offsets_outside() {
        let header =
            br#"{"tensors":[{"dtype":"float32","shape":[2],"device":"cpu","offset":8,"bytes":8}]}"#;
        let mut blob = (header.len() as u64).to_le_bytes().to_vec();
        blob.extend_from_slice(header);
        blob.extend_from_slice(&[0; 12]);
        assert!(Blob::read(&blob).is_none());
        blob.extend_from_slice(&[0; 4]);
        assert!(Blob::read(&blob).is_some());
        assert!(Blob::read(&[255; 64]).is_none());
    }
}
