//! The forward pass with one order for every sum, in plain Rust for float32 on a CPU.
//!
//! libtorch's products and reductions choose their order by how many rows there are, so that the last bits of a
//! token's scores depend on its neighbours. In deterministic mode they must not: what is sampled in any batch is
//! what the trainer sees in any pack, bit for bit. Here each row is computed by itself, by the same
//! operations in the same order (Rust neither reorders nor fuses them), so that holds by construction.
//!
//! Gradients are not made here: the backward pass is libtorch's, from these values.

use rayon::prelude::*;
use tch::Tensor;

use crate::decode::{self, Seen, exp, floats, total};
use crate::error::Result;
use crate::rope::Turn;
use crate::sampling;

/// Outputs that one thread computes for all rows at a time: their weights stay in its cache.
const COLUMNS: usize = 32;

/// `[.., out]` of `x` `[.., in]` and `weight` `[out, in]`.
pub(crate) fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (x, weight) = (x.f_contiguous()?, weight.f_contiguous()?);
    let (outputs, inner) = weight.size2()?;
    let (xs, ws) = (floats(&x), floats(&weight));
    let width = inner as usize;
    let rows = xs.len() / width;
    let mut turned = vec![0_f32; rows * outputs as usize];
    let parts = turned.par_chunks_mut(COLUMNS * rows).zip(ws.par_chunks(COLUMNS * width));
    parts.for_each(|(out, weights)| products(xs, weights, width, out));
    let mut shape = x.size();
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    let turned = Tensor::f_from_slice(&turned)?.f_view([outputs, rows as i64])?;
    let mut y = turned.f_tr()?.f_contiguous()?.f_view(&shape[..])?;
    if let Some(bias) = bias {
        y = y.f_add_(bias)?;
    }
    Ok(y)
}

/// `out` `[columns, rows]` of `x` `[rows, width]` and `weights` `[columns, width]`.
fn products(x: &[f32], weights: &[f32], width: usize, out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function was compiled for.
        return unsafe { products_avx2(x, weights, width, out) };
    }
    products_plain(x, weights, width, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn products_avx2(x: &[f32], weights: &[f32], width: usize, out: &mut [f32]) {
    products_plain(x, weights, width, out);
}

/// Two rows and four columns at a time for speed; each product is the same alone.
#[inline(always)]
fn products_plain(x: &[f32], weights: &[f32], width: usize, out: &mut [f32]) {
    let rows = x.len() / width;
    let columns = weights.len() / width;
    let mut c = 0;
    while c < columns {
        let wide = c + 4 <= columns;
        let mut r = 0;
        while r < rows {
            if wide && r + 2 <= rows {
                let found = tile::<2, 4>(&x[r * width..], &weights[c * width..], width);
                for (i, sums) in found.iter().enumerate() {
                    for (j, sum) in sums.iter().enumerate() {
                        out[(c + j) * rows + r + i] = *sum;
                    }
                }
                r += 2;
            } else {
                for j in 0..if wide { 4 } else { 1 } {
                    let found = tile::<1, 1>(&x[r * width..], &weights[(c + j) * width..], width);
                    out[(c + j) * rows + r] = found[0][0];
                }
                r += 1;
            }
        }
        c += if wide { 4 } else { 1 };
    }
}

/// The products of the first `R` rows of `x` with the first `C` of `w`: eight running sums each.
#[inline(always)]
fn tile<const R: usize, const C: usize>(x: &[f32], w: &[f32], width: usize) -> [[f32; C]; R] {
    let mut sums = [[[0_f32; 8]; C]; R];
    let whole = width / 8 * 8;
    let mut k = 0;
    while k < whole {
        for c in 0..C {
            let b = &w[c * width + k..c * width + k + 8];
            for r in 0..R {
                let a = &x[r * width + k..r * width + k + 8];
                for i in 0..8 {
                    sums[r][c][i] += a[i] * b[i];
                }
            }
        }
        k += 8;
    }
    for k in whole..width {
        for c in 0..C {
            for r in 0..R {
                sums[r][c][k - whole] += x[r * width + k] * w[c * width + k];
            }
        }
    }
    sums.map(|row| row.map(total))
}

/// `x` `[.., n]` over the root of its mean square, times `weight` `[n]`.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let (x, weight) = (x.f_contiguous()?, weight.f_contiguous()?);
    let weights = floats(&weight);
    let mut out = Vec::with_capacity(x.numel());
    for row in floats(&x).chunks_exact(weights.len()) {
        let mut sums = [0_f32; 8];
        for (i, x) in row.iter().enumerate() {
            sums[i % 8] += x * x;
        }
        let mean = total(sums) / row.len() as f32;
        let factor = 1.0 / (mean + eps as f32).sqrt();
        out.extend(row.iter().zip(weights).map(|(x, w)| x * factor * w));
    }
    shaped(&out, &x.size())
}

/// Rotates `[B, T, heads, D]`, as [`Turn::apply`] does.
pub(crate) fn turned(x: &Tensor, turn: &Turn) -> Result<Tensor> {
    let size = x.size();
    let (heads, width) = (size[2] as usize, size[3] as usize);
    let (x, cos, sin) = (x.f_contiguous()?, turn.cos.f_contiguous()?, turn.sin.f_contiguous()?);
    let (cos, sin) = (floats(&cos), floats(&sin));
    let positions = cos.len() / width;
    let mut out = Vec::with_capacity(x.numel());
    for (i, head) in floats(&x).chunks_exact(width).enumerate() {
        // The same positions for each row, or each row's own.
        let at = i / heads % positions * width;
        let (cos, sin) = (&cos[at..at + width], &sin[at..at + width]);
        let swapped = (0..width).map(|d| head[(d + width / 2) % width]);
        let sines = swapped.zip(sin).map(|(x, s)| x * s);
        out.extend(head.iter().zip(cos).zip(sines).map(|((x, c), s)| x * c + s));
    }
    shaped(&out, &size)
}

/// `silu(gate) * up` `[.., n]` of `both` `[.., 2 * n]`.
pub(crate) fn swiglu(both: &Tensor) -> Result<Tensor> {
    let both = both.f_contiguous()?;
    let mut shape = both.size();
    let n = shape.pop().unwrap_or(0) / 2;
    shape.push(n);
    let mut out = Vec::with_capacity(both.numel() / 2);
    for row in floats(&both).chunks_exact(2 * n as usize) {
        let (gate, up) = row.split_at(n as usize);
        out.extend(gate.iter().zip(up).map(|(g, u)| g * logistic(*g) * u));
    }
    shaped(&out, &shape)
}

/// `1 / (1 + e^-x)`, from an exponential that cannot overflow.
fn logistic(x: f32) -> f32 {
    let e = exp(-x.abs());
    let most = 1.0 / (1.0 + e);
    if x < 0.0 { e * most } else { most }
}

/// Log-softmax `[n, vocab]` at a temperature: what [`sampling::draw`] says of each token.
pub(crate) fn log_softmax(logits: &Tensor, divisor: f64) -> Result<Tensor> {
    let logits = logits.f_contiguous()?;
    let vocab = logits.size()[1] as usize;
    let mut all = vec![0_f32; logits.numel()];
    let rows = all.par_chunks_mut(vocab).zip(floats(&logits).par_chunks(vocab));
    rows.for_each(|(out, scores)| {
        let sum = sampling::log_sum(scores, divisor);
        for (out, score) in out.iter_mut().zip(scores) {
            *out = sampling::logprob(*score, divisor, sum);
        }
    });
    shaped(&all, &logits.size())
}

/// What a packed token sees: `own` tokens from `start` on, its own the last, after all of its trunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sight {
    pub(crate) start: usize,
    pub(crate) own: usize,
    pub(crate) trunk: usize,
    pub(crate) trunk_length: usize,
}

/// A [`Sight`] among the numbers of one key head, which begin at `first`.
struct Packed {
    sight: Sight,
    first: usize,
    width: usize,
}

impl Seen for Packed {
    fn length(&self) -> usize {
        self.sight.trunk_length + self.sight.own
    }

    #[inline(always)]
    fn pieces(&self) -> usize {
        2
    }

    #[inline(always)]
    fn piece<'b>(&self, all: &'b [f32], n: usize) -> &'b [f32] {
        let (from, count) = match n {
            0 => (self.sight.trunk, self.sight.trunk_length),
            _ => (self.sight.start, self.sight.own),
        };
        let from = self.first + from * self.width;
        &all[from..from + count * self.width]
    }
}

/// Attention of `q` `[T, H, D]` to `k` and `v` `[T, K, D]`, `D` a multiple of 8, where token `t` sees
/// `sights[t]`: `[T, H, D]`, and the logs of the sums of exponentials `[H, T]`.
pub(crate) fn attend([q, k, v]: [&Tensor; 3], sights: &[Sight]) -> Result<(Tensor, Tensor)> {
    let (tokens, heads, width) = k.size3()?;
    let apart = |t: &Tensor| t.f_transpose(0, 1)?.f_contiguous();
    let (k, v) = (apart(k)?, apart(v)?);
    let (tokens, width) = (tokens as usize, width as usize);
    let seen = |row: usize, head: usize| Packed {
        sight: sights[row],
        first: head * tokens * width,
        width,
    };
    let work = sights.iter().map(|s| s.own + s.trunk_length).sum();
    let (out, sums) = decode::mixed(q, [&k, &v], heads as usize, work, seen)?;
    Ok((out, sums.f_tr()?.f_contiguous()?))
}

fn shaped(numbers: &[f32], shape: &[i64]) -> Result<Tensor> {
    Ok(Tensor::f_from_slice(numbers)?.f_view(shape)?)
}
