//! API sets from co-occurrence counts.
//!
//! The table is text: `api<TAB>count` for single counts, `api<TAB>api<TAB>count` for pairs, `#` for
//! comments. A set grows from one API by its pairs' counts, so what stands together in real modules
//! is drawn together.

use std::collections::{BTreeMap, BTreeSet};

/// Counts of APIs and of pairs in one module.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiTable {
    /// Sorted by name.
    single: Vec<(String, f64)>,
    /// For each API its pairs: place of the other, count; sorted by place.
    pairs: Vec<Vec<(usize, f64)>>,
}

/// A line of the table is not right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("API table, line {line}: {what}")]
pub struct BadTable {
    /// From 1.
    pub line: usize,
    /// What does not fit.
    pub what: String,
}

/// What one draw needs beside the table.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// Seed of the draw.
    pub seed: u64,
    /// Fewest and most APIs.
    pub sizes: (u32, u32),
    /// Weight factor of each API, in the order of the table ([`ApiTable::factors`]).
    pub factors: &'a [f64],
}

impl ApiTable {
    /// Reads a table. Pairs must be of APIs that have a count of their own.
    pub fn parse(text: &str) -> Result<Self, BadTable> {
        let (mut single, mut pairs) = (BTreeMap::new(), BTreeMap::<_, f64>::new());
        for (number, line) in (1..).zip(text.lines()) {
            let bad = |what: String| BadTable { line: number, what };
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fields: Vec<&str> = line.split('\t').collect();
            let count = fields.last().and_then(|f| f.parse::<u32>().ok());
            let Some(count) = count.filter(|count| *count > 0) else {
                return Err(bad(format!("`{line}` does not end in a count above 0")));
            };
            match fields.as_slice() {
                [api, _] => {
                    single.insert((*api).to_owned(), f64::from(count));
                }
                [a, b, _] if a != b && single.contains_key(*a) && single.contains_key(*b) => {
                    let (a, b) = if a < b { (a, b) } else { (b, a) };
                    pairs.insert(((*a).to_owned(), (*b).to_owned()), f64::from(count));
                }
                _ => return Err(bad(format!("`{line}` is not an API or a pair of known APIs"))),
            }
        }
        if single.len() < 2 {
            return Err(BadTable { line: 0, what: "fewer than two APIs".to_owned() });
        }
        let single: Vec<(String, f64)> = single.into_iter().collect();
        let place = |api: &String| single.partition_point(|(other, _)| other < api);
        let mut by_place = vec![Vec::new(); single.len()];
        for ((a, b), count) in &pairs {
            by_place[place(a)].push((place(b), *count));
            by_place[place(b)].push((place(a), *count));
        }
        by_place.iter_mut().for_each(|of| of.sort_by_key(|(other, _)| *other));
        Ok(Self { single, pairs: by_place })
    }

    /// Factors for [`Draw`] from those of some APIs; the others have 1.
    pub fn factors(&self, weights: &BTreeMap<String, f64>) -> Vec<f64> {
        self.single.iter().map(|(api, _)| weights.get(api).copied().unwrap_or(1.0)).collect()
    }

    /// All APIs, sorted.
    pub fn apis(&self) -> BTreeSet<String> {
        self.single.iter().map(|(api, _)| api.clone()).collect()
    }

    /// Draws one set; the same for the same arguments, in the order that a prompt names them.
    pub fn draw(&self, draw: Draw<'_>) -> Vec<String> {
        let mut random = Stream::new(draw.seed);
        let (low, high) = draw.sizes;
        let size = low + random.below(high - low + 1);
        let mut chosen: Vec<usize> = Vec::new();
        // What each API has with the chosen ones; half a count keeps unseen pairs possible.
        let mut beside = vec![0.0; self.single.len()];
        while chosen.len() < (size as usize).min(self.single.len()) {
            let affinity = |at: usize| match chosen.is_empty() {
                true => self.single[at].1,
                false => 0.5 + beside[at],
            };
            let weights: Vec<(usize, f64)> = (0..self.single.len())
                .filter(|at| !chosen.contains(at))
                .map(|at| (at, affinity(at) * draw.factors.get(at).copied().unwrap_or(1.0)))
                .collect();
            let Some(next) = random.pick(&weights) else { break };
            chosen.push(next);
            for (other, count) in &self.pairs[next] {
                beside[*other] += count;
            }
        }
        let mut set: Vec<String> = chosen.into_iter().map(|at| self.single[at].0.clone()).collect();
        random.shuffle(&mut set);
        set
    }
}

/// A random stream that is a function of its seed alone: BLAKE3 in counter mode.
struct Stream(blake3::OutputReader);

impl Stream {
    fn new(seed: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("kernelzero 2026-11 api draw");
        hasher.update(&seed.to_le_bytes());
        Self(hasher.finalize_xof())
    }

    /// Uniform in [0, 1), 53 bits.
    fn unit(&mut self) -> f64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, limit: u32) -> u32 {
        ((self.unit() * f64::from(limit)) as u32).min(limit.saturating_sub(1))
    }

    fn pick(&mut self, weights: &[(usize, f64)]) -> Option<usize> {
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let mut left = self.unit() * total;
        for (api, weight) in weights {
            left -= weight;
            if left < 0.0 {
                return Some(*api);
            }
        }
        weights.last().map(|(api, _)| *api)
    }

    fn shuffle(&mut self, set: &mut [String]) {
        for last in (1..set.len()).rev() {
            let other = self.below(last as u32 + 1) as usize;
            set.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# counts\na\t100\nb\t100\nc\t100\nd\t1\na\tb\t1000\n";

    fn sets(weights: &BTreeMap<String, f64>) -> Vec<Vec<String>> {
        let table = ApiTable::parse(TABLE).unwrap();
        let factors = &table.factors(weights);
        (0..400).map(|seed| table.draw(Draw { seed, sizes: (2, 3), factors })).collect()
    }

    #[test]
    fn the_same_seed_draws_the_same_set() {
        assert_eq!(sets(&BTreeMap::new()), sets(&BTreeMap::new()));
    }

    /// Logs are audited by drawing again, so what a seed draws must never change.
    #[test]
    fn seeds_draw_what_they_always_drew() {
        let drawn = sets(&BTreeMap::from([("d".to_owned(), 3.0)]));
        let text = drawn.iter().map(|set| set.concat()).collect::<Vec<_>>().join(" ");
        assert_eq!(crate::ids::Digest::of(text.as_bytes()).short(), "20ee6bdcb9d7");
    }

    #[test]
    fn pairs_that_stand_together_are_drawn_together() {
        let drawn = sets(&BTreeMap::new());
        let has = |set: &Vec<String>, api: &str| set.iter().any(|a| a == api);
        let with_a: Vec<_> = drawn.iter().filter(|s| has(s, "a")).collect();
        let both = with_a.iter().filter(|s| has(s, "b")).count();
        assert!(both * 10 > with_a.len() * 9, "{both} of {}", with_a.len());
        assert!(drawn.iter().all(|s| (2..=3).contains(&s.len())));
    }

    #[test]
    fn weights_pull() {
        let count = |drawn: Vec<Vec<String>>| drawn.iter().flatten().filter(|a| *a == "d").count();
        let plain = count(sets(&BTreeMap::new()));
        let pulled = count(sets(&BTreeMap::from([("d".to_owned(), 100.0)])));
        assert!(pulled > 2 * plain.max(1), "{pulled} against {plain}");
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, line) in [("a\t1\nb\tx\n", 2), ("a\t1\nb\t2\na\tz\t3\n", 3), ("a\t0\n", 1)] {
            assert_eq!(ApiTable::parse(text).unwrap_err().line, line, "{text}");
        }
    }
}
