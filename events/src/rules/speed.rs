//! How much faster a kernel is than its reference, from recorded times alone.

use crate::config::Rules;
use crate::outcome::{Sides, Times, Timing};

/// References whose work is shorter are not ranked: an empty kernel takes a third of that.
const TOO_SMALL_WORK_NS: f64 = 10_000.0;
/// Nor shorter ones in calls as anyone makes them, whose launches cost about as much.
const TOO_SMALL_CALL_NS: f64 = 20_000.0;
/// Nor shorter ones that wait for the device in their calls: how soon a process goes on after that
/// depends on what else the host does.
const TOO_SMALL_WAITING_NS: f64 = 1_000_000.0;
/// How much a median differs from one process to the next: a part that is as long for every kernel,
/// and a share. Standard deviations that held for 37 kernels of 4 to 120 us in nine processes each on
/// an H200; kernels in one launch differ by half as much, tasks of several launches by this much.
const BETWEEN_NS: f64 = 160.0;
const BETWEEN_SHARE: f64 = 0.008;
/// Standard deviations on each side of a 95 % interval.
const NORMAL_95: f64 = 1.96;

/// A speed-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Reference time over kernel time.
    pub ratio: f64,
    /// A 95 % confidence interval of the median ratio, over processes too: what another judgement of
    /// the same kernel finds. Of calls as anyone makes them (the paper's profile, and tasks that wait
    /// for the device) the range of what was seen, since what the host does has no such interval.
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
    let (first, second) = (sides.reference_ns.get(..3)?, sides.candidate_ns.get(..3)?);
    let mean = |times: &[u64]| times.iter().sum::<u64>() as f64 / 3.0;
    let span = |times: &[u64]| {
        times.iter().fold((f64::INFINITY, 0f64), |(low, high), ns| {
            (low.min(*ns as f64), high.max(*ns as f64))
        })
    };
    let (reference, candidate) = (span(first), span(second));
    let ratio = mean(first) / mean(second);
    let interval = (reference.0 / candidate.1, reference.1 / candidate.0);
    let too_small = mean(first) < TOO_SMALL_CALL_NS;
    ratio.is_finite().then_some(Speed { ratio, interval, graph: false, too_small })
}

fn strict(times: &Times) -> Option<Speed> {
    let Some(work) = &times.graph else { return waiting(&times.eager, times.calls) };
    let (ratio, (low, high)) = within(work, times.calls)?;
    let reference = median(&work.reference_ns)?;
    let between = between_processes(work)?;
    let wider = |bound: f64| (bound / ratio).ln().hypot(between).exp();
    let interval = (ratio / wider(low), ratio * wider(high));
    Some(Speed { ratio, interval, graph: true, too_small: reference < TOO_SMALL_WORK_NS })
}

fn waiting(sides: &Sides, calls: u32) -> Option<Speed> {
    let (ratio, _) = within(sides, calls)?;
    let seen = ratios(sides, calls);
    let low = seen.iter().copied().fold(f64::INFINITY, f64::min);
    let high = seen.iter().copied().fold(0.0, f64::max);
    let too_small = median(&sides.reference_ns)? < TOO_SMALL_WAITING_NS;
    Some(Speed { ratio, interval: (low, high), graph: false, too_small })
}

/// Half the width of a 95 % interval of the ratio from one process to the next, relative to it; none
/// without times. No measurement within one process says more, however long it is.
pub fn between_processes(sides: &Sides) -> Option<f64> {
    let [reference, candidate] = [&sides.reference_ns, &sides.candidate_ns].map(|ns| median(ns));
    Some(NORMAL_95 * between(reference?).hypot(between(candidate?)))
}

/// The standard deviation of a median of `ns` from one process to the next, relative to it.
fn between(ns: f64) -> f64 {
    (BETWEEN_NS / ns).hypot(BETWEEN_SHARE)
}

/// The median over turns of the ratio of a turn's medians, and its 95 % confidence interval within
/// this one measurement.
pub fn within(sides: &Sides, calls: u32) -> Option<(f64, (f64, f64))> {
    let mut ratios = ratios(sides, calls);
    ratios.sort_unstable_by(f64::total_cmp);
    Some((middle(&ratios)?, interval(&ratios)?))
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
        let timing = Timing::Taken(Box::new(Times { calls: 3, eager, graph: None }));
        let paper = speed(&timing, Rules::Paper).unwrap();
        assert!(paper.ratio < 0.1 && paper.interval == (0.03, 3.0), "{paper:?}");
        let strict = speed(&timing, Rules::Strict).unwrap();
        assert_eq!(strict.ratio, 3.0);
        assert!(!strict.graph);
    }

    #[test]
    fn a_drift_of_the_clocks_cancels() {
        let eager = Sides {
            reference_ns: (0..30).map(|i| 200_000 + 10_000 * (i / 3)).collect(),
            candidate_ns: (0..30).map(|i| 100_000 + 5_000 * (i / 3)).collect(),
        };
        let timing = Timing::Taken(Box::new(Times { calls: 3, eager, graph: None }));
        let Timing::Taken(times) = &timing else { unreachable!() };
        assert_eq!(within(&times.eager, 3), Some((2.0, (2.0, 2.0))));
        // Another process would find another median, the more so the shorter the kernel.
        let alone = |ns: u64| {
            let graph = Some(sides(2 * ns, ns));
            Timing::Taken(Box::new(Times { graph, ..(**times).clone() }))
        };
        let of = |ns: u64| speed(&alone(ns), Rules::Strict).unwrap().interval;
        let ((low, high), (lower, higher)) = (of(100_000), of(10_000));
        assert!(low > 1.95 && low < 1.96 && high > 2.04 && high < 2.05, "{low} {high}");
        assert!(lower < low && higher > high, "{lower} {higher}");
    }

    #[test]
    fn small_tasks_are_not_ranked() {
        let eager = || sides(30_000, 30_000);
        let timing = |graph| Timing::Taken(Box::new(Times { calls: 3, eager: eager(), graph }));
        let alone = speed(&timing(Some(sides(18_000, 9_000))), Rules::Strict).unwrap();
        assert!(alone.graph && !alone.too_small && alone.ratio == 2.0);
        assert!(speed(&timing(Some(sides(9_000, 8_000))), Rules::Strict).unwrap().too_small);
        let waiting = speed(&timing(None), Rules::Strict).unwrap();
        assert!(waiting.ratio == 1.0 && waiting.too_small && !waiting.graph);
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
