//! Who holds which block of the key-value cache.
//!
//! A block holds [`BLOCK`] positions of every layer. Samples of one prompt share its full blocks,
//! so blocks are counted; a block that anyone may still write has one holder.

/// Positions in a block.
pub const BLOCK: usize = 16;

/// Blocks that `positions` take.
pub fn needed(positions: usize) -> usize {
    positions.div_ceil(BLOCK)
}

/// The free blocks and the holders of the others.
#[derive(Debug)]
pub struct Blocks {
    free: Vec<u32>,
    holders: Vec<u32>,
}

impl Blocks {
    /// `count` free blocks; the lowest are given out first.
    pub fn new(count: usize) -> Self {
        Blocks { free: (0..count as u32).rev().collect(), holders: vec![0; count] }
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// A block with one holder, or `None` if all are held.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// One more holder for each.
    pub fn share(&mut self, blocks: &[u32]) {
        for &b in blocks {
            debug_assert!(self.holders[b as usize] > 0, "block {b} is free and cannot be shared");
            self.holders[b as usize] += 1;
        }
    }

    /// One holder less for each; who has none is free.
    pub fn release(&mut self, blocks: impl IntoIterator<Item = u32>) {
        for b in blocks {
            let holders = &mut self.holders[b as usize];
            debug_assert!(*holders > 0, "block {b} was released more often than held");
            *holders -= 1;
            if *holders == 0 {
                self.free.push(b);
            }
        }
    }
}
