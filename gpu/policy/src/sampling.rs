//! Drawing one token from scores, on plain slices.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::decode::exp;

/// How answers are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Scores are divided by it; 0 takes the best token and reports log-probs at 1.
    pub temperature: f64,
    /// Only the best `top_k` tokens may be drawn; 0 is no limit.
    pub top_k: usize,
    /// Only the best tokens that together reach this probability; 1 is no limit.
    pub top_p: f64,
}

impl Sampling {
    /// What scores are divided by.
    pub fn divisor(&self) -> f64 {
        if self.temperature > 0.0 { self.temperature } else { 1.0 }
    }
}

/// One token drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Its log-probability under the whole softmax at the temperature.
    pub logprob: f32,
    /// The same within what top-k and top-p left.
    pub truncated: f32,
}

/// Log of the sum of exponentials of `scores / divisor`, in f64.
pub fn log_sum(scores: &[f32], divisor: f64) -> f64 {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // The exponentials are float32 for speed; only the sum of thousands needs more.
    let inv = (1.0 / divisor) as f32;
    let sum: f64 = scores
        .chunks(256)
        .map(|c| f64::from(c.iter().map(|&s| exp((s - most) * inv)).sum::<f32>()))
        .sum();
    f64::from(most) / divisor + sum.ln()
}

/// The log-probability of a token with that score.
pub fn logprob(score: f32, divisor: f64, log_sum: f64) -> f32 {
    (f64::from(score) / divisor - log_sum) as f32
}

/// Draws a token. `scores` are logits of the tokens `ids` (of all tokens, in order, if
/// `None`); `log_sum` belongs to the whole vocabulary. Takes one number from `rng`, or none
/// when the temperature is 0.
pub fn draw(
    scores: &[f32],
    ids: Option<&[i64]>,
    log_sum: f64,
    s: &Sampling,
    rng: &mut ChaCha8Rng,
) -> Choice {
    let id = |i: usize| ids.map_or(i as u32, |ids| ids[i] as u32);
    let divisor = s.divisor();
    let raw = |i: usize| logprob(scores[i], divisor, log_sum);
    // Best first; the lower id wins a tie, so that the order is a function of the scores.
    let order =
        |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then_with(|| id(*a).cmp(&id(*b)));
    if s.temperature <= 0.0 {
        let best = (0..scores.len()).min_by(order).unwrap_or(0);
        return Choice { token: id(best), logprob: raw(best), truncated: 0.0 };
    }
    let mut kept: Vec<usize> = (0..scores.len()).collect();
    if s.top_k > 0 && s.top_k < kept.len() {
        kept.select_nth_unstable_by(s.top_k - 1, order);
        kept.truncate(s.top_k);
    }
    if s.top_k > 0 || s.top_p < 1.0 {
        kept.sort_unstable_by(order);
    }
    let most = kept.iter().map(|&i| scores[i]).fold(f32::NEG_INFINITY, f32::max);
    let weight = |i: usize| (f64::from(scores[i] - most) / divisor).exp();
    let mut weights: Vec<f64> = kept.iter().map(|&i| weight(i)).collect();
    let mut total: f64 = weights.iter().sum();
    if s.top_p < 1.0 {
        let (mut sum, mut count) = (0.0, 0);
        while count < weights.len() && (count == 0 || sum < s.top_p * total) {
            sum += weights[count];
            count += 1;
        }
        weights.truncate(count);
        total = sum;
    }
    let mut left = rng.random::<f64>() * total;
    let mut at = weights.len() - 1;
    for (i, w) in weights.iter().enumerate() {
        left -= w;
        if left < 0.0 {
            at = i;
            break;
        }
    }
    let truncated = (weights[at] / total).ln() as f32;
    Choice { token: id(kept[at]), logprob: raw(kept[at]), truncated }
}
