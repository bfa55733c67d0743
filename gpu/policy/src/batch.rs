//! Sequences of unequal length as one row of tokens without padding. Answers to the same prompt
//! share it: it is read once, and each answer attends to it.

use tch::{Device, Tensor};

use crate::attention::Spans;
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

    /// Positions that this answer adds to its prompt.
    fn branch(&self) -> usize {
        self.answer().saturating_sub(1)
    }
}

/// Packed inputs and the answer tokens to predict from them.
pub struct Batch {
    /// int64 `[T]`.
    pub ids: Tensor,
    /// int64 `[T]`: each token's place in its own sequence.
    pub positions: Tensor,
    /// int64 `[n]`: for each answer token, the place in `ids` that predicts it. The last token of a
    /// shared prompt predicts several.
    pub places: Tensor,
    /// int64 `[n]`: the answer tokens, sequence after sequence in the order given.
    pub targets: Tensor,
    /// `n`.
    pub tokens: usize,
    /// Who sees whom.
    pub spans: Spans,
}

/// Sequences (by place in `rows`) with the same prompt, in order of their first.
fn groups(rows: &[&Sequence]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known = std::collections::BTreeMap::new();
    for (i, s) in rows.iter().enumerate() {
        let group = *known.entry(&s.tokens[..s.prompt]).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(i);
    }
    groups
}

/// Positions of a group that is packed together.
fn cost(rows: &[&Sequence], group: &[usize]) -> usize {
    match group {
        [alone] => rows[*alone].inputs(),
        _ => rows[group[0]].prompt + group.iter().map(|&i| rows[i].branch()).sum::<usize>(),
    }
}

/// Groups whose prompt is laid out once, and the others.
fn divided(rows: &[&Sequence]) -> (Vec<Vec<usize>>, Vec<Vec<usize>>) {
    let shared = |g: &Vec<usize>| g.len() > 1 && g.iter().any(|&i| rows[i].branch() > 0);
    groups(rows).into_iter().partition(shared)
}

/// Positions that [`Batch::new`] makes of `rows`.
pub(crate) fn positions(rows: &[&Sequence]) -> usize {
    let (shared, alone) = divided(rows);
    let alone: usize = alone.iter().flatten().map(|&i| rows[i].inputs()).sum();
    shared.iter().map(|group| cost(rows, group)).sum::<usize>() + alone
}

/// Divides sequences (by index) into packs of at most `budget` positions, unless a single sequence
/// is longer. Answers to one prompt stay together if they fit; the largest go first, each into the
/// first pack that has room.
pub fn plan(sequences: &[&Sequence], budget: usize) -> Vec<Vec<usize>> {
    let mut units: Vec<(usize, Vec<usize>)> = Vec::new();
    for group in groups(sequences) {
        let mut open: Vec<usize> = Vec::new();
        for i in group {
            open.push(i);
            if open.len() > 1 && cost(sequences, &open) > budget {
                open.pop();
                let full = std::mem::replace(&mut open, vec![i]);
                units.push((cost(sequences, &full), full));
            }
        }
        units.push((cost(sequences, &open), open));
    }
    units.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
    let mut packs: Vec<(usize, Vec<usize>)> = Vec::new();
    for (cost, unit) in units {
        match packs.iter_mut().find(|(filled, _)| filled + cost <= budget) {
            Some((filled, pack)) => {
                *filled += cost;
                pack.extend(unit);
            }
            None => packs.push((cost, unit)),
        }
    }
    packs.into_iter().map(|(_, pack)| pack).collect()
}

/// Tokens laid out so far.
#[derive(Default)]
struct Row {
    ids: Vec<i64>,
    positions: Vec<i64>,
    segments: Vec<i64>,
}

impl Row {
    /// Appends a segment whose first token stands at `position`; answers where it begins.
    fn push(&mut self, tokens: &[u32], position: usize) -> usize {
        let start = self.ids.len();
        self.ids.extend(tokens.iter().map(|&t| i64::from(t)));
        self.positions.extend((position..position + tokens.len()).map(|p| p as i64));
        if !tokens.is_empty() {
            self.segments.push(tokens.len() as i64);
        }
        start
    }
}

impl Batch {
    /// Packs `rows` on `device`; each has at least one prompt token and one answer token.
    pub fn new(rows: &[&Sequence], device: Device) -> Result<Self> {
        let (shared, alone) = divided(rows);
        let mut row = Row::default();
        // Where each sequence's prompt ends, and where the rest of its inputs begins.
        let mut ends = vec![(0, 0); rows.len()];
        for group in &shared {
            let first = rows[group[0]];
            let start = row.push(&first.tokens[..first.prompt], 0);
            for &i in group {
                ends[i].0 = start + first.prompt;
            }
        }
        for &i in alone.iter().flatten() {
            let start = row.push(&rows[i].tokens[..rows[i].inputs()], 0);
            ends[i] = (start + rows[i].prompt, start + rows[i].prompt);
        }
        let mut branches = Vec::new();
        for group in &shared {
            let before = row.ids.len();
            for &i in group {
                let s = rows[i];
                ends[i].1 = row.push(&s.tokens[s.prompt..s.inputs()], s.prompt);
            }
            let trunk = rows[group[0]].prompt as i64;
            branches.push((trunk, (row.ids.len() - before) as i64));
        }
        let (mut places, mut targets) = (Vec::new(), Vec::new());
        for (s, &(prompt, rest)) in rows.iter().zip(&ends) {
            for (j, &token) in s.tokens[s.prompt..].iter().enumerate() {
                places.push(if j == 0 { prompt - 1 } else { rest + j - 1 } as i64);
                targets.push(i64::from(token));
            }
        }
        let tokens = targets.len();
        let put = |v: &[i64]| Tensor::f_from_slice(v)?.f_to_device(device);
        let (ids, positions) = (put(&row.ids)?, put(&row.positions)?);
        let spans = Spans::new(row.segments, branches, device)?;
        Ok(Batch { ids, positions, places: put(&places)?, targets: put(&targets)?, tokens, spans })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sequence(tokens: &[u32], prompt: usize) -> Sequence {
        Sequence { tokens: tokens.to_vec(), prompt }
    }

    #[test]
    fn a_shared_prompt_is_read_once() {
        let rows = [
            sequence(&[1, 2, 10, 11], 2),
            sequence(&[7, 8, 9], 1),
            sequence(&[1, 2, 20, 21, 22], 2),
            sequence(&[1, 2, 30], 2),
        ];
        let rows: Vec<&Sequence> = rows.iter().collect();
        let b = Batch::new(&rows, Device::Cpu).unwrap();
        let list = |t: &Tensor| Vec::<i64>::try_from(t).unwrap();
        assert_eq!(list(&b.ids), [1, 2, 7, 8, 10, 20, 21]);
        assert_eq!(list(&b.positions), [0, 1, 0, 1, 2, 2, 3]);
        assert_eq!(list(&b.targets), [10, 11, 8, 9, 20, 21, 22, 30]);
        assert_eq!(list(&b.places), [1, 4, 2, 3, 1, 5, 6, 1]);
        // Causal pairs of segments of 2, 2, 1 and 2, and three branch tokens to a trunk of two.
        assert_eq!(b.spans.pairs(), 3 + 3 + 1 + 3 + 3 * 2);
    }

    #[test]
    fn packs_hold_the_budget_and_every_sequence_once() {
        let rows: Vec<Sequence> = (0..60_u32)
            .map(|i| {
                let prompt = 5 + (i / 4) % 7;
                let tokens = (0..prompt).map(|t| t + i / 4).chain(0..1 + i * i % 23).collect();
                Sequence { tokens, prompt: prompt as usize }
            })
            .collect();
        let rows: Vec<&Sequence> = rows.iter().collect();
        for budget in [8, 32, 64, 1000] {
            let packs = plan(&rows, budget);
            let mut seen: Vec<usize> = packs.iter().flatten().copied().collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..60).collect::<Vec<_>>());
            for pack in &packs {
                let rows: Vec<&Sequence> = pack.iter().map(|&i| rows[i]).collect();
                let filled = Batch::new(&rows, Device::Cpu).unwrap().spans.tokens() as usize;
                assert_eq!(filled, positions(&rows));
                assert!(filled <= budget || pack.len() == 1, "{filled} of {budget}");
            }
        }
        assert_eq!(plan(&rows, 1000).len(), 1);
    }
}
