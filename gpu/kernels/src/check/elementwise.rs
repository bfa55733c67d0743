//! Norm, SwiGLU, embedding, and matrix times vector.

use half::bf16;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Report, compare, doubles, download, poisoned, random, upload};
use crate::error::Result;
use crate::launch::Tokens;
use crate::machine::Machine;
use crate::{launch, reference};

/// One rounding to bfloat16 of each output.
const ROUNDED: f64 = 4e-3;

pub(super) fn check(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Vec<Report>> {
    Ok(vec![norm(gpu, rng)?, gated(gpu, rng)?, embedding(gpu, rng)?, vector(gpu, rng)?])
}

fn norm(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let mut report = Report { kernel: "rms_norm", cases: 0, worst: 0.0 };
    for (rows, width, adds) in
        [(1, 8, false), (3, 584, true), (5, 3584, true), (2, 3592, false), (7, 8200, true)]
    {
        let (x, delta) = (random(rng, rows * width, 3.0), random(rng, rows * width, 2.0));
        let weight = random(rng, width, 1.0);
        let (on_x, on_delta, on_weight) =
            (upload(gpu, &x)?, upload(gpu, &delta)?, upload(gpu, &weight)?);
        let out = poisoned(gpu, rows * width * 2)?;
        let from = if adds { on_delta.address() } else { 0 };
        // SAFETY: all addresses are of memory of the shapes named.
        unsafe {
            let (x, weight, out) = (on_x.address(), on_weight.address(), out.address());
            launch::rms_norm(gpu, x, from, weight, out, rows, width, 1e-6)?;
        }
        let sum = |(a, b): (&bf16, &bf16)| bf16::from_f32(a.to_f32() + b.to_f32());
        let after: Vec<bf16> =
            if adds { x.iter().zip(&delta).map(sum).collect() } else { x.clone() };
        let mut wanted = Vec::new();
        for row in doubles(&after).chunks(width) {
            wanted.extend(reference::rms_norm(row, &doubles(&weight), 1e-6));
        }
        let shape = format!("[{rows}, {width}], delta {adds}");
        let worst = compare(gpu, report.kernel, &shape, &out, &wanted, ROUNDED)?;
        let bits: Vec<u16> = download(gpu, &on_x, rows * width)?;
        let same = bits.iter().zip(&after).all(|(&b, a)| b == a.to_bits());
        if !same {
            let problem = format!("{shape}: the sum in place is wrong");
            return Err(crate::Error::Wrong { kernel: report.kernel, problem });
        }
        report.worst = report.worst.max(worst);
        report.cases += 1;
    }
    Ok(report)
}

fn gated(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let mut report = Report { kernel: "swiglu", cases: 0, worst: 0.0 };
    for (rows, width) in [(1, 8), (3, 1544), (17, 18944)] {
        let both = random(rng, rows * 2 * width, 3.0);
        let (on, out) = (upload(gpu, &both)?, poisoned(gpu, rows * width * 2)?);
        // SAFETY: both addresses are of memory of the shapes named.
        unsafe { launch::swiglu(gpu, on.address(), out.address(), rows, width)? };
        let one =
            |row: &[bf16], i: usize| reference::swiglu(row[i].to_f64(), row[width + i].to_f64());
        let wanted: Vec<f64> = both
            .chunks(2 * width)
            .flat_map(|row| (0..width).map(|i| one(row, i)).collect::<Vec<_>>())
            .collect();
        let shape = format!("[{rows}, 2, {width}]");
        let worst = compare(gpu, report.kernel, &shape, &out, &wanted, 2.0 * ROUNDED)?;
        report.worst = report.worst.max(worst);
        report.cases += 1;
    }
    Ok(report)
}

fn embedding(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let mut report = Report { kernel: "embed", cases: 0, worst: 0.0 };
    for (rows, vocab, width) in [(1, 5, 8), (9, 300, 584)] {
        let table = random(rng, vocab * width, 1.0);
        let drawn: Vec<u32> = (0..rows).map(|_| rng.random_range(0..vocab as u32)).collect();
        let slots: Vec<i32> = (0..rows as i32).rev().collect();
        let given: Vec<i32> = (0..rows as i32).map(|r| if r % 3 == 0 { r } else { -1 }).collect();
        let on_table = upload(gpu, &table)?;
        let (on_given, on_slots, on_drawn) =
            (upload(gpu, &given)?, upload(gpu, &slots)?, upload(gpu, &drawn)?);
        let out = poisoned(gpu, rows * width * 2)?;
        let tokens = Tokens {
            given: on_given.address(),
            slots: on_slots.address(),
            drawn: on_drawn.address(),
        };
        // SAFETY: all addresses are of memory of the shapes named.
        unsafe { launch::embed(gpu, &tokens, on_table.address(), out.address(), rows, width)? };
        let mut wanted = Vec::new();
        for (&given, &slot) in given.iter().zip(&slots) {
            let token = if given < 0 { drawn[slot as usize] } else { given as u32 } as usize;
            wanted.extend(doubles(&table[token * width..][..width]));
        }
        let shape = format!("[{rows}] of [{vocab}, {width}]");
        report.worst = report.worst.max(compare(gpu, "embed", &shape, &out, &wanted, 0.0)?);
        report.cases += 1;
    }
    Ok(report)
}

fn vector(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Report> {
    let mut report = Report { kernel: "gemv", cases: 0, worst: 0.0 };
    for (rows, columns) in [(1, 8), (7, 264), (513, 3584), (64, 18944), (10, 1032)] {
        let (weight, x) = (random(rng, rows * columns, 1.0), random(rng, columns, 1.0));
        let (on_weight, on_x) = (upload(gpu, &weight)?, upload(gpu, &x)?);
        let x = doubles(&x);
        let wanted: Vec<f64> =
            weight.chunks(columns).map(|w| reference::dot(&doubles(w), &x)).collect();
        let out = poisoned(gpu, rows * 2)?;
        // SAFETY: all addresses are of memory of the shapes named.
        unsafe {
            let (w, x) = (on_weight.address(), on_x.address());
            launch::gemv(gpu, w, x, out.address(), rows, columns)?;
        }
        let shape = format!("[{rows}, {columns}]");
        report.worst =
            report.worst.max(compare(gpu, report.kernel, &shape, &out, &wanted, ROUNDED)?);
        report.cases += 1;
        if rows % 2 == 1 {
            continue;
        }
        let out = poisoned(gpu, rows)?;
        // SAFETY: the same matrix as two halves.
        unsafe {
            let (w, x) = (on_weight.address(), on_x.address());
            launch::gemv_swiglu(gpu, w, x, out.address(), rows / 2, columns)?;
        }
        let (gates, ups) = wanted.split_at(rows / 2);
        let wanted: Vec<f64> =
            gates.iter().zip(ups).map(|(&g, &u)| reference::swiglu(g, u)).collect();
        let worst = compare(gpu, "gemv_swiglu", &shape, &out, &wanted, 4.0 * ROUNDED)?;
        report.worst = report.worst.max(worst);
        report.cases += 1;
    }
    Ok(report)
}
