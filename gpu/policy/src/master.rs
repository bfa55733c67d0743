//! Float32 numbers as a bfloat16 and 16 more bits: what a bfloat16 model trains on.
//!
//! The bfloat16 half is the weight that the model computes with, so the float32 master costs two
//! bytes a parameter instead of four. With `bits` the float32's 32 bits as an integer:
//! `high = (bits + 0x8000) >> 16`, `low = bits` modulo 2^16 as a signed number, so that
//! `bits = (high << 16) + low`. `high` is the nearest bfloat16, away from zero at a tie.

use tch::{Kind, Tensor};

use crate::error::Result;

/// The float32 numbers `[n]` whose halves are `high` (bfloat16 `[n]`) and `low` (int16 `[n]`).
pub fn join(high: &Tensor, low: &Tensor) -> Result<Tensor> {
    let n = high.size()[0];
    let halves = Tensor::f_empty([n, 2], (Kind::Int16, high.device()))?;
    halves.f_select(1, 0)?.f_copy_(low)?;
    // A negative low half borrows one from the high half.
    let borrow = low.f_bitwise_right_shift_tensor_scalar(15)?;
    let _ = high.f_view_dtype(Kind::Int16)?.f_add_out(&halves.f_select(1, 1)?, &borrow)?;
    Ok(halves.f_view_dtype(Kind::Float)?.f_view([n])?)
}

/// Writes the float32 numbers `whole` `[n]` into their halves.
pub fn split(whole: &Tensor, high: &Tensor, low: &Tensor) -> Result<()> {
    let halves = whole.f_contiguous()?.f_view_dtype(Kind::Int16)?.f_view([-1, 2])?;
    low.shallow_clone().f_copy_(&halves.f_select(1, 0)?)?;
    let borrow = low.f_bitwise_right_shift_tensor_scalar(15)?;
    let _ = halves.f_select(1, 1)?.f_sub_out(&high.f_view_dtype(Kind::Int16)?, &borrow)?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn halves_are_the_nearest_bfloat16_and_join_to_the_same_bits() {
        // Every exponent, both signs, and low halves around the middle, where rounding turns.
        let mut numbers = Vec::new();
        for top in (0_u32..0x7f7f).step_by(37).chain(0x8000..0xff7f) {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                numbers.push(f32::from_bits(top << 16 | low));
            }
        }
        let whole = Tensor::from_slice(&numbers);
        let n = numbers.len() as i64;
        let high = Tensor::zeros([n], (Kind::BFloat16, Device::Cpu));
        let low = Tensor::zeros([n], (Kind::Int16, Device::Cpu));
        split(&whole, &high, &low).unwrap();
        let back: Vec<f32> = Vec::try_from(join(&high, &low).unwrap()).unwrap();
        assert!(back.iter().zip(&numbers).all(|(a, b)| a.to_bits() == b.to_bits()));
        let rounded: Vec<f32> = Vec::try_from(high.to_kind(Kind::Float)).unwrap();
        for (found, number) in rounded.iter().zip(&numbers) {
            let wanted = (number.to_bits() + 0x8000) & 0xffff_0000;
            assert_eq!(found.to_bits(), wanted, "{number:e}");
        }
    }
}
