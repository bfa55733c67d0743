//! Attention of one new token per row over a cache, in plain Rust for float32 on a CPU.
//!
//! libtorch's kernel repacks the keys of every head as for a large product, which costs more
//! than the product when one or two queries meet each key (measured: half of a step).

use rayon::prelude::*;
use tch::{Device, Kind, Tensor};

use crate::error::Result;
use crate::generate::blocks::BLOCK;

/// Work below which one thread does it all.
const ALONE: usize = 1 << 17;

/// One layer's cache, and what of it each row sees.
pub struct Written<'a> {
    /// Keys `[blocks, K, 16, D]`.
    pub keys: &'a Tensor,
    /// Values, the same.
    pub values: &'a Tensor,
    /// The blocks of each row, in order.
    pub tables: &'a [&'a [u32]],
    /// Positions that each row sees.
    pub lengths: &'a [usize],
}

/// Whether [`attend`] can serve a cache of that type and width of heads.
pub fn suits(kind: Kind, device: Device, width: i64) -> bool {
    device == Device::Cpu && kind == Kind::Float && width % 8 == 0
}

/// Mixes the values for queries `[B, K * group, D]`; answers the same shape.
pub fn attend(queries: &Tensor, cache: &Written) -> Result<Tensor> {
    let (_, heads, _, width) = cache.keys.size4()?;
    let (width, heads) = (width as usize, heads as usize);
    let seen = |row: usize, head: usize| InBlocks {
        table: cache.tables[row],
        length: cache.lengths[row],
        first: head * BLOCK * width,
        step: heads * BLOCK * width,
        width,
    };
    let work = cache.lengths.iter().sum();
    Ok(mixed(queries, [cache.keys, cache.values], heads, work, seen)?.0)
}

/// Mixes the values for queries `[n, K * group, D]`; `seen(row, key head)` says where the keys and values lie
/// among the numbers of `sides`, `work` is how many keys all rows see. Answers the same shape, and the logs of the
/// sums of exponentials `[n, K * group]`. What a query comes to depends on it and on what it sees alone.
pub(crate) fn mixed<S: Seen>(
    queries: &Tensor,
    sides: [&Tensor; 2],
    heads: usize,
    work: usize,
    seen: impl Fn(usize, usize) -> S + Sync,
) -> Result<(Tensor, Tensor)> {
    let queries = queries.f_contiguous()?;
    let (rows, all_heads, width) = queries.size3()?;
    let (mut out, mut sums) =
        (vec![0_f32; queries.numel()], vec![0_f32; (rows * all_heads) as usize]);
    let (q, [k, v]) = (floats(&queries), sides.map(floats));
    let (group, width) = (all_heads as usize / heads, width as usize);
    let share = group * width;
    let one = |scores: &mut Vec<f32>, (i, (out, sums)): (usize, (&mut [f32], &mut [f32]))| {
        let seen = seen(i / heads, i % heads);
        mix(&q[i * share..(i + 1) * share], [k, v], &seen, scores, out, sums);
    };
    if work * heads * share < ALONE {
        let mut scores = Vec::new();
        let parts = out.chunks_mut(share).zip(sums.chunks_mut(group));
        parts.enumerate().for_each(|part| one(&mut scores, part));
    } else {
        let parts = out.par_chunks_mut(share).zip(sums.par_chunks_mut(group));
        parts.enumerate().for_each_init(Vec::new, one);
    }
    let sums = Tensor::f_from_slice(&sums)?.f_view([rows, all_heads])?;
    Ok((Tensor::f_from_slice(&out)?.f_view(&queries.size()[..])?, sums))
}

/// The numbers of a contiguous float32 CPU tensor.
pub(crate) fn floats(t: &Tensor) -> &[f32] {
    assert!(t.is_contiguous() && t.kind() == Kind::Float && t.device() == Device::Cpu);
    // SAFETY: checked above; the tensor owns `numel` floats and outlives the borrow, and the
    // engine's thread, which alone writes to it, is here.
    unsafe { std::slice::from_raw_parts(t.data_ptr() as *const f32, t.numel()) }
}

/// The keys (or values) of one head that a query sees, in the order of their positions: pieces of rows that
/// lie one after the other.
pub(crate) trait Seen {
    /// Positions in all.
    fn length(&self) -> usize;
    /// How many pieces.
    fn pieces(&self) -> usize;
    /// The numbers of piece `n` among `all`.
    fn piece<'b>(&self, all: &'b [f32], n: usize) -> &'b [f32];
}

/// Those of a row in the cache: from `first` on in each block, blocks `step` apart.
struct InBlocks<'a> {
    table: &'a [u32],
    length: usize,
    first: usize,
    step: usize,
    width: usize,
}

impl Seen for InBlocks<'_> {
    fn length(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn pieces(&self) -> usize {
        self.length.div_ceil(BLOCK)
    }

    #[inline(always)]
    fn piece<'b>(&self, all: &'b [f32], n: usize) -> &'b [f32] {
        let from = self.table[n] as usize * self.step + self.first;
        let count = BLOCK.min(self.length - n * BLOCK);
        &all[from..from + count * self.width]
    }
}

/// The queries of one key head: `q` and `out` are `[group, D]`, `sums` `[group]`.
fn mix(
    q: &[f32],
    sides: [&[f32]; 2],
    seen: &impl Seen,
    scores: &mut Vec<f32>,
    out: &mut [f32],
    sums: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function was compiled for.
        return unsafe { mix_avx2(q, sides, seen, scores, out, sums) };
    }
    mix_plain(q, sides, seen, scores, out, sums);
}

/// [`mix_plain`] in registers of eight floats instead of four.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn mix_avx2(
    q: &[f32],
    sides: [&[f32]; 2],
    seen: &impl Seen,
    scores: &mut Vec<f32>,
    out: &mut [f32],
    sums: &mut [f32],
) {
    mix_plain(q, sides, seen, scores, out, sums);
}

#[inline(always)]
fn mix_plain(
    q: &[f32],
    [k, v]: [&[f32]; 2],
    seen: &impl Seen,
    scores: &mut Vec<f32>,
    out: &mut [f32],
    sums: &mut [f32],
) {
    let width = q.len() / sums.len();
    let scale = 1.0 / (width as f32).sqrt();
    let queries = q.chunks_exact(width).zip(out.chunks_exact_mut(width)).zip(sums);
    for ((q, out), log_sum) in queries {
        scores.resize(seen.length(), 0.0);
        let mut at = 0;
        // Loops and not iterator chains: a closure would not be compiled for AVX2.
        for n in 0..seen.pieces() {
            for k in seen.piece(k, n).chunks_exact(width) {
                scores[at] = dot(q, k) * scale;
                at += 1;
            }
        }
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for s in scores.iter_mut() {
            *s = exp(*s - most);
        }
        let sum: f32 = scores.iter().sum();
        let mut at = 0;
        for n in 0..seen.pieces() {
            for v in seen.piece(v, n).chunks_exact(width) {
                let weight = scores[at];
                at += 1;
                for (o, v) in out.iter_mut().zip(v) {
                    *o += weight * v;
                }
            }
        }
        for o in out.iter_mut() {
            *o /= sum;
        }
        *log_sum = most + sum.ln();
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
    total(sums)
}

/// The sum of eight.
#[inline(always)]
pub(crate) fn total([a, b, c, d, e, f, g, h]: [f32; 8]) -> f32 {
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
        let q = Tensor::randn([3, 4, 16], option);
        let k = Tensor::randn([40, 2, 16, 16], option);
        let v = Tensor::randn([40, 2, 16, 16], option);
        let tables: [&[u32]; 3] = [&[3, 39, 0, 17], &[1], &[20, 7, 5, 6, 8, 9, 30, 2]];
        let lengths = [50, 16, 121];
        let cache = Written { keys: &k, values: &v, tables: &tables, lengths: &lengths };
        let found = attend(&q, &cache).unwrap();
        for row in 0..3 {
            let table: Vec<i64> = tables[row].iter().map(|&b| i64::from(b)).collect();
            let own = |t: &Tensor| {
                let blocks = t.index_select(0, &Tensor::from_slice(&table));
                blocks.transpose(0, 1).reshape([2, -1, 16]).narrow(1, 0, lengths[row] as i64)
            };
            let q = q.get(row as i64).view([2, 2, 16]);
            let (k, v) = (own(&k), own(&v));
            let wanted = Tensor::scaled_dot_product_attention::<&Tensor>(
                &q, &k, &v, None, 0.0, false, None, false,
            );
            let found = found.get(row as i64).view([2, 2, 16]);
            assert!((found - wanted).abs().max().double_value(&[]) < 1e-5);
        }
    }
}
