//! Numbers as GGUF stores them: plain, or in blocks of 32 with a scale of their own.

use half::{bf16, f16};

/// What [`format`] knows, for an error.
pub(super) const KNOWN: &str = "F32, F16, BF16, Q8_0, Q4_0 and Q4_1";

/// A way to store numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    F32,
    F16,
    Bf16,
    /// Scale, 32 signed bytes.
    Q8_0,
    /// Scale, 32 nibbles less 8.
    Q4_0,
    /// Scale, least value, 32 nibbles.
    Q4_1,
}

/// The format that files call `code`.
pub(super) fn format(code: u32) -> Option<Format> {
    Some(match code {
        0 => Format::F32,
        1 => Format::F16,
        2 => Format::Q4_0,
        3 => Format::Q4_1,
        8 => Format::Q8_0,
        30 => Format::Bf16,
        _ => return None,
    })
}

impl Format {
    /// Numbers and bytes of a block.
    fn block(self) -> (usize, usize) {
        match self {
            Format::F32 => (1, 4),
            Format::F16 | Format::Bf16 => (1, 2),
            Format::Q8_0 => (32, 34),
            Format::Q4_0 => (32, 18),
            Format::Q4_1 => (32, 20),
        }
    }

    /// Bytes of `n` numbers; `None` if they are no whole number of blocks.
    pub(super) fn bytes(self, n: usize) -> Option<usize> {
        let (numbers, bytes) = self.block();
        n.is_multiple_of(numbers).then(|| (n / numbers).checked_mul(bytes))?
    }

    /// All numbers of `bytes`, which holds whole blocks.
    pub(super) fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let (numbers, size) = self.block();
        let mut out = Vec::with_capacity(bytes.len() / size * numbers);
        for b in bytes.chunks_exact(size) {
            let half = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32();
            // The low nibbles are the first half of a block.
            let nibbles = |from: usize| {
                let low = b[from..].iter().map(|q| q & 15);
                low.chain(b[from..].iter().map(|q| q >> 4)).map(f32::from)
            };
            match self {
                Format::F32 => out.push(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                Format::F16 => out.push(half(0)),
                Format::Bf16 => out.push(bf16::from_le_bytes([b[0], b[1]]).to_f32()),
                Format::Q8_0 => {
                    let scale = half(0);
                    out.extend(b[2..].iter().map(|&q| f32::from(q as i8) * scale));
                }
                Format::Q4_0 => {
                    let scale = half(0);
                    out.extend(nibbles(2).map(|q| (q - 8.0) * scale));
                }
                Format::Q4_1 => {
                    let (scale, least) = (half(0), half(2));
                    out.extend(nibbles(4).map(|q| q * scale + least));
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(x: f32) -> [u8; 2] {
        f16::from_f32(x).to_le_bytes()
    }

    #[test]
    fn blocks_decode_as_written_down() {
        let mut q8 = bytes(0.5).to_vec();
        q8.extend((0..32).map(|i| (i - 16) as u8));
        let wanted: Vec<f32> = (0..32).map(|i| (i - 16) as f32 * 0.5).collect();
        assert_eq!(Format::Q8_0.decode(&q8), wanted);

        // Byte i holds i in its low and 15 - i in its high nibble.
        let packed: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let nibbles: Vec<f32> = (0..16).chain((0..16).rev()).map(|i| i as f32).collect();
        let q4 = [bytes(0.25).to_vec(), packed.clone()].concat();
        let wanted: Vec<f32> = nibbles.iter().map(|q| (q - 8.0) * 0.25).collect();
        assert_eq!(Format::Q4_0.decode(&q4), wanted);

        let q4 = [bytes(2.0).to_vec(), bytes(-3.0).to_vec(), packed].concat();
        let wanted: Vec<f32> = nibbles.iter().map(|q| q * 2.0 - 3.0).collect();
        assert_eq!(Format::Q4_1.decode(&q4), wanted);

        assert_eq!(Format::F32.decode(&1.25_f32.to_le_bytes()), [1.25]);
        assert_eq!(Format::F16.decode(&bytes(-0.375)), [-0.375]);
        assert_eq!(Format::Bf16.decode(&bf16::from_f32(-6.5).to_le_bytes()), [-6.5]);
        assert_eq!(Format::Q4_1.bytes(64), Some(40));
        assert_eq!(Format::Q4_1.bytes(65), None);
    }
}
