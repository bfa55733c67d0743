//! Attention of one new token per row over a cache, in plain Rust for float32 on a CPU.
//!
//! libtorch's kernel repacks the keys of every head as for a large product, which costs more
//! than the product when one or two queries meet each key (measured: half of a step).

use rayon::prelude::*;
use tch::{Device, Kind, Tensor};

use crate::error::Result;

/// Work below which one thread does it all.
const ALONE: usize = 1 << 17;

/// One layer's cache as `[B, K, capacity, D]`, of which the first `length` columns are
/// written, and the columns of padding before each row.
pub struct Written<'a> {
    /// Keys.
    pub keys: &'a Tensor,
    /// Values.
    pub values: &'a Tensor,
    /// Columns written.
    pub length: usize,
    /// One per row.
    pub pads: &'a [i64],
}

/// Whether [`attend`] can serve this cache.
pub fn suits(keys: &Tensor) -> bool {
    let width = keys.size().last().copied().unwrap_or(1);
    keys.device() == Device::Cpu && keys.kind() == Kind::Float && width % 8 == 0
}

/// Mixes the values for queries `[B, K * group, D]`; answers the same shape.
pub fn attend(queries: &Tensor, cache: &Written) -> Result<Tensor> {
    let (rows, heads, capacity, width) = cache.keys.size4()?;
    let queries = queries.f_contiguous()?;
    let mut out = vec![0_f32; queries.numel()];
    let (q, k, v) = (floats(&queries), floats(cache.keys), floats(cache.values));
    let (width, heads, span) = (width as usize, heads as usize, (capacity * width) as usize);
    let share = queries.numel() / (rows as usize * heads);
    let (pads, length) = (cache.pads, cache.length);
    let one = |scores: &mut Vec<f32>, (i, out): (usize, &mut [f32])| {
        let from = pads[i / heads] as usize * width;
        let written = i * span + from..i * span + length * width;
        let q = &q[i * share..(i + 1) * share];
        mix(q, &k[written.clone()], &v[written], width, scores, out);
    };
    let parts = rows as usize * heads;
    if parts * cache.length * share < ALONE {
        let mut scores = Vec::new();
        out.chunks_mut(share).enumerate().for_each(|part| one(&mut scores, part));
    } else {
        out.par_chunks_mut(share).enumerate().for_each_init(Vec::new, one);
    }
    Ok(Tensor::f_from_slice(&out)?.f_view(&queries.size()[..])?)
}

/// The numbers of a contiguous float32 CPU tensor.
fn floats(t: &Tensor) -> &[f32] {
    assert!(t.is_contiguous() && t.kind() == Kind::Float && t.device() == Device::Cpu);
    // SAFETY: checked above; the tensor owns `numel` floats and outlives the borrow, and the
    // engine's thread, which alone writes to it, is here.
    unsafe { std::slice::from_raw_parts(t.data_ptr() as *const f32, t.numel()) }
}

/// The queries of one key head: `q` and `out` are `[group, D]`, `k` and `v` `[n, D]`.
fn mix(q: &[f32], k: &[f32], v: &[f32], width: usize, scores: &mut Vec<f32>, out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function was compiled for.
        return unsafe { mix_avx2(q, k, v, width, scores, out) };
    }
    mix_plain(q, k, v, width, scores, out);
}

/// [`mix_plain`] in registers of eight floats instead of four.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn mix_avx2(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    width: usize,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    mix_plain(q, k, v, width, scores, out);
}

#[inline(always)]
fn mix_plain(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    width: usize,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let scale = 1.0 / (width as f32).sqrt();
    for (q, out) in q.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        scores.resize(k.len() / width, 0.0);
        // Loops and not iterator chains: a closure would not be compiled for AVX2.
        for (s, k) in scores.iter_mut().zip(k.chunks_exact(width)) {
            *s = dot(q, k) * scale;
        }
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for s in scores.iter_mut() {
            *s = exp(*s - most);
        }
        let sum: f32 = scores.iter().sum();
        for (weight, v) in scores.iter().zip(v.chunks_exact(width)) {
            for (o, v) in out.iter_mut().zip(v) {
                *o += weight * v;
            }
        }
        for o in out.iter_mut() {
            *o /= sum;
        }
    }
}

/// Eight running sums, because the compiler may not reorder a single one.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0_f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// `e^x` for `x <= 0` to about 2e-7, in operations that vectorise (libm's does not).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding this leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // Taylor's coefficients of 2^f, for f within a half of 0.
    const C: [f32; 7] = [
        1.0,
        std::f32::consts::LN_2,
        0.240_226_5,
        0.055_504_11,
        0.009_618_129,
        1.333_355_8e-3,
        1.540_353e-4,
    ];
    // Below this the result would not be a normal number; a NaN stays one.
    let t = if x < -87.0 { -87.0 } else { x } * std::f32::consts::LOG2_E;
    let rounded = t + ROUND;
    let f = t - (rounded - ROUND);
    let power = C.iter().rev().fold(0.0, |sum, c| sum * f + c);
    let scale = (rounded.to_bits() << 23).wrapping_add(127 << 23);
    power * f32::from_bits(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate() {
        for i in 0..=8700 {
            let x = -(i as f32) / 100.0;
            let wanted = f64::from(x).exp();
            assert!((f64::from(exp(x)) / wanted - 1.0).abs() < 5e-6, "exp({x})");
            if x > -10.0 {
                assert!((f64::from(exp(x)) - wanted).abs() < 3e-7, "exp({x})");
            }
        }
        assert!(exp(f32::NAN).is_nan() && exp(-1e9) < 1e-37);
    }

    #[test]
    fn agrees_with_libtorch() {
        let option = (Kind::Float, Device::Cpu);
        let (q, k) = (Tensor::randn([3, 4, 16], option), Tensor::randn([3, 2, 300, 16], option));
        let v = Tensor::randn([3, 2, 300, 16], option);
        for length in [5, 290] {
            let pads = [0, 3, 1];
            let written = Written { keys: &k, values: &v, length, pads: &pads };
            let found = attend(&q, &written).unwrap();
            for (row, &pad) in pads.iter().enumerate() {
                let cut = |t: &Tensor| t.get(row as i64).narrow(1, pad, length as i64 - pad);
                let q = q.get(row as i64).view([2, 2, 16]);
                let wanted = Tensor::scaled_dot_product_attention::<&Tensor>(
                    &q,
                    &cut(&k),
                    &cut(&v),
                    None,
                    0.0,
                    false,
                    None,
                    false,
                );
                let found = found.get(row as i64).view([2, 2, 16]);
                assert!((found - wanted).abs().max().double_value(&[]) < 1e-5);
            }
        }
    }
}
