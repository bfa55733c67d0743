//! Decisions by static rules of another version: neither agreement nor a finding.
#![allow(clippy::unwrap_used)]

mod cli;
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use actors::shells::{Turn, drive};
use cli::{ends_with, kernelzero};
use common::{HashEvidence, PURITY_POLICY, World, config};
use events::event::{CompileOutcome, Draft, Event, Recorded, Validity};
use events::ids::{Digest, RunId, Seq};
use events::log::{Blobs, Log};
use events::outcome::{Backend, Failure, FailureKind, SourceReport};
use events::rules::audit::Evidence;
use kernelzero::audit::{Report, Rules, Since, audit_log};
use store::{Home, OpenMode};
use tempfile::TempDir;

/// Rules that refuse everything, under the name of a version.
struct Stern<'w> {
    hashes: HashEvidence<'w>,
    version: u32,
}

impl Evidence for Stern<'_> {
    fn blob(&self, id: Digest) -> Result<Arc<[u8]>, String> {
        self.hashes.blob(id)
    }

    fn purity_policy(&self) -> u32 {
        self.version
    }

    fn module_source(
        &self,
        id: Digest,
        tracked: &BTreeSet<String>,
    ) -> Result<SourceReport, String> {
        self.hashes.module_source(id, tracked)
    }

    fn kernel_source(&self, _: Digest) -> Result<Result<Backend, Failure>, String> {
        Ok(Err(Failure::new(FailureKind::Impure, "refused by the stern")))
    }
}

fn whole() -> World {
    let world = World::new();
    world.start(&config(4));
    assert_eq!(drive(&mut world.shells(0), &world.bus()).unwrap(), Turn::Idle);
    world
}

fn drafts(world: &World) -> Vec<Draft> {
    let read = world.log.read_after(Seq(0), usize::MAX).unwrap();
    let draft = |r: Recorded| Draft { cause: r.cause, actor: r.actor, event: r.event };
    read.into_iter().map(draft).collect()
}

fn audited(world: &World, drafts: Vec<Draft>, version: u32) -> Report {
    let folder = TempDir::new().unwrap();
    let home = Home::open(folder.path()).unwrap();
    let run = RunId::new(1, [3; 10]);
    home.create_run(run).unwrap().append(drafts).unwrap();
    let log = home.open_run(run, OpenMode::ReadOnly).unwrap();
    let stern = Stern { hashes: HashEvidence(&*world.blobs), version };
    audit_log(&log, &stern, Since::Start).unwrap()
}

fn count(drafts: &[Draft], wanted: impl Fn(&Event) -> bool) -> u64 {
    drafts.iter().filter(|draft| wanted(&draft.event)).count() as u64
}

/// Kernels whose build or refusal the stern rules do not confirm.
fn differing(drafts: &[Draft]) -> u64 {
    count(drafts, |event| match event {
        Event::KernelCompiled { outcome, .. } => match outcome {
            CompileOutcome::Built { .. } => true,
            CompileOutcome::Rejected(failure) => failure.kind != FailureKind::NoCode,
        },
        _ => false,
    })
}

fn by_rules(drafts: &[Draft]) -> u64 {
    count(drafts, |event| {
        matches!(event, Event::KernelCompiled { .. } | Event::ModuleValidated { .. })
    })
}

#[test]
fn the_same_version_must_say_the_same() {
    let world = whole();
    let drafts = drafts(&world);
    let report = audited(&world, drafts.clone(), PURITY_POLICY);
    assert_eq!((report.found, report.rules.undecided()), (differing(&drafts), 0));
    assert!(report.found > 5);
}

#[test]
fn another_version_or_none_makes_them_not_redecidable() {
    let world = whole();
    let drafts = drafts(&world);
    let report = audited(&world, drafts.clone(), PURITY_POLICY + 1);
    let counted = (by_rules(&drafts), differing(&drafts));
    let others = BTreeMap::from([(Some(PURITY_POLICY), counted)]);
    assert_eq!(report.rules, Rules { purity_policy: PURITY_POLICY + 1, others });
    assert_eq!(report.found, 0, "{:?}", report.findings);
    assert_eq!(report.kinds["KernelCompiled"].other_rules, differing(&drafts));

    let unnamed = drafts.into_iter();
    let unnamed = unnamed.filter(|d| !matches!(d.event, Event::PurityPolicyUsed { .. }));
    // Without the event the others have other positions, so what caused them is left out.
    let unnamed: Vec<Draft> = unnamed.map(|draft| Draft { cause: None, ..draft }).collect();
    let report = audited(&world, unnamed, PURITY_POLICY);
    let others = BTreeMap::from([(None, counted)]);
    assert_eq!(report.rules, Rules { purity_policy: PURITY_POLICY, others });
    assert_eq!(report.found, 0, "{:?}", report.findings);
}

#[test]
fn what_no_static_rule_decides_is_a_finding_whatever_the_version() {
    let world = whole();
    let mut drafts = drafts(&world);
    let forged = drafts.iter_mut().find_map(|draft| match &mut draft.event {
        Event::ModuleValidated { validity, .. } if *validity == Validity::Valid => Some(validity),
        _ => None,
    });
    *forged.unwrap() =
        Validity::Invalid { stage: events::event::Stage::Stable, reason: "no".into() };
    assert!(audited(&world, drafts, PURITY_POLICY + 1).found > 0);
}

#[test]
fn a_program_with_other_rules_says_so_before_it_goes_on() {
    let world = whole();
    let all = drafts(&world);
    let part = World { blobs: world.blobs.clone(), ..World::new() };
    let mut some: Vec<Draft> = all[..20].to_vec();
    for draft in &mut some {
        if let Event::PurityPolicyUsed { version } = &mut draft.event {
            *version = PURITY_POLICY - 1;
        }
    }
    part.log.append(some).unwrap();
    drive(&mut part.shells(0), &part.bus()).unwrap();
    let events = part.events();
    let versions: Vec<u32> = events
        .iter()
        .filter_map(|event| match event {
            Event::PurityPolicyUsed { version } => Some(*version),
            _ => None,
        })
        .collect();
    assert_eq!(versions, [PURITY_POLICY - 1, PURITY_POLICY]);
    assert_eq!(events[20], Event::PurityPolicyUsed { version: PURITY_POLICY });
}

#[test]
fn the_command_says_what_it_could_not_decide() {
    let world = whole();
    let folder = TempDir::new().unwrap();
    let home = Home::open(folder.path()).unwrap();
    let blobs = home.blobs().unwrap();
    let drafts = drafts(&world);
    for id in drafts.iter().flat_map(|draft| draft.event.blobs()) {
        blobs.put(&world.blobs.get(id).unwrap()).unwrap();
    }
    home.create_run(RunId::new(1, [3; 10])).unwrap().append(drafts).unwrap();
    let output = kernelzero(folder.path(), &["audit"]);
    let versions =
        format!("by purity policy {PURITY_POLICY}, this program has {}", keck::POLICY_VERSION);
    ends_with(&output, 0, &versions);
    ends_with(&output, 0, "cannot be made again");
    let json = kernelzero(folder.path(), &["audit", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(value["agrees"].is_null() && value["found"] == 0);
    assert_eq!(value["purity_policy"]["others"][0]["version"], PURITY_POLICY);
}
