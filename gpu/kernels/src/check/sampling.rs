//! Draws: the token that the random number falls on, and its log-probabilities.

use half::bf16;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Report, download, poisoned, random, upload};
use crate::error::{Error, Result};
use crate::launch::{self, Draw, Drawn, Sampling};
use crate::machine::Machine;
use crate::reference::{self, Distribution};

/// How far float32 sums may move the border between two tokens, as a share of the mass.
const BORDER: f64 = 2e-4;

pub(super) fn check(gpu: &dyn Machine, rng: &mut ChaCha8Rng) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    for (kernel, float) in [("sample_bf16", false), ("sample_f32", true)] {
        let mut report = Report { kernel, cases: 0, worst: 0.0 };
        for (rows, vocab) in [(3, 97), (2, 2048), (9, 1500), (2, 49_152), (1, 152_064)] {
            for (temperature, top_k, top_p) in [
                (0.0, 0, 1.0),
                (1.0, 0, 1.0),
                (0.6, 20, 0.95),
                (0.8, 1, 1.0),
                (1.3, 1000, 0.9),
                (1.0, 0, 0.7),
                (0.7, 1400, 0.99),
            ] {
                let s = Sampling { temperature, top_k, top_p };
                report.worst = report.worst.max(one(gpu, rng, float, rows, vocab, &s)?);
                report.cases += 1;
            }
        }
        reports.push(report);
    }
    Ok(reports)
}

/// One batch of draws; answers the largest error of a log-probability.
fn one(
    gpu: &dyn Machine,
    rng: &mut ChaCha8Rng,
    float: bool,
    rows: usize,
    vocab: usize,
    s: &Sampling,
) -> Result<f64> {
    let logits = random(rng, rows * vocab, 4.0);
    let seeds: Vec<u64> = (0..rows).map(|_| rng.random()).collect();
    let indices: Vec<i32> = (0..rows).map(|_| rng.random_range(0..5000)).collect();
    let slots: Vec<i32> = (0..rows as i32).rev().collect();
    let on_logits = if float {
        upload(gpu, &logits.iter().map(|v| v.to_f32()).collect::<Vec<f32>>())?
    } else {
        upload(gpu, &logits)?
    };
    let (on_seeds, on_indices, on_slots) =
        (upload(gpu, &seeds)?, upload(gpu, &indices)?, upload(gpu, &slots)?);
    let (tokens, out) = (poisoned(gpu, rows * 4)?, poisoned(gpu, rows * 16)?);
    let draw = Draw {
        logits: on_logits.address(),
        float,
        seeds: on_seeds.address(),
        indices: on_indices.address(),
        slots: on_slots.address(),
        tokens: tokens.address(),
        out: out.address(),
    };
    // SAFETY: all addresses are of memory of the shapes named.
    unsafe { launch::sample(gpu, &draw, s, rows, vocab)? };
    let drawn: Vec<Drawn> = download(gpu, &out, rows)?;
    let tokens: Vec<u32> = download(gpu, &tokens, rows)?;
    let mut worst = 0.0_f64;
    for (row, d) in drawn.iter().enumerate() {
        let scores: Vec<f64> =
            logits[row * vocab..][..vocab].iter().copied().map(bf16::to_f64).collect();
        let u = reference::uniform(seeds[row], indices[row] as u32);
        let error = judge(&reference::distribution(&scores, s), d, s, u, vocab);
        let error = error.and_then(|e| match tokens[slots[row] as usize] == d.token {
            true => Ok(e),
            false => Err("the token for the next step is another".into()),
        });
        worst = worst.max(error.map_err(|problem| {
            let kernel = if float { "sample_f32" } else { "sample_bf16" };
            let problem = format!("row {row} of [{rows}, {vocab}], {s:?}: {problem}");
            Error::Wrong { kernel, problem }
        })?);
    }
    Ok(worst)
}

fn judge(
    wanted: &Distribution,
    drawn: &Drawn,
    s: &Sampling,
    u: f64,
    vocab: usize,
) -> std::result::Result<f64, String> {
    let Some(at) = wanted.kept.iter().position(|&t| t == drawn.token) else {
        return Err(format!("{drawn:?} is not among the {} kept", wanted.kept.len()));
    };
    // Few candidates are walked best first; many, also where they tie or sit in few threads, in
    // order of id.
    let best_first = s.top_k > 0 && s.top_k <= 1024 && s.top_k < vocab;
    let ways = if best_first { &[true, false][..] } else { &[false] };
    let lands = |&best_first: &bool| {
        let before = |i: usize| match best_first {
            true => i < at,
            false => wanted.kept[i] < drawn.token,
        };
        let shares = (0..wanted.kept.len()).filter(|&i| before(i)).map(|i| wanted.share[i]);
        let start: f64 = shares.sum();
        (start - BORDER..start + wanted.share[at] + BORDER).contains(&u)
    };
    if s.temperature > 0.0 && !ways.iter().any(lands) {
        return Err(format!("{drawn:?} is not where {u:.6} falls"));
    }
    let raw = (f64::from(drawn.logprob) - wanted.logprob[at]).abs();
    let cut = (f64::from(drawn.truncated) - wanted.share[at].ln()).abs();
    // NaN fails both comparisons.
    match raw < 1e-3 && cut < 1e-3 {
        true => Ok(raw.max(cut)),
        false => Err(format!("{drawn:?} has log-probs off by {raw:.2e} and {cut:.2e}")),
    }
}
