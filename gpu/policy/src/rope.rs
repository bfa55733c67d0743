//! Rotary positions: tables in float32 arithmetic, kept in the compute type.

use tch::{Device, Kind, Tensor};

use crate::config::ModelConfig;
use crate::error::Result;

/// Cosines and signed sines `[context, D]`.
pub struct Rope {
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
}

/// The rotation of the positions at hand, shaped to broadcast over `[B, T, heads, D]`.
pub struct Turn {
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
}

impl Rope {
    /// Tables for every position of the context.
    pub fn new(c: &ModelConfig, kind: Kind, device: Device) -> Result<Self> {
        let half: Vec<f32> = frequencies(c);
        let mut cos = Vec::with_capacity((c.context * c.head_dim) as usize);
        let mut sin = Vec::with_capacity(cos.capacity());
        for position in 0..c.context {
            let angles: Vec<f32> = half.iter().map(|f| position as f32 * f).collect();
            for sign in [-1.0, 1.0] {
                cos.extend(angles.iter().map(|a| a.cos()));
                // The first half meets the negated second half of the vector.
                sin.extend(angles.iter().map(|a| sign * a.sin()));
            }
        }
        let table = |values: &[f32]| -> Result<Tensor> {
            let t = Tensor::f_from_slice(values)?.f_view([c.context, c.head_dim])?;
            Ok(t.f_to_kind(kind)?.f_to_device(device)?)
        };
        Ok(Rope { cos: table(&cos)?, sin: table(&sin)? })
    }

    /// Positions `0..length`, the same for every row.
    pub fn range(&self, length: i64) -> Result<Turn> {
        let cut = |t: &Tensor| t.f_narrow(0, 0, length)?.f_unsqueeze(0)?.f_unsqueeze(2);
        Ok(Turn { cos: cut(&self.cos)?, sin: cut(&self.sin)? })
    }

    /// Positions given as int64 `[B, T]`.
    pub fn rows(&self, positions: &Tensor) -> Result<Turn> {
        let (rows, length) = positions.size2()?;
        let flat = positions.f_view([-1])?;
        let cut = |t: &Tensor| t.f_index_select(0, &flat)?.f_view([rows, length, 1, -1]);
        Ok(Turn { cos: cut(&self.cos)?, sin: cut(&self.sin)? })
    }
}

impl Turn {
    /// Rotates `[B, T, heads, D]`, pairing element `i` with `i + D/2`.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let size = x.size();
        let halves = [size[0], size[1], size[2], 2, size[3] / 2];
        let swapped = x.f_reshape(halves)?.f_flip([3])?.f_view(&size[..])?;
        Ok(x.f_mul(&self.cos)?.f_addcmul(&swapped, &self.sin)?)
    }

    /// The rotation back, which is also how gradients pass.
    pub fn back(&self) -> Result<Turn> {
        Ok(Turn { cos: self.cos.shallow_clone(), sin: self.sin.f_neg()? })
    }
}

/// One angular frequency per pair, stretched as Llama 3 does if the config asks for it.
pub(crate) fn frequencies(c: &ModelConfig) -> Vec<f32> {
    let pairs = (0..c.head_dim / 2).map(|i| 2.0 * i as f64 / c.head_dim as f64);
    let plain = pairs.map(|e| 1.0 / c.rope_theta.powf(e));
    let Some(s) = c.rope_scaling else { return plain.map(|f| f as f32).collect() };
    plain
        .map(|f| {
            let turns = s.original_context * f / std::f64::consts::TAU;
            let keep = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
            let keep = keep.clamp(0.0, 1.0);
            (keep * f + (1.0 - keep) * f / s.factor) as f32
        })
        .collect()
}
