//! The co-occurrence table, from which sets are drawn.
//!
//! The counts are made by hand (by a rule on the roles of the APIs, see the head of the file); they
//! are not measured on any code.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rand::distr::{Distribution, weighted::WeightedIndex};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Counts of APIs and of pairs of APIs.
#[derive(Clone, Debug, Default)]
pub struct CoOccurrence {
    /// How often each API occurs.
    pub single: BTreeMap<&'static str, u32>,
    /// How often two APIs occur together; the first name is the smaller one.
    pub together: BTreeMap<(&'static str, &'static str), u32>,
}

impl CoOccurrence {
    /// How often two APIs occur together.
    pub fn pair(&self, a: &str, b: &str) -> u32 {
        let key = if a < b { (a, b) } else { (b, a) };
        self.together.get(&key).copied().unwrap_or(0)
    }
}

/// The table that comes with the crate.
pub fn co_occurrence() -> &'static CoOccurrence {
    static TABLE: LazyLock<CoOccurrence> =
        LazyLock::new(|| parse(include_str!("../data/api_counts.tsv")));
    &TABLE
}

fn parse(text: &'static str) -> CoOccurrence {
    let mut table = CoOccurrence::default();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let parts: Vec<&'static str> = line.split('\t').collect();
        match parts.as_slice() {
            [a, n] => {
                table.single.insert(a, n.parse().unwrap_or(0));
            }
            [a, b, n] => {
                let key = if a < b { (*a, *b) } else { (*b, *a) };
                table.together.insert(key, n.parse().unwrap_or(0));
            }
            _ => {}
        }
    }
    table
}

/// Draws a set of 1 to 4 APIs, mostly 2 or 3: the first by its count, each further one by how often
/// it occurs with those already drawn.
pub fn draw(seed: u64) -> Vec<&'static str> {
    let table = co_occurrence();
    let names: Vec<&'static str> = table.single.keys().copied().collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let size = match rng.random_range(0..100) {
        0..10 => 1,
        10..52 => 2,
        52..88 => 3,
        _ => 4,
    };
    let mut set: Vec<&'static str> = Vec::new();
    while set.len() < size {
        let weight = |name: &&'static str| -> f64 {
            if set.contains(name) {
                return 0.0;
            }
            let single = f64::from(table.single.get(name).copied().unwrap_or(0));
            if set.is_empty() {
                return single;
            }
            let with: u32 = set.iter().map(|other| table.pair(name, other)).sum();
            f64::from(with) / set.len() as f64 + single * FLOOR
        };
        let Ok(index) = WeightedIndex::new(names.iter().map(weight)) else { break };
        set.push(names[index.sample(&mut rng)]);
    }
    set
}

/// Share of the single count that every pair gets, so that unlisted pairs occur too.
const FLOOR: f64 = 0.02;
