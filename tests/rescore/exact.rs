//! Where all was measured, other rules give what a run by them would have given.

use std::collections::{BTreeMap, BTreeSet};

use events::config::Rules;
use events::event::{Event, Scores};
use events::ids::{GroupId, KernelId, Role, StepRef};
use events::outcome::Execution;
use events::rules::rescore::{Line, Row, recorded};

use crate::common::World;
use crate::world::{gray_config, rescored, run, run_with};

fn groups(events: &[Event]) -> BTreeMap<GroupId, Vec<Line>> {
    let scored = events.iter().filter_map(|event| match event {
        Event::GroupScored { group, scores, .. } => Some((*group, recorded(scores))),
        _ => None,
    });
    scored.collect()
}

fn batches(events: &[Event]) -> BTreeMap<StepRef, BTreeSet<GroupId>> {
    let started = events.iter().filter_map(|event| match event {
        Event::StepStarted { step, groups, .. } => Some((*step, groups.iter().copied().collect())),
        _ => None,
    });
    started.collect()
}

#[test]
fn the_rules_of_the_run_change_nothing() {
    for (seed, still, profile) in
        [(1, true, Rules::Strict), (2, false, Rules::Strict), (3, false, Rules::Paper)]
    {
        let world = run(gray_config(seed, profile), still);
        let same =
            format!("judge.profile={}", if profile == Rules::Paper { "paper" } else { "strict" });
        for changes in [vec![], vec![same.as_str()], vec!["judge.purity=current"]] {
            let (found, rows) = rescored(&world, &changes);
            let found: BTreeMap<_, _> = found.into_iter().map(|(g, l)| (g, l.unwrap())).collect();
            assert_eq!(found, groups(&world.events()), "{seed} {changes:?}");
            assert_eq!(
                rows.len(),
                world.events().iter().filter(|e| e.name() == "StepTaken").count()
            );
            assert!(rows.iter().all(|row| !row.changes()), "{seed} {changes:?}: {rows:#?}");
        }
    }
}

/// A setting that changes in the middle of a run changes in the rules, too; one that is given holds from the
/// start.
#[test]
fn the_rules_follow_the_settings_of_the_run() {
    let from = StepRef { round: 1, role: Role::Coder, step: 0 };
    let (key, value) = ("judge.profile".to_owned(), Some("paper".to_owned()));
    let planned = vec![Event::SettingPlanned { key, value, from }];
    let world = run_with(gray_config(2, Rules::Strict), false, planned);
    let (found, rows) = rescored(&world, &[]);
    let found: BTreeMap<_, _> = found.into_iter().map(|(g, l)| (g, l.unwrap())).collect();
    assert_eq!(found, groups(&world.events()));
    assert!(rows.iter().all(|row| !row.changes()), "{rows:#?}");
    let (_, rows) = rescored(&world, &["judge.profile=paper"]);
    assert!(rows[0].changes() && rows[0].step < from, "{rows:#?}");
    let (_, rows) = rescored(&world, &["judge.profile=strict"]);
    assert!(rows.iter().any(|row| row.changes() && row.step >= from));
}

/// Both profiles on the same samples: every group of the one run, scored by the other's rules, is the group
/// of the other run, and so is every batch.
#[track_caller]
fn reproduces(from: &World, change: &str, to: &World) -> Vec<Row> {
    let (found, rows) = rescored(from, &[change]);
    let found: BTreeMap<_, _> = found.into_iter().map(|(g, l)| (g, l.unwrap())).collect();
    assert_eq!(found, groups(&to.events()));
    let mut after = batches(&from.events());
    for row in &rows {
        let batch = after.get_mut(&row.step).unwrap();
        batch.retain(|group| !row.batch.left.contains(group));
        batch.extend(&row.batch.entered);
    }
    assert_eq!(after, batches(&to.events()));
    rows
}

#[test]
fn the_papers_profile_gives_what_it_would_have_rewarded() {
    for seed in 1..=4 {
        let [strict, paper] =
            [Rules::Strict, Rules::Paper].map(|profile| run(gray_config(seed, profile), true));
        let rows = reproduces(&strict, "judge.profile=paper", &paper);
        let gained: u64 = rows.iter().map(|row| row.kernels.gained).sum();
        let speeds: u64 = rows.iter().map(|row| row.kernels.otherwise).sum();
        let entered: usize = rows.iter().map(|r| r.batch.entered.len() + r.batch.left.len()).sum();
        assert!(
            gained > 0 && speeds > 0 && entered > 0,
            "the profiles differ, else this shows nothing"
        );
        assert!(rows.iter().all(|row| row.kernels.lost + row.kernels.unknown == 0));
        reproduces(&paper, "judge.profile=strict", &strict);
    }
}

#[test]
fn constants_of_the_rewards_give_what_they_would_have_rewarded() {
    let world = |change: &dyn Fn(&mut events::config::RunConfig)| {
        let mut config = gray_config(5, Rules::Strict);
        change(&mut config);
        run(config, true)
    };
    let usual = world(&|_| ());
    let beta = world(&|config| config.coder.beta = 0.7.try_into().unwrap());
    let alpha = world(&|config| config.coder.alpha = 1.1.try_into().unwrap());
    let noise = world(&|config| config.coder.noise_floor = 0.9.try_into().unwrap());
    let floor = world(&|config| config.advantage.std_floor = 2.0.try_into().unwrap());
    let target = world(&|config| config.proposer.target = 0.2.try_into().unwrap());
    let invalid = world(&|config| config.proposer.invalid_reward = -0.25);
    for (change, other) in [
        ("coder.beta=0.7", beta),
        ("coder.alpha=1.1", alpha),
        ("coder.noise-floor=0.9", noise),
        ("advantage.std-floor=2", floor),
        ("proposer.target=0.2", target),
        ("proposer.invalid-reward=-0.25", invalid),
    ] {
        let rows = reproduces(&usual, change, &other);
        assert!(rows.iter().any(Row::changes), "{change}");
    }
}

/// What a group rests on: its kernels and what was measured of them.
fn facts(events: &[Event]) -> BTreeMap<GroupId, Vec<(KernelId, Option<Execution>)>> {
    let mut kernels = BTreeMap::new();
    let (mut measured, mut found) = (BTreeMap::new(), BTreeMap::new());
    for event in events {
        match event {
            Event::KernelWritten { kernel, module, .. } => {
                kernels.entry(*module).or_insert_with(Vec::new).push(*kernel);
            }
            Event::KernelMeasured { kernel, measurement } => {
                measured.insert(*kernel, measurement.execution.clone());
            }
            Event::GroupScored { group, scores, .. } => {
                let ids: Vec<KernelId> = match scores {
                    Scores::Modules(scores) => scores
                        .iter()
                        .flat_map(|s| kernels.get(&s.module).cloned().unwrap_or_default())
                        .collect(),
                    Scores::Kernels(scores) => scores.iter().map(|s| s.kernel).collect(),
                };
                let of = |id: KernelId| (id, measured.get(&id).cloned());
                found.insert(*group, ids.into_iter().map(of).collect());
            }
            _ => {}
        }
    }
    found
}

#[test]
fn runs_that_part_agree_wherever_they_drew_the_same() {
    let mut shared = 0;
    for seed in 1..=6 {
        let [strict, paper] =
            [Rules::Strict, Rules::Paper].map(|profile| run(gray_config(seed, profile), false));
        let (found, _) = rescored(&strict, &["judge.profile=paper"]);
        let (ours, theirs) = (facts(&strict.events()), facts(&paper.events()));
        let rewarded = groups(&paper.events());
        for (group, lines) in found {
            if theirs.get(&group) == ours.get(&group) {
                assert_eq!(lines.as_ref(), rewarded.get(&group), "seed {seed} group {group}");
                shared += 1;
            }
        }
    }
    assert!(shared > 24, "only {shared} groups are shared");
}
