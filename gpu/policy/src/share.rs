//! The packs of a global batch, divided among ranks.

use crate::batch::{self, Sequence};

/// One pack of a rank.
pub(crate) struct Share {
    /// Its sequences, by place in the global batch.
    pub(crate) rows: Vec<usize>,
    /// Positions of the packs before it in the global batch, whoever has them.
    pub(crate) before: u64,
}

/// The packs of rank `rank` of `world`. The packs are those that one rank alone would make: the longest
/// goes first, each to the rank that has the fewest positions so far.
pub(crate) fn packs(rows: &[&Sequence], budget: usize, rank: usize, world: usize) -> Vec<Share> {
    let packs = batch::plan(rows, budget);
    let size = |pack: &Vec<usize>| {
        let rows: Vec<&Sequence> = pack.iter().map(|&i| rows[i]).collect();
        batch::positions(&rows) as u64
    };
    let sizes: Vec<u64> = packs.iter().map(size).collect();
    let owners = owners(&sizes, world);
    let mut before = 0;
    let mut own = Vec::new();
    for ((rows, size), owner) in packs.into_iter().zip(sizes).zip(owners) {
        if owner == rank {
            own.push(Share { rows, before });
        }
        before += size;
    }
    own
}

/// Which rank has which pack.
fn owners(sizes: &[u64], world: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(sizes[i]));
    let (mut loads, mut owners) = (vec![0; world], vec![0; sizes.len()]);
    for i in order {
        let least = (0..world).min_by_key(|&r| loads[r]).unwrap_or(0);
        loads[least] += sizes[i];
        owners[i] = least;
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_packs_of_one_evenly() {
        let row = |i: u32| Sequence { tokens: (0..3 + i * 7 % 29).collect(), prompt: 1 };
        let rows: Vec<Sequence> = (0..200).map(row).collect();
        let rows: Vec<&Sequence> = rows.iter().collect();
        let whole = packs(&rows, 64, 0, 1);
        let plan = batch::plan(&rows, 64);
        assert_eq!(whole.iter().map(|s| s.rows.clone()).collect::<Vec<_>>(), plan);
        let positions = |share: &Share| {
            batch::positions(&share.rows.iter().map(|&i| rows[i]).collect::<Vec<_>>()) as u64
        };
        for world in [2, 3, 8] {
            let shares: Vec<Vec<Share>> = (0..world).map(|r| packs(&rows, 64, r, world)).collect();
            let mut all: Vec<&Share> = shares.iter().flatten().collect();
            all.sort_by_key(|s| s.before);
            assert!(all.iter().zip(&whole).all(|(a, b)| a.rows == b.rows && a.before == b.before));
            let loads: Vec<u64> = shares.iter().map(|s| s.iter().map(positions).sum()).collect();
            let (most, least) = (loads.iter().max(), loads.iter().min());
            assert!(most.zip(least).is_some_and(|(m, l)| m - l <= 64), "{loads:?}");
        }
        assert!(packs(&rows[..1], 64, 1, 2).is_empty(), "one pack has one owner");
    }
}
