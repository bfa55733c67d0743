//! What the kernels should give, in float64 on the host, from the same bfloat16 inputs.

use crate::launch::{AdamW, Heads, Sampling};

/// RMSNorm of one row.
pub fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

/// `silu(gate) * up`.
pub fn swiglu(gate: f64, up: f64) -> f64 {
    gate / (1.0 + (-gate).exp()) * up
}

/// The gradients of gate and up, given that of [`swiglu`].
pub fn swiglu_back(gate: f64, up: f64, grad: f64) -> (f64, f64) {
    let share = 1.0 / (1.0 + (-gate).exp());
    (grad * up * share * (1.0 + gate * (1.0 - share)), grad * gate * share)
}

/// One head turned by the angles of its position: pairs are `i` and `i + D / 2`. The cosines and
/// sines are those of the tables, `sines` negated in the first half.
pub fn rope(x: &[f64], cosines: &[f64], sines: &[f64]) -> Vec<f64> {
    let half = x.len() / 2;
    let other = |i: usize| x[(i + half) % x.len()];
    (0..x.len()).map(|i| x[i] * cosines[i] + other(i) * sines[i]).collect()
}

/// The gradient of what [`rope`] was given, from that of its answer.
pub fn rope_back(grad: &[f64], cosines: &[f64], sines: &[f64]) -> Vec<f64> {
    let half = grad.len() / 2;
    let other = |i: usize| (i + half) % grad.len();
    (0..grad.len()).map(|i| grad[i] * cosines[i] + grad[other(i)] * sines[other(i)]).collect()
}

/// Log-probabilities of `logits / divisor`, and the log of their sum of exponentials.
pub fn log_softmax(logits: &[f64], divisor: f64) -> (Vec<f64>, f64) {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max) / divisor;
    let sum = most + logits.iter().map(|l| (l / divisor - most).exp()).sum::<f64>().ln();
    (logits.iter().map(|l| l / divisor - sum).collect(), sum)
}

/// A weight and its moments after an AdamW step (Loshchilov and Hutter, ICLR 2019, algorithm 2, the decay
/// times the learning rate): `[weight, gradient, first, second]` to `[weight, first, second]`.
pub fn adamw([w, grad, m, v]: [f64; 4], o: &AdamW) -> [f64; 3] {
    let grad = grad / o.scale;
    let m = o.beta1 * m + (1.0 - o.beta1) * grad;
    let v = o.beta2 * v + (1.0 - o.beta2) * grad * grad;
    let step = o.step as f64;
    let (first, second) = (m / (1.0 - o.beta1.powf(step)), v / (1.0 - o.beta2.powf(step)));
    [w - o.rate * o.decay * w - o.rate * first / (second.sqrt() + o.eps), m, v]
}

/// Attention of one row's queries `[heads, dim]` over `keys` and `values` `[length, kv_heads, dim]`.
pub fn attend(queries: &[f64], keys: &[f64], values: &[f64], h: Heads) -> Vec<f64> {
    let (length, group) = (keys.len() / (h.kv_heads * h.dim), h.heads / h.kv_heads);
    let mut out = Vec::with_capacity(queries.len());
    for head in 0..h.heads {
        let q = &queries[head * h.dim..][..h.dim];
        let at = |t: usize| (t * h.kv_heads + head / group) * h.dim;
        let score = |t: usize| {
            let dot: f64 = q.iter().zip(&keys[at(t)..]).map(|(a, b)| a * b).sum();
            dot / (h.dim as f64).sqrt()
        };
        let scores: Vec<f64> = (0..length).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        out.extend((0..h.dim).map(|d| {
            weights.iter().enumerate().map(|(t, w)| w * values[at(t) + d]).sum::<f64>() / sum
        }));
    }
    out
}

/// A row of `weight` times `x`.
pub fn dot(weight: &[f64], x: &[f64]) -> f64 {
    weight.iter().zip(x).map(|(a, b)| a * b).sum()
}

/// A number in `[0, 1)`: Philox4x32-10 (Salmon et al., SC 2011) with `seed` as key and `index` as
/// counter, the first 53 of 64 bits.
pub fn uniform(seed: u64, index: u32) -> f64 {
    let x = philox([index, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    ((u64::from(x[0]) << 32 | u64::from(x[1])) >> 11) as f64 / (1_u64 << 53) as f64
}

fn philox(mut x: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(x[0]) * 0xD251_1F53;
        let b = u64::from(x[2]) * 0xCD9E_8D57;
        x = [
            (b >> 32) as u32 ^ x[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ x[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    x
}

/// The distribution that a row is drawn from.
#[derive(Debug)]
pub struct Distribution {
    /// Kept tokens, best first; the lower id wins a tie.
    pub kept: Vec<u32>,
    /// The probability of each among the kept.
    pub share: Vec<f64>,
    /// The log-probability of each under the whole softmax at the temperature.
    pub logprob: Vec<f64>,
}

/// What top-k and top-p leave of a row of scores. At temperature 0 only the best token is kept.
pub fn distribution(logits: &[f64], s: &Sampling) -> Distribution {
    let divisor = if s.temperature > 0.0 { s.temperature } else { 1.0 };
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weight = |i: u32| ((logits[i as usize] - most) / divisor).exp();
    let whole: f64 = (0..logits.len() as u32).map(weight).sum();
    let mut kept: Vec<u32> = (0..logits.len() as u32).collect();
    kept.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    if s.temperature <= 0.0 {
        kept.truncate(1);
    } else if s.top_k > 0 {
        kept.truncate(s.top_k);
    }
    let total: f64 = kept.iter().map(|&i| weight(i)).sum();
    if s.temperature > 0.0 && s.top_p < 1.0 {
        let (mut sum, mut count) = (0.0, 0);
        while count < kept.len() && (count == 0 || sum < s.top_p * total) {
            sum += weight(kept[count]);
            count += 1;
        }
        kept.truncate(count);
    }
    let total: f64 = kept.iter().map(|&i| weight(i)).sum();
    let share = kept.iter().map(|&i| weight(i) / total).collect();
    let logprob = kept.iter().map(|&i| (weight(i) / whole).ln()).collect();
    Distribution { kept, share, logprob }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of Random123 1.14 for philox4x32-10.
    #[test]
    fn philox_gives_the_published_numbers() {
        let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let draws: Vec<f64> = (0..20_000).map(|i| uniform(7, i)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)) && (mean - 0.5).abs() < 0.01);
    }

    #[test]
    fn truncation_keeps_the_fewest_that_reach_the_mass() {
        let logits: Vec<f64> = [0.1, 0.4, 0.3, 0.2].iter().map(|p: &f64| p.ln()).collect();
        let of = |temperature, top_k, top_p| {
            distribution(&logits, &Sampling { temperature, top_k, top_p }).kept
        };
        assert_eq!(of(1.0, 0, 1.0), [1, 2, 3, 0]);
        assert_eq!(of(1.0, 0, 0.65), [1, 2]);
        assert_eq!(of(1.0, 3, 0.75), [1, 2], "of what top-k left: 0.7 of 0.9 is more than 0.75");
        assert_eq!(of(1.0, 1, 0.01), [1]);
        assert_eq!(of(0.0, 3, 1.0), [1]);
    }

    #[test]
    fn attention_over_one_token_is_its_value() {
        let h = Heads { heads: 4, kv_heads: 2, dim: 2 };
        let out = attend(&[1.0; 8], &[3.0; 4], &[1.0, 2.0, 3.0, 4.0], h);
        assert_eq!(out, [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
    }
}
