//! Where nothing was measured, nothing is claimed.

use events::config::Rules;
use events::event::{CompileOutcome, Event, Validity};
use events::outcome::FailureKind;
use events::rules::rescore::{Reward, Row};

use crate::common::World;
use crate::world::{gray_config, rescored, run};

fn refused_as_impure(world: &World) -> u64 {
    let refused = |event: &&Event| {
        matches!(event, Event::KernelCompiled { outcome: CompileOutcome::Rejected(failure), .. }
            if failure.kind == FailureKind::Impure)
    };
    world.events().iter().filter(refused).count() as u64
}

fn sum(rows: &[Row], count: impl Fn(&Row) -> u64) -> u64 {
    rows.iter().map(count).sum()
}

#[test]
fn kernels_that_a_static_rule_kept_from_running_are_unknown_without_it() {
    let world = run(gray_config(1, Rules::Strict), false);
    let (groups, rows) = rescored(&world, &["judge.purity=off"]);
    let refused = refused_as_impure(&world);
    assert!(refused > 0);
    assert_eq!(sum(&rows, |row| row.kernels.unknown), refused);
    assert_eq!(sum(&rows, |row| row.kernels.gained + row.kernels.lost + row.kernels.otherwise), 0);
    // One unknown reward makes all advantages of its group unknown, and no others.
    for lines in groups.into_values().flatten() {
        let unknown = lines.iter().any(|line| line.reward == Reward::Unknown);
        assert!(lines.iter().all(|line| line.advantage.is_none() == unknown), "{lines:#?}");
    }
    assert!(rows.iter().any(|row| row.batch.unknown > 0));
    assert!(rows.iter().any(|row| row.batch.selection_unknown));
}

#[test]
fn a_kernel_that_nobody_timed_has_no_known_reward_where_speed_counts() {
    let world = run(gray_config(2, Rules::Paper), false);
    let (groups, rows) = rescored(&world, &["judge.tolerance=0.3"]);
    assert!(sum(&rows, |row| row.kernels.gained) > 0);
    assert_eq!(sum(&rows, |row| row.kernels.unknown), 0);
    assert!(sum(&rows, |row| row.rewards.unknown) > 0);
    assert!(groups.into_values().flatten().flatten().any(|line| line.reward == Reward::Unknown));
    for row in &rows {
        assert_eq!(row.rewards.means().1.is_none(), row.rewards.unknown > 0, "{row:#?}");
    }
    let (_, without_speed) = rescored(&world, &["judge.tolerance=0.3", "coder.beta=0"]);
    assert_eq!(sum(&without_speed, |row| row.rewards.unknown), 0);
}

#[test]
fn other_rules_for_modules_drop_groups_or_leave_them_unknown() {
    let mut config = gray_config(3, Rules::Strict);
    let lax = run(config.clone(), false);
    let (groups, rows) = rescored(&lax, &["validator.rules=strict"]);
    let lost = sum(&rows, |row| row.modules.lost);
    assert!(lost > 0);
    assert_eq!(sum(&rows, |row| row.modules.gained + row.modules.unknown), 0);
    let dropped = groups.values().filter(|lines| lines.is_none()).count() as u64;
    assert!(dropped > 0);
    assert_eq!(sum(&rows, |row| row.signal.dropped), dropped);
    assert_eq!(sum(&rows, |row| row.rewards.unknown), 0);

    config.validator.rules = Rules::Strict;
    let strict = run(config, false);
    let (_, rows) = rescored(&strict, &["validator.rules=paper"]);
    assert!(sum(&rows, |row| row.modules.gained) > 0);
    assert!(sum(&rows, |row| row.rewards.unknown) > 0, "no kernels were drawn for them");

    let (_, rows) = rescored(&strict, &["validator.trials=9"]);
    let valid =
        |event: &&Event| matches!(event, Event::ModuleValidated { validity: Validity::Valid, .. });
    let valid = strict.events().iter().filter(valid).count() as u64;
    assert_eq!(sum(&rows, |row| row.modules.unknown), valid);
    let (_, rows) = rescored(&strict, &["validator.trials=1"]);
    assert_eq!(sum(&rows, |row| row.modules.unknown), 0);
}
