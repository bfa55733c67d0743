//! How much faster a kernel is than its reference, from recorded times alone.

use crate::config::Rules;
use crate::outcome::{Sides, Times, Timing};

/// Shorter references are not ranked: one launch costs about as much.
const TOO_SMALL_GRAPH_NS: f64 = 3_000.0;
const TOO_SMALL_EAGER_NS: f64 = 20_000.0;

/// A speed-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Reference time over kernel time.
    pub ratio: f64,
    /// A 95 % confidence interval of the median of the turns' ratios.
    pub interval: (f64, f64),
    /// From times of the work alone, without its launches.
    pub graph: bool,
    /// The task is too small for the ratio to mean anything.
    pub too_small: bool,
}

/// The speed-up under `profile`; none where no times were taken. Paper: means of the first three
/// calls. Strict: the median over turns of the ratio of the turn's medians, so that a drift of the
/// clocks hits both sides alike.
pub fn speed(timing: &Timing, profile: Rules) -> Option<Speed> {
    let Timing::Taken(times) = timing else { return None };
    match profile {
        Rules::Paper => paper(&times.eager),
        Rules::Strict => strict(times),
    }
}

fn paper(sides: &Sides) -> Option<Speed> {
    let mean = |times: &[u64]| {
        let first = times.get(..3)?;
        Some(first.iter().sum::<u64>() as f64 / 3.0)
    };
    let (reference, candidate) = (mean(&sides.reference_ns)?, mean(&sides.candidate_ns)?);
    let ratio = reference / candidate;
    let too_small = reference < TOO_SMALL_EAGER_NS;
    ratio.is_finite().then_some(Speed { ratio, interval: (ratio, ratio), graph: false, too_small })
}

fn strict(times: &Times) -> Option<Speed> {
    let sides = times.graph.as_ref().unwrap_or(&times.eager);
    let mut ratios = ratios(sides, times.calls);
    ratios.sort_unstable_by(f64::total_cmp);
    let ratio = middle(&ratios)?;
    let (low, high) = interval(&ratios)?;
    let least = if times.graph.is_some() { TOO_SMALL_GRAPH_NS } else { TOO_SMALL_EAGER_NS };
    Some(Speed {
        ratio,
        interval: (low, high),
        graph: times.graph.is_some(),
        too_small: median(&sides.reference_ns)? < least,
    })
}

/// Reference over candidate for each turn.
pub fn ratios(sides: &Sides, calls: u32) -> Vec<f64> {
    let calls = (calls as usize).max(1);
    let turns = sides.reference_ns.chunks_exact(calls).zip(sides.candidate_ns.chunks_exact(calls));
    let ratio =
        |(reference, candidate): (&[u64], &[u64])| Some(median(reference)? / median(candidate)?);
    turns.filter_map(ratio).filter(|ratio| ratio.is_finite()).collect()
}

/// A 95 % confidence interval of the median of sorted values, free of any distribution: the k-th
/// smallest and largest, where fewer than k of n fair coins fall on one side in at most 2.5 % of
/// cases. With less than six values it is their range.
pub fn interval(sorted: &[f64]) -> Option<(f64, f64)> {
    let n = sorted.len();
    let mut chance = 0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let (mut below, mut k) = (chance, 0);
    while below <= 0.025 && k + 1 < n.div_ceil(2) {
        chance *= (n - k) as f64 / (k + 1) as f64;
        below += chance;
        k += 1;
    }
    let k = k.max(1);
    Some((*sorted.get(k - 1)?, *sorted.get(n.checked_sub(k)?)?))
}

/// The middle of unsorted times; none of none.
pub fn median(times: &[u64]) -> Option<f64> {
    let mut sorted: Vec<f64> = times.iter().map(|ns| *ns as f64).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    middle(&sorted)
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    Some((sorted[last / 2] + sorted[sorted.len() / 2]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(reference: u64, candidate: u64) -> Sides {
        Sides { reference_ns: vec![reference; 30], candidate_ns: vec![candidate; 30] }
    }

    #[test]
    fn an_outlier_moves_only_the_paper_mean() {
        let mut eager = sides(300_000, 100_000);
        eager.candidate_ns[1] = 10_000_000;
        let timing = Timing::Taken(Times { calls: 3, eager, graph: None });
        assert!(speed(&timing, Rules::Paper).unwrap().ratio < 0.1);
        let strict = speed(&timing, Rules::Strict).unwrap();
        assert_eq!((strict.ratio, strict.interval), (3.0, (3.0, 3.0)));
        assert!(!strict.graph && !strict.too_small);
    }

    #[test]
    fn a_drift_of_the_clocks_cancels() {
        let eager = Sides {
            reference_ns: (0..30).map(|i| 200_000 + 10_000 * (i / 3)).collect(),
            candidate_ns: (0..30).map(|i| 100_000 + 5_000 * (i / 3)).collect(),
        };
        let timing = Timing::Taken(Times { calls: 3, eager, graph: None });
        assert_eq!(speed(&timing, Rules::Strict).unwrap().interval, (2.0, 2.0));
    }

    #[test]
    fn short_tasks_are_ranked_by_replays_and_the_smallest_not_at_all() {
        let timing = |graph| Timing::Taken(Times { calls: 3, eager: sides(30_000, 30_000), graph });
        let replayed = speed(&timing(Some(sides(8_000, 4_000))), Rules::Strict).unwrap();
        assert!(replayed.graph && !replayed.too_small && replayed.ratio == 2.0);
        assert!(speed(&timing(Some(sides(900, 800))), Rules::Strict).unwrap().too_small);
        assert_eq!(speed(&timing(None), Rules::Strict).unwrap().ratio, 1.0);
        assert_eq!(speed(&Timing::NotTaken, Rules::Strict), None);
    }

    #[test]
    fn intervals_are_those_of_the_binomial_table() {
        let values = |n: u32| (1..=n).map(f64::from).collect::<Vec<_>>();
        assert_eq!(interval(&values(10)), Some((2.0, 9.0)));
        assert_eq!(interval(&values(20)), Some((6.0, 15.0)));
        assert_eq!(interval(&values(30)), Some((10.0, 21.0)));
        assert_eq!(interval(&values(5)), Some((1.0, 5.0)));
        assert_eq!(interval(&[]), None);
    }
}
