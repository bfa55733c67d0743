//! Rewards and advantages, exactly as the paper's formulas say.

use crate::config::CoderConfig;

/// FO-GRPO: what a valid module earns when `correct` of `of` kernels are right, and the most when
/// their share is `target`. At `target = 0.5` this is `1 − 2·|l − 0.5|`; for other targets each
/// side falls linearly to 0 at l = 0 and l = 1.
pub fn frontier(correct: u32, of: u32, target: f64) -> f64 {
    if of == 0 {
        return 0.0;
    }
    let share = f64::from(correct) / f64::from(of);
    let reach = if share < target { target } else { 1.0 - target };
    if reach <= 0.0 { 1.0 } else { 1.0 - (share - target).abs() / reach }
}

/// CA-GRPO: `R_i = 1 + T·β·S_i` for a correct kernel and 0 for any other. `speedups[i]` is `None`
/// for a kernel that is not right, and `Some(None)` for a right one without a time.
pub fn correctness_aware(speedups: &[Option<Option<f64>>], config: &CoderConfig) -> Vec<f64> {
    let correct = speedups.iter().flatten().count();
    let accuracy = correct as f64 / speedups.len().max(1) as f64;
    let gate = if accuracy >= config.alpha.get() { 1.0 } else { 0.0 };
    let timed: Vec<f64> = speedups.iter().flatten().filter_map(|s| *s).collect();
    let low = timed.iter().copied().fold(f64::INFINITY, f64::min);
    let high = timed.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let spread = high - low;
    let counts = spread > 0.0 && spread >= config.noise_floor.get() * high;
    let score = |speedup: Option<f64>| match speedup {
        Some(value) if counts => (value - low) / spread,
        Some(_) | None => 0.0,
    };
    speedups
        .iter()
        .map(|kernel| kernel.map_or(0.0, |s| 1.0 + gate * config.beta.get() * score(s)))
        .collect()
}

/// GRPO: `(R_i − mean R)/std R` over the members that were judged (`Some`); the sample deviation,
/// at least `std_floor`. Equal rewards, or fewer than two members, give 0 for all.
pub fn advantages(rewards: &[Option<f64>], std_floor: f64) -> Vec<f64> {
    let judged: Vec<f64> = rewards.iter().flatten().copied().collect();
    let flat = judged.windows(2).all(|pair| pair[0] == pair[1]);
    if judged.len() < 2 || flat {
        return vec![0.0; rewards.len()];
    }
    let count = judged.len() as f64;
    let mean = judged.iter().sum::<f64>() / count;
    let variance = judged.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let deviation = variance.sqrt().max(std_floor);
    rewards.iter().map(|r| r.map_or(0.0, |r| (r - mean) / deviation)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;

    fn coder(alpha: f64, noise_floor: f64) -> CoderConfig {
        let mut config = RunConfig::parse(crate::config::EXAMPLE).unwrap().coder;
        config.alpha = alpha.try_into().unwrap();
        config.beta = 0.1.try_into().unwrap();
        config.noise_floor = noise_floor.try_into().unwrap();
        config
    }

    #[track_caller]
    fn close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() < 1e-12, "{found:?} is not {expected:?}");
        }
    }

    #[test]
    fn frontier_reward_of_five_samples() {
        let rewards: Vec<f64> = (0..=5).map(|right| frontier(right, 5, 0.5)).collect();
        close(&rewards, &[0.0, 0.4, 0.8, 0.8, 0.4, 0.0]);
    }

    #[test]
    fn gate_opens_at_three_of_five() {
        let two = [Some(Some(1.0)), Some(Some(2.0)), None, None, None];
        close(&correctness_aware(&two, &coder(0.5, 0.0)), &[1.0, 1.0, 0.0, 0.0, 0.0]);
        let three = [Some(Some(1.0)), Some(Some(2.0)), Some(Some(1.5)), None, None];
        close(&correctness_aware(&three, &coder(0.5, 0.0)), &[1.0, 1.1, 1.05, 0.0, 0.0]);
        close(&correctness_aware(&three, &coder(1.1, 0.0)), &[1.0, 1.0, 1.0, 0.0, 0.0]);
        close(&correctness_aware(&two, &coder(0.0, 0.0)), &[1.0, 1.1, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn one_right_kernel_and_equal_speeds_have_no_speed_score() {
        let one = [Some(Some(3.0)), None, None, None, None];
        close(&correctness_aware(&one, &coder(0.0, 0.0)), &[1.0, 0.0, 0.0, 0.0, 0.0]);
        let equal = [Some(Some(2.0)), Some(Some(2.0))];
        close(&correctness_aware(&equal, &coder(0.0, 0.0)), &[1.0, 1.0]);
        let untimed = [Some(None), Some(None)];
        close(&correctness_aware(&untimed, &coder(0.0, 0.0)), &[1.0, 1.0]);
    }

    #[test]
    fn a_spread_within_the_noise_earns_nothing() {
        let near = [Some(Some(1.00)), Some(Some(1.01))];
        close(&correctness_aware(&near, &coder(0.5, 0.05)), &[1.0, 1.0]);
        close(&correctness_aware(&near, &coder(0.5, 0.0)), &[1.0, 1.1]);
    }

    #[test]
    fn groups_without_spread_carry_nothing() {
        for floor in [0.0, 0.1] {
            for same in [0.0, 1.0, -1.0] {
                close(&advantages(&[Some(same); 4], floor), &[0.0; 4]);
                close(&advantages(&[Some(same), None, Some(same)], floor), &[0.0; 3]);
            }
            close(&advantages(&[Some(1.0), None, None], floor), &[0.0; 3]);
            close(&advantages(&[None, None], floor), &[0.0; 2]);
        }
    }

    #[test]
    fn advantages_are_relative_to_the_judged_members() {
        close(&advantages(&[Some(1.0), Some(0.0)], 0.0), &[0.5f64.sqrt(), -(0.5f64.sqrt())]);
        close(
            &advantages(&[Some(1.0), None, Some(0.0)], 0.0),
            &[0.5f64.sqrt(), 0.0, -(0.5f64.sqrt())],
        );
        close(&advantages(&[Some(1.0), Some(1.0)], 0.0), &[0.0, 0.0]);
        close(&advantages(&[Some(1.0), None], 0.0), &[0.0, 0.0]);
        close(&advantages(&[Some(1.1), Some(1.0)], 1.0), &[0.05, -0.05]);
    }
}
