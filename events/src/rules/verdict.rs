//! Two verdicts from one measurement: `paper` (a flat tolerance) and `strict` (scaled to the
//! reference and its dtype, on all trials).

use crate::config::Rules;
use crate::event::Verdict;
use crate::outcome::{Execution, FailureKind, Measurement, OutputStats, TaskFault, Timing, Trial};

/// The paper's absolute and relative tolerance.
pub const PAPER_TOLERANCE: f64 = 1e-2;

/// What `profile` says of `measurement`. `None`: the kernel was not run (no device), so there is
/// nothing to say, and the world is to blame.
pub fn verdict(measurement: &Measurement, profile: Rules) -> Option<Verdict> {
    match &measurement.execution {
        Execution::Failed(failure) => Some(Verdict::Failed(failure.kind)),
        Execution::TaskAtFault(fault, _) => Some(Verdict::TaskRefused(*fault)),
        Execution::NoDevice => None,
        Execution::Ran { launches: 0, .. } => Some(Verdict::Failed(FailureKind::Impure)),
        Execution::Ran { trials, timing, .. } => Some(values(trials, timing, profile)),
    }
}

fn values(trials: &[Trial], timing: &Timing, profile: Rules) -> Verdict {
    let looked_at = match profile {
        Rules::Paper => &trials[..trials.len().min(1)],
        Rules::Strict if degenerate(trials) => return Verdict::TaskRefused(TaskFault::Degenerate),
        Rules::Strict => trials,
    };
    for (trial, observed) in (0u32..).zip(looked_at) {
        for (output, stats) in (0u32..).zip(&observed.outputs) {
            if !within(stats, profile) {
                return Verdict::WrongValue { trial, output };
            }
        }
    }
    Verdict::Correct { speedup: speedup(timing, profile) }
}

/// Constant outputs on every trial: any constant would be right.
fn degenerate(trials: &[Trial]) -> bool {
    let mut outputs = trials.iter().flat_map(|trial| &trial.outputs).peekable();
    outputs.peek().is_none()
        || outputs.all(|o| o.elements == 0 || (o.elements > 1 && o.spread_reference == 0.0))
}

/// Whether one output is right.
fn within(stats: &OutputStats, profile: Rules) -> bool {
    if stats.nonfinite_mismatches > 0 || stats.exact_mismatches > 0 {
        return false;
    }
    match profile {
        Rules::Paper => stats
            .hull
            .iter()
            .all(|(reference, error)| *error <= PAPER_TOLERANCE + PAPER_TOLERANCE * reference),
        Rules::Strict => {
            let worst = stats.hull.iter().map(|(_, error)| *error).fold(0.0, f64::max);
            worst <= scaled_tolerance(&stats.dtype) * stats.max_reference
        }
    }
}

/// Largest error relative to the output's largest magnitude, by dtype.
pub fn scaled_tolerance(dtype: &str) -> f64 {
    match dtype {
        "float64" => 1e-7,
        "float32" => 2e-4,
        "float16" => 2e-3,
        "bfloat16" => 1.6e-2,
        _ => 0.0,
    }
}

/// Reference time over kernel time: means of the first three (paper) or medians (strict).
fn speedup(timing: &Timing, profile: Rules) -> Option<f64> {
    let Timing::Taken { candidate_ns, reference_ns } = timing else { return None };
    let centre = |times: &[u64]| match profile {
        Rules::Paper => {
            let first = &times[..times.len().min(3)];
            first.iter().sum::<u64>() as f64 / first.len() as f64
        }
        Rules::Strict => {
            let mut sorted = times.to_vec();
            sorted.sort_unstable();
            (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) as f64 / 2.0
        }
    };
    if candidate_ns.is_empty() || reference_ns.is_empty() {
        return None;
    }
    let ratio = centre(reference_ns) / centre(candidate_ns);
    ratio.is_finite().then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(max_reference: f64, hull: Vec<(f64, f64)>, launches: u32) -> Measurement {
        let stats = OutputStats {
            dtype: "float32".into(),
            elements: 16,
            nonfinite_mismatches: 0,
            nonfinite_reference: 0,
            exact_mismatches: 0,
            max_reference,
            spread_reference: max_reference / 2.0,
            hull,
        };
        Measurement {
            execution: Execution::Ran {
                trials: vec![Trial { seed: 1, outputs: vec![stats] }],
                launches,
                timing: Timing::Taken {
                    candidate_ns: vec![10, 10, 10, 1000],
                    reference_ns: vec![30, 30, 30, 30],
                },
            },
            layers: vec![],
            device: "cpu-interpreter".into(),
            wall_ms: 1,
        }
    }

    #[test]
    fn zeros_for_a_small_output_fool_only_the_flat_tolerance() {
        let zeros = measured(5e-5, vec![(5e-5, 5e-5)], 1);
        assert!(verdict(&zeros, Rules::Paper).unwrap().is_correct());
        assert_eq!(
            verdict(&zeros, Rules::Strict),
            Some(Verdict::WrongValue { trial: 0, output: 0 })
        );
    }

    #[test]
    fn speed_is_a_mean_of_three_or_a_median() {
        let right = measured(1.0, vec![(1.0, 1e-7)], 1);
        for profile in [Rules::Paper, Rules::Strict] {
            assert_eq!(verdict(&right, profile), Some(Verdict::Correct { speedup: Some(3.0) }));
        }
    }

    #[test]
    fn an_own_kernel_must_have_run() {
        let none = measured(1.0, vec![(1.0, 0.0)], 0);
        assert_eq!(verdict(&none, Rules::Paper), Some(Verdict::Failed(FailureKind::Impure)));
    }
}
