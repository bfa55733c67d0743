//! What training computes between its matrix products.

use half::bf16;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{GUARD, Report, compare, doubles, download, poisoned, random, upload};
use crate::error::{Error, Result};
use crate::launch::{self, AdamW, Angles, Heads, Scored, State};
use crate::machine::{Machine, Memory};
use crate::reference;

/// One rounding to bfloat16 of each output.
const ROUNDED: f64 = 4e-3;
/// Sums of float32 numbers.
const SUMMED: f64 = 1e-4;

pub(super) fn check(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Vec<Report>> {
    Ok(vec![gated(gpu, rng)?, turned(gpu, rng)?, scored(gpu, rng)?, stepped(gpu, rng)?])
}

/// Numbers that a kernel changes in place, with the guard that `compare` asks for.
fn guarded(gpu: &dyn Machine, values: &[bf16]) -> Result<Memory> {
    let mut values = values.to_vec();
    values.resize(values.len() + GUARD / 2, bf16::from_bits(0xffff));
    upload(gpu, &values)
}

fn gated(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let mut report = Report { kernel: "swiglu_back", cases: 0, worst: 0.0 };
    for (rows, width) in [(1, 8), (3, 1544), (5, 18944)] {
        let (both, grad) = (random(rng, rows * 2 * width, 3.0), random(rng, rows * width, 1.0));
        let (on, on_grad) = (guarded(gpu, &both)?, upload(gpu, &grad)?);
        // SAFETY: both addresses are of memory of the shapes named.
        unsafe { launch::swiglu_back(gpu, on.address(), on_grad.address(), rows, width)? };
        let mut wanted = Vec::with_capacity(both.len());
        for (row, grad) in both.chunks(2 * width).zip(grad.chunks(width)) {
            let (row, grad) = (doubles(row), doubles(grad));
            let one = |i: usize| reference::swiglu_back(row[i], row[width + i], grad[i]);
            wanted.extend((0..width).map(|i| one(i).0));
            wanted.extend((0..width).map(|i| one(i).1));
        }
        let shape = format!("[{rows}, 2, {width}]");
        report.worst =
            report.worst.max(compare(gpu, report.kernel, &shape, &on, &wanted, ROUNDED)?);
        report.cases += 1;
    }
    Ok(report)
}

fn turned(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let mut report = Report { kernel: "rotate", cases: 0, worst: 0.0 };
    for (rows, heads, kv_heads, dim) in [(1, 2, 1, 16), (5, 28, 4, 128), (3, 9, 3, 64)] {
        let h = Heads { heads, kv_heads, dim };
        let (cosines, mut sines) = (random(rng, rows * dim, 0.7), random(rng, rows * dim, 0.7));
        for row in sines.chunks_mut(dim) {
            let (first, second) = row.split_at_mut(dim / 2);
            second.iter_mut().zip(first).for_each(|(s, f)| *s = -*f);
        }
        let (on_cosines, on_sines) = (upload(gpu, &cosines)?, upload(gpu, &sines)?);
        let angles = Angles { cosines: on_cosines.address(), sines: on_sines.address() };
        let (cosines, sines) = (doubles(&cosines), doubles(&sines));
        let qkv = random(rng, rows * h.row(), 1.0);
        let on = guarded(gpu, &qkv)?;
        // SAFETY: all addresses are of memory of the shapes named.
        unsafe { launch::rotate(gpu, on.address(), angles, rows, h)? };
        let head_of = |i: usize| i % (heads + 2 * kv_heads);
        let turn = |x: &[bf16], back: bool| -> Vec<f64> {
            let one = |(i, x): (usize, &[bf16])| {
                let (x, at) = (doubles(x), i / (heads + 2 * kv_heads) * dim);
                let (cosines, sines) = (&cosines[at..at + dim], &sines[at..at + dim]);
                match (head_of(i) < heads + kv_heads, back) {
                    (false, _) => x,
                    (true, false) => reference::rope(&x, cosines, sines),
                    (true, true) => reference::rope_back(&x, cosines, sines),
                }
            };
            x.chunks(dim).enumerate().flat_map(one).collect()
        };
        let shape = format!("{rows} rows, {h:?}");
        let worst = compare(gpu, "rotate", &shape, &on, &turn(&qkv, false), 2.0 * ROUNDED)?;
        report.worst = report.worst.max(worst);

        // The same numbers, taken apart, as gradients.
        let part = |wanted: std::ops::Range<usize>| -> Vec<bf16> {
            let heads = qkv.chunks(dim).enumerate();
            heads
                .filter(|(i, _)| wanted.contains(&head_of(*i)))
                .flat_map(|(_, x)| x.to_vec())
                .collect()
        };
        let (end, all) = (heads + kv_heads, heads + 2 * kv_heads);
        let parts = [part(0..heads), part(heads..end), part(end..all)].map(|p| upload(gpu, &p));
        let [dq, dk, dv] = parts;
        let (dq, dk, dv) = (dq?, dk?, dv?);
        let out = poisoned(gpu, rows * h.row() * 2)?;
        // SAFETY: all addresses are of memory of the shapes named.
        unsafe {
            let grads = [dq.address(), dk.address(), dv.address()];
            launch::rotate_back(gpu, grads, angles, out.address(), rows, h)?;
        }
        let worst = compare(gpu, "rotate_back", &shape, &out, &turn(&qkv, true), 2.0 * ROUNDED)?;
        report.worst = report.worst.max(worst);
        report.cases += 1;
    }
    Ok(report)
}

/// Numbers beside what they should be.
fn close(kernel: &'static str, what: &str, found: &[f32], wanted: &[f64], by: f64) -> Result<f64> {
    let mut worst = 0.0_f64;
    for (i, (&f, &w)) in found.iter().zip(wanted).enumerate() {
        let apart = (f64::from(f) - w).abs() / w.abs().max(1.0);
        if apart.is_nan() || apart > by {
            let problem = format!("{what} {i} is {f}, not {w}");
            return Err(Error::Wrong { kernel, problem });
        }
        worst = worst.max(apart);
    }
    Ok(worst)
}

/// The gradient of a row's scores, given that of the target's log-probability and of the entropy, and the
/// entropy.
fn by_logits(
    logp: &[f64],
    target: i64,
    (c, e, entropy): (f64, f64, f64),
) -> impl Iterator<Item = f64> {
    logp.iter().enumerate().map(move |(i, l)| {
        let hit = if target == i as i64 { c } else { 0.0 };
        hit - l.exp() * (c + e * (l + entropy))
    })
}

fn scored(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let mut report = Report { kernel: "score", cases: 0, worst: 0.0 };
    for (rows, vocab, divisor) in
        [(1, 8, 1.0_f32), (3, 1000, 0.7), (2, 8200, 1.0), (2, 32_776, 1.3)]
    {
        let logits = random(rng, rows * vocab, 6.0);
        let targets: Vec<i64> = (0..rows).map(|_| rng.random_range(0..vocab as i64)).collect();
        let (on, on_targets) = (guarded(gpu, &logits)?, upload(gpu, &targets)?);
        let floats = || poisoned(gpu, rows * 4);
        let (sums, chosen, entropies, best) =
            (floats()?, floats()?, floats()?, poisoned(gpu, rows * 8)?);
        let scored = Scored {
            targets: on_targets.address(),
            sums: sums.address(),
            entropies: entropies.address(),
        };
        // SAFETY: all addresses are of memory of the shapes named.
        unsafe {
            let to = (chosen.address(), best.address());
            launch::score(gpu, on.address(), divisor, scored, to, rows, vocab)?;
        }
        let mut wanted: [Vec<f64>; 3] = Default::default();
        let found_best: Vec<i64> = download(gpu, &best, rows)?;
        let logps: Vec<Vec<f64>> = logits
            .chunks(vocab)
            .map(|row| {
                let (logp, sum) = reference::log_softmax(&doubles(row), f64::from(divisor));
                wanted[0].push(sum);
                logp
            })
            .collect();
        for ((logp, &target), &best) in logps.iter().zip(&targets).zip(&found_best) {
            wanted[1].push(logp[target as usize]);
            wanted[2].push(-logp.iter().map(|l| l.exp() * l).sum::<f64>());
            let most = logp.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if logp.iter().position(|&l| l == most) != Some(best as usize) {
                let problem = format!("the best of {vocab} is not {best}");
                return Err(Error::Wrong { kernel: "score", problem });
            }
        }
        for (what, memory, wanted) in [
            ("sum", &sums, &wanted[0]),
            ("log-prob", &chosen, &wanted[1]),
            ("entropy", &entropies, &wanted[2]),
        ] {
            let found: Vec<f32> = download(gpu, memory, rows)?;
            report.worst = report.worst.max(close("score", what, &found, wanted, SUMMED)?);
        }
        let by: Vec<f32> = (0..2 * rows).map(|_| rng.random::<f32>() - 0.5).collect();
        let (by_chosen, by_entropy) = by.split_at(rows);
        let (on_chosen, on_entropy) = (upload(gpu, by_chosen)?, upload(gpu, by_entropy)?);
        let entropic = rows % 2 == 1;
        // SAFETY: all addresses are of memory of the shapes named.
        unsafe {
            let by = (on_chosen.address(), if entropic { on_entropy.address() } else { 0 });
            launch::score_back(gpu, on.address(), divisor, scored, by, rows, vocab)?;
        }
        let mut back = Vec::with_capacity(rows * vocab);
        for (r, logp) in logps.iter().enumerate() {
            let e = if entropic { f64::from(by_entropy[r]) } else { 0.0 };
            let by = (f64::from(by_chosen[r]), e, wanted[2][r]);
            back.extend(by_logits(logp, targets[r], by).map(|g| g / f64::from(divisor)));
        }
        let shape = format!("[{rows}, {vocab}] / {divisor}");
        let worst = compare(gpu, "score_back", &shape, &on, &back, ROUNDED)?;
        report.worst = report.worst.max(worst);
        report.cases += 1;
    }
    Ok(report)
}

fn stepped(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let mut report = Report { kernel: "adamw", cases: 0, worst: 0.0 };
    let adam =
        AdamW { rate: 1e-2, beta1: 0.9, beta2: 0.99, eps: 1e-8, decay: 0.1, scale: 3.0, step: 4 };
    // `from`: buffers that do not begin where 16 bytes can be read at once.
    for (n, from) in [(1, 0), (1030, 0), (4099, 1), (70_000, 4)] {
        let mut draw = |scale: f32| -> Vec<f32> {
            (0..n + from).map(|_| (rng.random::<f32>() - 0.5) * scale).collect()
        };
        let (weights, grad, m, mut v) = (draw(2.0), draw(1.0), draw(0.1), draw(0.01));
        v.iter_mut().for_each(|v| *v = v.abs());
        let high: Vec<u16> =
            weights.iter().map(|w| (w.to_bits().wrapping_add(0x8000) >> 16) as u16).collect();
        let low: Vec<u16> = weights.iter().map(|w| w.to_bits() as u16).collect();
        let (on_high, on_low) = (upload(gpu, &high)?, upload(gpu, &low)?);
        let (on_grad, on_m, on_v) = (upload(gpu, &grad)?, upload(gpu, &m)?, upload(gpu, &v)?);
        let at = |memory: &Memory, size: usize| memory.address() + (from * size) as u64;
        let state =
            State { high: at(&on_high, 2), low: at(&on_low, 2), m: at(&on_m, 4), v: at(&on_v, 4) };
        // SAFETY: all addresses are of memory of `n` elements from `from` on.
        unsafe { launch::adamw(gpu, state, at(&on_grad, 4), n, &adam)? };
        let (new_high, new_low): (Vec<u16>, Vec<u16>) =
            (download(gpu, &on_high, n + from)?, download(gpu, &on_low, n + from)?);
        let join = |i: usize| {
            let low = i32::from(new_low[i] as i16) as u32;
            f32::from_bits((u32::from(new_high[i]) << 16).wrapping_add(low))
        };
        let joined: Vec<f32> = (0..n + from).map(join).collect();
        if joined[..from] != weights[..from] {
            let problem = "changed what stands before its part".into();
            return Err(Error::Wrong { kernel: "adamw", problem });
        }
        let mut wanted: [Vec<f64>; 3] = Default::default();
        for i in from..n + from {
            let one = [weights[i], grad[i], m[i], v[i]].map(f64::from);
            let stepped = reference::adamw(one, &adam);
            wanted.iter_mut().zip(stepped).for_each(|(list, x)| list.push(x));
        }
        let (new_m, new_v): (Vec<f32>, Vec<f32>) =
            (download(gpu, &on_m, n + from)?, download(gpu, &on_v, n + from)?);
        for (what, found, wanted) in [
            ("weight", &joined, &wanted[0]),
            ("first moment", &new_m, &wanted[1]),
            ("second moment", &new_v, &wanted[2]),
        ] {
            let worst = close("adamw", what, &found[from..], wanted, 1e-6)?;
            report.worst = report.worst.max(worst);
        }
        report.cases += 1;
    }
    Ok(report)
}
