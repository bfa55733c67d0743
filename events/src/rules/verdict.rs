//! Two verdicts from one measurement: `paper` (a flat tolerance) and `strict` (scaled to the
//! reference and its dtype, on all trials).

use crate::config::Rules;
use crate::event::Verdict;
use crate::outcome::{Execution, FailureKind, Measurement, OutputStats, TaskFault, Timing, Trial};
use crate::rules::speed::speed;

/// What a measurement calls the device of Triton's interpreter.
pub const CPU: &str = "cpu-interpreter";

/// The paper's absolute and relative tolerance.
pub const PAPER_TOLERANCE: f64 = 1e-2;

/// How much error is allowed. A run has [`Tolerance::USUAL`]; `rescore` may ask for another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Absolute and relative tolerance of the paper's profile.
    pub flat: f64,
    /// What the strict profile's tolerances are multiplied by.
    pub scale: f64,
}

impl Tolerance {
    /// What runs are judged by.
    pub const USUAL: Self = Self { flat: PAPER_TOLERANCE, scale: 1.0 };
}

/// What `profile` says of `measurement`. `None`: the kernel was not run (no device), so there is
/// nothing to say, and the world is to blame.
pub fn verdict(measurement: &Measurement, profile: Rules) -> Option<Verdict> {
    verdict_within(measurement, profile, Tolerance::USUAL)
}

/// The same with another tolerance.
pub fn verdict_within(
    measurement: &Measurement,
    profile: Rules,
    tolerance: Tolerance,
) -> Option<Verdict> {
    match &measurement.execution {
        Execution::Failed(failure) => Some(Verdict::Failed(failure.kind)),
        Execution::TaskAtFault(fault, _) => Some(Verdict::TaskRefused(*fault)),
        Execution::NoDevice => None,
        Execution::Ran { launches: 0, .. } => Some(Verdict::Failed(FailureKind::Impure)),
        Execution::Ran { trials, timing, .. } => {
            let fair_tf32 = measurement.products && measurement.device != CPU;
            Some(values(trials, timing, profile, |stats| match profile {
                Rules::Paper => within_flat(stats, tolerance.flat),
                Rules::Strict => {
                    let relative = scaled_tolerance(&stats.dtype, fair_tf32) * tolerance.scale;
                    within_scaled(stats, relative)
                }
            }))
        }
    }
}

fn values(
    trials: &[Trial],
    timing: &Timing,
    profile: Rules,
    within: impl Fn(&OutputStats) -> bool,
) -> Verdict {
    if profile == Rules::Strict && degenerate(trials) {
        return Verdict::TaskRefused(TaskFault::Degenerate);
    }
    for (trial, observed) in (0u32..).zip(trials) {
        for (output, stats) in (0u32..).zip(&observed.outputs) {
            let comparable = stats.nonfinite_mismatches == 0 && stats.exact_mismatches == 0;
            if !(comparable && within(stats)) {
                return Verdict::WrongValue { trial, output };
            }
        }
    }
    Verdict::Correct { speedup: speed(timing, profile).map(|speed| speed.ratio) }
}

/// What is odd about the task itself, for who scores public benchmarks with and without such tasks:
/// `constant` outputs, or outputs that look the `same` in all trials, whatever inputs and parameters are.
pub fn task_flags(measurement: &Measurement) -> Vec<&'static str> {
    let Execution::Ran { trials, .. } = &measurement.execution else { return Vec::new() };
    if degenerate(trials) {
        return vec!["constant"];
    }
    let looks = |trial: &Trial| -> Vec<(u64, u64)> {
        let bits = |o: &OutputStats| (o.max_reference.to_bits(), o.spread_reference.to_bits());
        trial.outputs.iter().map(bits).collect()
    };
    let same = trials.len() > 1 && trials.iter().all(|trial| looks(trial) == looks(&trials[0]));
    if same { vec!["same"] } else { Vec::new() }
}

/// Constant outputs on every trial: any constant would be right.
fn degenerate(trials: &[Trial]) -> bool {
    let mut outputs = trials.iter().flat_map(|trial| &trial.outputs).peekable();
    outputs.peek().is_none()
        || outputs.all(|o| o.elements == 0 || (o.elements > 1 && o.spread_reference == 0.0))
}

/// Whether `error <= t + t * |reference|` for all elements.
fn within_flat(stats: &OutputStats, t: f64) -> bool {
    stats.hull.iter().all(|(reference, error)| *error <= t + t * reference)
}

/// Whether no error is above `relative` times the output's largest magnitude.
fn within_scaled(stats: &OutputStats, relative: f64) -> bool {
    let worst = stats.hull.iter().map(|(_, error)| *error).fold(0.0, f64::max);
    worst <= relative * stats.max_reference
}

/// Largest error relative to the output's largest magnitude, by dtype. TF32 has ten bits of
/// mantissa, so where it is fair no tolerance tells it from half precision; inputs beyond the range
/// of half precision do.
pub fn scaled_tolerance(dtype: &str, fair_tf32: bool) -> f64 {
    match dtype {
        "float64" => 1e-7,
        "float32" if fair_tf32 => 2e-3,
        "float32" => 2e-5,
        "float16" => 2e-3,
        "bfloat16" => 1.6e-2,
        _ => 0.0,
    }
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
                trials: vec![Trial { seed: 1, varied: "given".into(), outputs: vec![stats] }],
                launches,
                timing: Timing::NotTaken,
            },
            layers: vec![],
            device: CPU.into(),
            products: false,
            headers: None,
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
    fn tasks_that_do_not_depend_on_their_inputs_are_flagged() {
        let flags = |outputs: [f64; 2], spread: Option<f64>| {
            let mut found = measured(outputs[0], vec![], 1);
            let Execution::Ran { trials, .. } = &mut found.execution else { unreachable!() };
            trials.push(trials[0].clone());
            trials[1].outputs[0].max_reference = outputs[1];
            for trial in trials {
                let stats = &mut trial.outputs[0];
                stats.spread_reference = spread.unwrap_or(stats.spread_reference);
            }
            task_flags(&found)
        };
        assert_eq!(flags([1.0, 2.0], None), Vec::<&str>::new());
        assert_eq!(flags([1.0, 1.0], None), ["same"]);
        assert_eq!(flags([1.0, 2.0], Some(0.0)), ["constant"]);
    }

    #[test]
    fn tf32_is_fair_for_products_on_a_gpu_only() {
        let mut rounded = measured(1.0, vec![(1.0, 1e-3)], 1);
        let wrong = Some(Verdict::WrongValue { trial: 0, output: 0 });
        for (device, products, right) in [
            (CPU, false, false),
            (CPU, true, false),
            ("a GPU", false, false),
            ("a GPU", true, true),
        ] {
            rounded.device = device.into();
            rounded.products = products;
            let found = verdict(&rounded, Rules::Strict);
            assert_eq!(found.unwrap().is_correct(), right, "{device} {products}");
            assert!(right || verdict(&rounded, Rules::Strict) == wrong);
        }
    }

    #[test]
    fn an_own_kernel_must_have_run() {
        let none = measured(1.0, vec![(1.0, 0.0)], 0);
        assert_eq!(verdict(&none, Rules::Paper), Some(Verdict::Failed(FailureKind::Impure)));
    }
}
