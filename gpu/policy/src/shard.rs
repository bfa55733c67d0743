//! One rank's part of a flat buffer: equal pieces, whatever parameters they cut through.

use crate::error::{Error, Result};

/// Pieces are multiples of this many elements, as parameters are.
const ALIGN: i64 = 64;

/// Elements that lie behind every flat buffer, so that the last piece is as long as the others.
pub(crate) const SLACK: i64 = ALIGN * RANKS_MAX as i64;

/// Ranks that [`SLACK`] suffices for.
const RANKS_MAX: usize = 1024;

/// A rank's part of a buffer of `total` elements. Rank r has the r-th of `world` equal pieces; the last
/// ones may end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    total: i64,
    rank: usize,
    world: usize,
}

impl Shard {
    /// All of it, for one that works alone.
    pub fn whole(total: i64) -> Self {
        Shard { total, rank: 0, world: 1 }
    }

    /// The part of rank `rank` of `world`.
    ///
    /// # Errors
    /// More ranks than the buffers are made for.
    pub fn of(total: i64, rank: usize, world: usize) -> Result<Self> {
        match world <= RANKS_MAX && rank < world {
            true => Ok(Shard { total, rank, world }),
            false => Err(Error::Request(format!(
                "rank {rank} of {world}: at most {RANKS_MAX} are known"
            ))),
        }
    }

    /// How many ranks share the buffer.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Elements of each piece.
    pub fn piece(&self) -> i64 {
        let blocks = (self.total + ALIGN - 1) / ALIGN;
        let world = self.world as i64;
        (blocks + world - 1) / world * ALIGN
    }

    /// Elements of all pieces: at least those of the buffer.
    pub fn padded(&self) -> i64 {
        // One rank has no need to round up.
        if self.world == 1 { self.total } else { self.piece() * self.world as i64 }
    }

    /// The first element of this part.
    pub fn start(&self) -> i64 {
        self.total.min(self.rank as i64 * self.piece())
    }

    /// The element after the last of this part.
    pub fn end(&self) -> i64 {
        self.total.min((self.rank as i64 + 1) * self.piece())
    }

    /// Elements of this part.
    pub fn len(&self) -> i64 {
        self.end() - self.start()
    }

    /// This part has nothing: there are more ranks than pieces.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same buffer as rank `rank` sees it.
    pub fn of_rank(&self, rank: usize) -> Self {
        Shard { rank, ..*self }
    }

    /// What of the `n` elements from `at` on lies in this part: first element and number.
    pub fn cut(&self, at: i64, n: i64) -> Option<(i64, i64)> {
        let (from, until) = (at.max(self.start()), (at + n).min(self.end()));
        (from < until).then_some((from, until - from))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_and_cover_everything_once() {
        for total in [0, 64, 128, 640, 1000 * 64, 7_615_616_512] {
            for world in [1, 2, 3, 4, 7, 8, 64, 1024] {
                let parts: Vec<Shard> =
                    (0..world).map(|r| Shard::of(total, r, world).unwrap()).collect();
                let mut at = 0;
                for part in &parts {
                    assert_eq!(part.start(), at);
                    assert_eq!(part.start() % 64, 0);
                    assert!(part.len() <= part.piece());
                    at = part.end();
                }
                assert_eq!(at, total, "{world} ranks");
                assert!((total..=total + SLACK).contains(&parts[0].padded()));
                // A range is cut into what each part has of it.
                let (from, n) = (total / 3, total / 2);
                let cuts: Vec<_> = parts.iter().filter_map(|p| p.cut(from, n)).collect();
                assert_eq!(cuts.iter().map(|c| c.1).sum::<i64>(), n);
                assert!(cuts.windows(2).all(|w| w[0].0 + w[0].1 == w[1].0));
            }
        }
        assert!(Shard::of(64, 2, 2).is_err() && Shard::of(64, 0, 5000).is_err());
    }
}
