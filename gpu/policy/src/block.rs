//! Segments of packed tokens as rectangles, for kernels that know no packed tokens.

use tch::{Device, Tensor};

use crate::error::Result;

/// Some segments laid side by side, padded on the right.
pub(crate) struct Side {
    /// int64 `[tokens]`: places among the packed tokens.
    packed: Tensor,
    /// int64 `[tokens]`: places in the flattened rectangle.
    laid: Tensor,
    rows: i64,
    length: i64,
}

impl Side {
    /// `segments` are first token and length.
    fn new(segments: &[(i64, i64)], device: Device) -> Result<Self> {
        let length = segments.iter().map(|s| s.1).max().unwrap_or(0);
        let (mut packed, mut laid) = (Vec::new(), Vec::new());
        for (row, &(start, n)) in segments.iter().enumerate() {
            packed.extend(start..start + n);
            laid.extend((0..n).map(|i| row as i64 * length + i));
        }
        let put = |v: &[i64]| Tensor::f_from_slice(v)?.f_to_device(device);
        Ok(Side { packed: put(&packed)?, laid: put(&laid)?, rows: segments.len() as i64, length })
    }

    /// `[T, H, ..]` as `[rows, H, length, ..]`, zero where it is padding.
    pub(crate) fn cut(&self, x: &Tensor) -> Result<Tensor> {
        let inner = &x.size()[1..];
        let flat = [&[self.rows * self.length], inner].concat();
        let mut laid = Tensor::f_zeros(&flat[..], (x.f_kind()?, x.device()))?;
        let _ = laid.f_index_copy_(0, &self.laid, &x.f_index_select(0, &self.packed)?)?;
        Ok(laid.f_view(&[&[self.rows, self.length], inner].concat()[..])?.f_transpose(1, 2)?)
    }

    /// Writes `[rows, H, length, ..]` back to its places in `into` `[T, H, ..]`.
    pub(crate) fn paste(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        let inner = &into.size()[1..];
        let flat = [&[self.rows * self.length], inner].concat();
        let laid = x.f_transpose(1, 2)?.f_reshape(&flat[..])?.f_index_select(0, &self.laid)?;
        let _ = into.f_index_copy_(0, &self.packed, &laid)?;
        Ok(())
    }
}

/// Queries and the keys that they meet, row by row.
pub(crate) struct Block {
    pub(crate) queries: Side,
    pub(crate) keys: Side,
}

/// Every segment with itself; those of like length share a rectangle. Padding needs no mask where
/// attention is causal: no token sees what is to its right.
pub(crate) fn of_segments(lengths: &[i64], device: Device) -> Result<Vec<Block>> {
    let mut at = 0;
    let mut segments: Vec<(i64, i64)> = Vec::new();
    for &n in lengths {
        segments.push((at, n));
        at += n;
    }
    segments.sort_by_key(|s| std::cmp::Reverse(s.1));
    let alike = |a: &(i64, i64), b: &(i64, i64)| 4 * b.1 >= 3 * a.1;
    let mut blocks = Vec::new();
    while let Some(first) = segments.first() {
        let count = segments.iter().take_while(|s| alike(first, s)).count();
        let rows: Vec<_> = segments.drain(..count).collect();
        blocks.push(Block { queries: Side::new(&rows, device)?, keys: Side::new(&rows, device)? });
    }
    Ok(blocks)
}

/// All branches of each trunk with it: places of branches count from the first branch.
pub(crate) fn of_groups(groups: &[(i64, i64)], device: Device) -> Result<Vec<Block>> {
    let (mut trunk, mut branch) = (0, 0);
    let one = |&(keys, queries): &(i64, i64)| {
        let block = Block {
            queries: Side::new(&[(branch, queries)], device)?,
            keys: Side::new(&[(trunk, keys)], device)?,
        };
        trunk += keys;
        branch += queries;
        Ok(block)
    };
    groups.iter().map(one).collect()
}
