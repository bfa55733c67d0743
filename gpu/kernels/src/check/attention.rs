//! Rotary positions with the write into the cache, and attention over it.

use half::bf16;
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::{GUARD, Report, compare, doubles, download, poisoned, random, upload};
use crate::error::{Error, Result};
use crate::launch::{self, Attention, BLOCK, Heads, Rope};
use crate::machine::{Machine, Memory};
use crate::reference;

const CONTEXT: usize = 512;

pub(super) fn check(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Vec<Report>> {
    Ok(vec![turned(gpu, rng)?, mixed(gpu, rng)?, copied(gpu, rng)?])
}

fn heads(heads: usize, kv_heads: usize, dim: usize) -> Heads {
    Heads { heads, kv_heads, dim }
}

fn turned(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let mut report = Report { kernel: "rope_and_cache", cases: 0, worst: 0.0 };
    for (rows, h, biased, normed) in [
        (1, heads(4, 2, 64), false, false),
        (5, heads(28, 4, 128), true, false),
        (3, heads(9, 3, 64), true, true),
        (7, heads(32, 8, 128), false, true),
    ] {
        // Changed in place: with the guard that `compare` asks for.
        let mut qkv = random(rng, rows * h.row(), 1.0);
        qkv.resize(qkv.len() + GUARD / 2, bf16::from_bits(0xffff));
        let (bias, norms) = (random(rng, h.row(), 1.0), random(rng, 2 * h.dim, 1.0));
        let tables = random(rng, 2 * CONTEXT * h.dim, 0.5);
        let positions: Vec<i32> = (0..rows).map(|_| rng.random_range(0..CONTEXT as i32)).collect();
        let blocks = rows + 2;
        let mut places: Vec<i32> = (0..(blocks * BLOCK) as i32).collect();
        places.shuffle(rng);
        places.truncate(rows);
        let on: Vec<Memory> = [&qkv, &bias, &norms, &tables]
            .map(|v| upload(gpu, v))
            .into_iter()
            .collect::<Result<_>>()?;
        let (on_positions, on_places) = (upload(gpu, &positions)?, upload(gpu, &places)?);
        let size = blocks * h.kv_heads * BLOCK * h.dim;
        let (keys, values) = (poisoned(gpu, size * 2)?, poisoned(gpu, size * 2)?);
        let rope = Rope {
            bias: if biased { on[1].address() } else { 0 },
            query_norm: if normed { on[2].address() } else { 0 },
            key_norm: if normed { on[2].address() + (h.dim * 2) as u64 } else { 0 },
            eps: 1e-6,
            cosines: on[3].address(),
            sines: on[3].address() + (CONTEXT * h.dim * 2) as u64,
        };
        // SAFETY: all addresses are of memory of the shapes named; the places are distinct.
        unsafe {
            let cache = (keys.address(), values.address());
            let (p, at) = (on_positions.address(), on_places.address());
            launch::rope_and_cache(gpu, on[0].address(), &rope, p, at, cache, rows, h)?;
        }
        let wanted = turned_rows(
            &qkv,
            biased.then_some(&bias[..]),
            normed.then_some(&norms[..]),
            &tables,
            &positions,
            h,
        );
        let shape = format!("{rows} rows, {h:?}, bias {biased}, norms {normed}");
        let bits: Vec<u16> = download(gpu, &on[0], rows * h.row())?;
        let worst = compare(gpu, report.kernel, &shape, &on[0], &wanted, 1e-2)?;
        cached(gpu, &shape, &bits, &places, (&keys, &values), h, size)?;
        report.worst = report.worst.max(worst);
        report.cases += 1;
    }
    Ok(report)
}

/// What the rows of the projection should become.
fn turned_rows(
    qkv: &[bf16],
    bias: Option<&[bf16]>,
    norms: Option<&[bf16]>,
    tables: &[bf16],
    positions: &[i32],
    h: Heads,
) -> Vec<f64> {
    let tables = doubles(tables);
    let mut wanted = Vec::with_capacity(positions.len() * h.row());
    for (row, &position) in positions.iter().enumerate() {
        for head in 0..h.heads + 2 * h.kv_heads {
            let from = row * h.row() + head * h.dim;
            let mut x = doubles(&qkv[from..from + h.dim]);
            if let Some(bias) = bias {
                x.iter_mut().zip(&bias[head * h.dim..]).for_each(|(x, b)| *x += b.to_f64());
            }
            let turns = head < h.heads + h.kv_heads;
            if let (Some(norms), true) = (norms, turns) {
                let side = if head < h.heads { 0 } else { h.dim };
                x = reference::rms_norm(&x, &doubles(&norms[side..side + h.dim]), 1e-6);
            }
            if turns {
                let at = position as usize * h.dim;
                let sines = &tables[CONTEXT * h.dim + at..][..h.dim];
                x = reference::rope(&x, &tables[at..at + h.dim], sines);
            }
            wanted.extend(x);
        }
    }
    wanted
}

/// The cache holds exactly the rows' keys and values, and poison elsewhere.
fn cached(
    gpu: &dyn Machine,
    shape: &str,
    qkv: &[u16],
    places: &[i32],
    (keys, values): (&Memory, &Memory),
    h: Heads,
    size: usize,
) -> Result<()> {
    for (side, memory) in [(0, keys), (1, values)] {
        let mut wanted = vec![0xffff_u16; size];
        for (row, &place) in places.iter().enumerate() {
            for kv in 0..h.kv_heads {
                let from = row * h.row() + (h.heads + side * h.kv_heads + kv) * h.dim;
                let (block, at) = (place as usize / BLOCK, place as usize % BLOCK);
                let to = ((block * h.kv_heads + kv) * BLOCK + at) * h.dim;
                wanted[to..to + h.dim].copy_from_slice(&qkv[from..from + h.dim]);
            }
        }
        if download::<u16>(gpu, memory, size)? != wanted {
            let problem = format!("{shape}: the cache differs");
            return Err(Error::Wrong { kernel: "rope_and_cache", problem });
        }
    }
    Ok(())
}

fn mixed(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let mut report = Report { kernel: "attend", cases: 0, worst: 0.0 };
    let shapes = [
        (heads(28, 4, 128), vec![2048_usize, 1, 255, 256, 257, 700], 0),
        (heads(9, 3, 64), vec![15, 16, 17, 1000], 0),
        (heads(32, 8, 128), vec![33], 3),
        (heads(16, 2, 64), vec![100, 31, 1, 250], 0),
        (heads(12, 1, 128), vec![300, 40], 1),
        (heads(4, 4, 64), vec![513], 0),
    ];
    for (h, lengths, spare) in shapes {
        let longest = lengths.iter().max().copied().unwrap_or(1);
        let width = longest.div_ceil(BLOCK) + spare;
        let blocks = lengths.len() * width + 3;
        // Blocks in random order; entries beyond the length stay at the dummy block 0.
        let mut free: Vec<i32> = (1..blocks as i32).collect();
        free.shuffle(rng);
        let mut tables = vec![0_i32; lengths.len() * width];
        let size = blocks * h.kv_heads * BLOCK * h.dim;
        let mut caches = [vec![bf16::NAN; size], vec![bf16::NAN; size]];
        let qkv = random(rng, lengths.len() * h.row(), 1.0);
        let mut wanted = Vec::new();
        for (row, &length) in lengths.iter().enumerate() {
            let own: Vec<i32> = (0..length.div_ceil(BLOCK)).filter_map(|_| free.pop()).collect();
            tables[row * width..][..own.len()].copy_from_slice(&own);
            let sides = [0, 1].map(|side| {
                let scale = if side == 0 { 3.0 } else { 1.0 };
                let flat = random(rng, length * h.kv_heads * h.dim, scale);
                for t in 0..length {
                    for kv in 0..h.kv_heads {
                        let block = own[t / BLOCK] as usize;
                        let to = ((block * h.kv_heads + kv) * BLOCK + t % BLOCK) * h.dim;
                        let from = (t * h.kv_heads + kv) * h.dim;
                        caches[side][to..to + h.dim].copy_from_slice(&flat[from..from + h.dim]);
                    }
                }
                doubles(&flat)
            });
            let q = doubles(&qkv[row * h.row()..][..h.heads * h.dim]);
            wanted.extend(reference::attend(&q, &sides[0], &sides[1], h));
        }
        let positions: Vec<i32> = lengths.iter().map(|&l| l as i32 - 1).collect();
        let splits = longest.div_ceil(launch::SPLIT);
        let scratch = gpu.alloc(launch::scratch(lengths.len(), h, splits) * 4)?;
        gpu.fill(&scratch, 0xff)?;
        let out = poisoned(gpu, lengths.len() * h.heads * h.dim * 2)?;
        let (on_qkv, on_tables) = (upload(gpu, &qkv)?, upload(gpu, &tables)?);
        let (keys, values) = (upload(gpu, &caches[0])?, upload(gpu, &caches[1])?);
        let on_positions = upload(gpu, &positions)?;
        let attention = Attention {
            qkv: on_qkv.address(),
            keys: keys.address(),
            values: values.address(),
            tables: on_tables.address(),
            table_width: width,
            positions: on_positions.address(),
            out: out.address(),
            scratch: scratch.address(),
        };
        // SAFETY: all addresses are of memory of the shapes named.
        unsafe { launch::attend(gpu, &attention, lengths.len(), splits, h)? };
        let shape = format!("{h:?}, lengths {lengths:?}");
        let worst = compare(gpu, report.kernel, &shape, &out, &wanted, 8e-3)?;
        report.worst = report.worst.max(worst);
        report.cases += 1;
    }
    Ok(report)
}

fn copied(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let (sides, blocks, size) = (6, 5, 3 * 16 * 64);
    let cache = random(rng, sides * blocks * size, 1.0);
    let on = upload(gpu, &cache)?;
    // SAFETY: the memory has that shape.
    unsafe { launch::copy_block(gpu, on.address(), (sides, blocks * size, size), 1, 3)? };
    let mut wanted: Vec<u16> = cache.iter().map(|v| v.to_bits()).collect();
    for side in 0..sides {
        let at = side * blocks * size;
        wanted.copy_within(at + size..at + 2 * size, at + 3 * size);
    }
    match download::<u16>(gpu, &on, wanted.len())? == wanted {
        true => Ok(Report { kernel: "copy_block", cases: 1, worst: 0.0 }),
        false => Err(Error::Wrong { kernel: "copy_block", problem: "the copy differs".into() }),
    }
}
