use std::collections::{BTreeMap, HashSet};

use super::*;

fn some(seed: u64, names: &[&str]) -> Pair {
    pair(seed, names).expect("known APIs")
}

/// The call of an API as it stands in a module.
fn written(name: &str) -> String {
    let op = find(name).expect("known API");
    let text = if op.init.is_empty() { op.call } else { op.init };
    let text = text.split('(').next().expect("a call");
    text.trim_start_matches("self.").rsplit(" = ").next().expect("a name").to_owned() + "("
}

fn check(p: &Pair) {
    for api in &p.apis {
        let text = written(api);
        assert_eq!(p.module.matches(&text).count(), 1, "{text} in {}", p.module);
    }
    for text in [&p.module, &p.kernel] {
        assert!(!text.contains("{0}") && !text.contains("{k}") && !text.contains("SUM("), "{text}");
    }
    assert!(p.kernel.contains("class ModelNew(nn.Module):"));
    assert!(p.coder_answer.starts_with("Tiling: "));
}

#[test]
fn many_different_apis() {
    let names: HashSet<_> = apis().iter().map(|a| a.name).collect();
    assert_eq!(names.len(), apis().len());
    assert!(names.len() >= 100);
}

#[test]
fn the_table_covers_the_apis() {
    let table = co_occurrence();
    for api in apis() {
        assert!(table.single.get(api.name).is_some_and(|n| *n > 0), "{}", api.name);
    }
    assert_eq!(table.single.len(), apis().len());
    assert!(table.together.keys().all(|(a, b)| find(a).is_some() && find(b).is_some()));
}

#[test]
fn every_api_composes_alone_and_with_every_other() {
    for (i, a) in apis().iter().enumerate() {
        check(&some(i as u64, &[a.name]));
        for (j, b) in apis().iter().enumerate().skip(i + 1) {
            check(&some((i * 1000 + j) as u64, &[a.name, b.name]));
        }
    }
}

#[test]
fn random_larger_sets_compose() {
    for seed in 0..3000 {
        let all: Vec<&str> = apis().iter().map(|a| a.name).collect();
        let set = &shuffled(seed, &all)[..3 + (seed % 2) as usize];
        check(&some(seed, set));
    }
}

#[test]
fn same_seed_same_pair() {
    for seed in 0..200 {
        let set = draw(seed);
        assert_eq!(set, draw(seed));
        let turned: Vec<&str> = set.iter().rev().copied().collect();
        assert_eq!(some(seed, &set), some(seed, &turned));
    }
}

#[test]
fn draws_are_sane() {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..4000 {
        let set = draw(seed);
        assert!((1..=MAX_APIS).contains(&set.len()));
        set.iter().for_each(|a| *counts.entry(a).or_default() += 1);
    }
    assert!(apis().iter().all(|a| counts.get(a.name).is_some_and(|n| *n >= 50)));
}

#[test]
fn held_out_shares_neither_sets_nor_structures_with_training() {
    let (mut train, mut held) = (BTreeMap::new(), BTreeMap::new());
    for seed in 0..20_000 {
        let set = draw(seed);
        let p = some(seed, &set);
        match split_of(&set, &p.signature) {
            Split::Train => train.insert(p.signature, p.apis),
            Split::HeldOut => held.insert(p.signature, p.apis),
            Split::Neither => continue,
        };
    }
    assert!((100..400).contains(&held.len()), "a hundredth, not {}", held.len());
    let sets: HashSet<_> = train.values().collect();
    for (signature, apis) in &held {
        assert!(!train.contains_key(signature), "{signature}");
        assert!(!sets.contains(apis), "{apis:?}");
    }
}

#[test]
fn bad_sets_are_refused() {
    assert_eq!(pair(0, &[]), Err(Error::Size(0)));
    assert_eq!(pair(0, &["torch.exp", "torch.exp"]), Err(Error::Size(2)));
    assert!(matches!(pair(0, &["torch.none"]), Err(Error::Unknown(_))));
}

#[test]
fn prompts_are_fixed() {
    assert_eq!(proposer_prompt(&["torch.exp", "torch.cat"]), "APIs: torch.exp, torch.cat");
    assert_eq!(coder_prompt("x = 1\n"), "Triton:\n```python\nx = 1\n```");
}
