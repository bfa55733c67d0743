//! Sequences of unequal length as rectangles: sorted, cut by a token budget, right-padded.

use tch::{Device, Tensor};

use crate::error::Result;

/// A prompt and its answer in one list of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Prompt tokens, then answer tokens.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt; at least 1.
    pub prompt: usize,
}

impl Sequence {
    /// Tokens of the answer.
    pub fn answer(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Positions that the model reads: the last token is only ever predicted.
    pub fn inputs(&self) -> usize {
        self.tokens.len() - 1
    }
}

/// A rectangle of inputs and the answer tokens to predict from it.
pub struct Batch {
    /// int64 `[B, T]`, padded on the right with 0.
    pub ids: Tensor,
    /// int64 `[n]`: for each answer token, its predicting position in the flattened `[B*T]`.
    pub places: Tensor,
    /// int64 `[n]`: the answer tokens, row after row.
    pub targets: Tensor,
    /// `n`.
    pub tokens: usize,
}

/// Lengths are rounded up to this, so that a GPU meets few shapes.
fn multiple(device: Device) -> usize {
    if device == Device::Cpu { 8 } else { 64 }
}

/// Groups sequences (by index) so that no rectangle exceeds `budget` tokens, unless a single
/// sequence does. Like lengths go together; ties keep their order.
pub fn plan(lengths: &[usize], budget: usize, device: Device) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(lengths[i]));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut width = 0;
    for i in order {
        match groups.last_mut() {
            Some(group) if (group.len() + 1) * width <= budget => group.push(i),
            _ => {
                width = lengths[i].next_multiple_of(multiple(device));
                groups.push(vec![i]);
            }
        }
    }
    groups
}

impl Batch {
    /// Lays `rows` out on `device`; no row is longer than `context`.
    pub fn new(rows: &[&Sequence], context: i64, device: Device) -> Result<Self> {
        let longest = rows.iter().map(|s| s.inputs()).max().unwrap_or(1);
        let width = longest.next_multiple_of(multiple(device)).min(context as usize).max(longest);
        let mut ids = vec![0_i64; rows.len() * width];
        let (mut places, mut targets) = (Vec::new(), Vec::new());
        for (r, s) in rows.iter().enumerate() {
            for (j, &token) in s.tokens[..s.inputs()].iter().enumerate() {
                ids[r * width + j] = i64::from(token);
            }
            for j in s.prompt..s.tokens.len() {
                places.push((r * width + j - 1) as i64);
                targets.push(i64::from(s.tokens[j]));
            }
        }
        let tokens = targets.len();
        let put = |v: &[i64]| Tensor::f_from_slice(v)?.f_to_device(device);
        let ids = put(&ids)?.f_view([rows.len() as i64, width as i64])?;
        Ok(Batch { ids, places: put(&places)?, targets: put(&targets)?, tokens })
    }
}
