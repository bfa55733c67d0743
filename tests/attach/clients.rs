//! The Python client and its examples, as processes beside a run.

use std::process::{Command, Stdio};

use actors::attached::{Attached, Hello, PROTOCOL, drive};
use curriculum::Curriculum;
use events::event::{Event, Recorded};
use events::ids::{Role, Seq};
use events::state::RunState;
use kernelzero::attach::client::Connection;
use serde_json::Value;

use crate::cli::{KERNELZERO, drives_client, ends_with};
use crate::common::config;
use crate::hall::{Hall, python, well};

fn named(recorded: &[Recorded], name: &str) -> Vec<&'static str> {
    let of = |r: &&Recorded| actors::attached::actor_name(r.actor) == name;
    recorded.iter().filter(of).map(|r| r.event.name()).collect()
}

/// The mean reward of each step, worked out here.
fn means(recorded: &[Recorded]) -> Vec<f64> {
    let (mut rewards, mut means) = (Vec::new(), Vec::new());
    for recorded in recorded {
        match &recorded.event {
            Event::GroupScored { scores, .. } => {
                use events::event::Scores;
                match scores {
                    Scores::Modules(lines) => rewards.extend(lines.iter().map(|l| l.reward)),
                    Scores::Kernels(lines) => rewards.extend(lines.iter().map(|l| l.reward)),
                }
            }
            Event::StepTaken { .. } => {
                means.push(rewards.iter().sum::<f64>() / rewards.len() as f64);
                rewards.clear();
            }
            _ => {}
        }
    }
    means
}

#[test]
fn the_reward_observer_sees_every_step_to_the_last() {
    let hall = Hall::new(&config(4));
    let file = hall.folder.path().join("rewards.jsonl");
    let options = ["--name", "rewards", "--events", "GroupScored,StepTaken"];
    let observer = hall.attach(&options, "reward_observer.py", &[file.to_str().unwrap()]);
    let eye = hall.eye();
    eye.until_event("the observer", |r| r.event.name() == "ActorAttached");
    hall.drive(|_| {});
    let (recorded, _, _, _folder) = hall.close();
    // What the observer has not read yet is in the log's files, also when the daemon is gone.
    well(observer);
    let lines = std::fs::read_to_string(&file).unwrap();
    let seen: Vec<f64> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["mean"].as_f64().unwrap())
        .collect();
    let wanted = means(&recorded);
    assert_eq!(seen.len(), wanted.len());
    assert!(seen.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-12), "{seen:?} {wanted:?}");
}

#[test]
fn a_program_that_only_reads_gets_everything() {
    let hall = Hall::new(&config(4));
    let file = hall.folder.path().join("lines.jsonl");
    // Its standard output is closed at once.
    let program = format!("exec cat > {}", file.display());
    let cat = Command::new(KERNELZERO)
        .args(["--home", hall.home.dir().to_str().unwrap(), "attach", "--name", "cat"])
        .args(["--", "sh", "-c", &program])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    hall.eye().until_event("the program", |r| r.event.name() == "ActorAttached");
    hall.drive(|_| {});
    let (recorded, _, _, _folder) = hall.close();
    well(cat);
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let events = lines.iter().filter(|line| !line["event"].is_null());
    let events: Vec<Recorded> =
        events.map(|line| serde_json::from_value(line["event"].clone()).unwrap()).collect();
    // All but, perhaps, that it is attached no more.
    assert_eq!(events, recorded[..events.len()]);
    assert!(recorded[events.len()..].iter().all(|r| r.event.name() == "ActorDetached"));
    assert!(!lines[0]["welcome"].is_null() && !lines.last().unwrap()["end"].is_null());
}

#[test]
fn the_sampler_chooses_the_api_sets_of_the_steps_after_it_came() {
    let hall = Hall::new(&config(4).with("rounds", Some("3")).unwrap());
    let sampler = hall.attach(&["--name", "rare", "--events", "ApisSampled"], "sampler.py", &[]);
    let eye = hall.eye();
    eye.until_event("the sampler", |r| r.event.name() == "ActorAttached");
    hall.drive(move |job| {
        if job.weights.policy.role == Role::Proposer {
            eye.until("a proposal", |state| {
                state.proposed.keys().any(|step| Some(*step) >= state.next_step())
            });
        }
    });
    let (recorded, _, _, _folder) = hall.close();
    well(sampler);
    let proposed: Vec<_> = recorded
        .iter()
        .filter_map(|r| match &r.event {
            Event::ApisProposed { step, sets } => Some((*step, sets.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(proposed.len(), 3, "one for each step after the one that was open");
    for (step, sets) in &proposed[..2] {
        let drawn = recorded.iter().filter_map(|r| match &r.event {
            Event::ApisSampled { step: of, apis, .. } if of == step => Some(apis.clone()),
            _ => None,
        });
        assert_eq!(&drawn.collect::<Vec<_>>(), sets);
    }
}

#[test]
fn the_python_client_does_what_it_says_over_the_socket() {
    let hall = Hall::new(&config(4));
    drives_client("tests/attach/client.py", &[hall.run_dir().as_os_str()]);
    hall.drive(|_| {});
    let recorded = hall.events();
    assert_eq!(
        named(&recorded, "client"),
        [
            "ActorAttached",
            "SettingChanged",
            "SettingChanged",
            "SettingPlanned",
            "ApisProposed",
            "Noted",
            "IntentRefused",
            "ActorDetached",
        ]
    );
    assert_eq!(named(&recorded, "again"), ["ActorAttached", "ActorDetached"]);
}

/// The example crate's actor over a socket of its own.
#[test]
fn an_actor_in_rust_changes_what_later_rounds_draw() {
    let most = config(4).sampler.apis_max.get();
    let hall = Hall::new(&config(4).with("rounds", Some("3")).unwrap());
    let hello = Hello {
        protocol: PROTOCOL,
        name: "curriculum".parse().unwrap(),
        what: "an example".into(),
        after: Seq(0),
        filter: Curriculum::new(0.0, 0).filter(),
        key: None,
    };
    let Connection { mut lines, mut stream, .. } =
        Connection::open(&hall.run_dir(), &hello).unwrap();
    let actor = std::thread::spawn(move || {
        let mut curriculum = Curriculum::new(0.0, most + 1);
        drive(&mut curriculum, &mut lines, &mut stream).unwrap();
        curriculum
    });
    let eye = hall.eye();
    hall.drive(move |job| {
        // The change of the first round is planned once the second is under way.
        let second =
            |state: &RunState| state.totals.steps.get(&Role::Coder).map_or(0, |t| t.all) >= 2;
        if job.weights.policy.role == Role::Proposer {
            eye.until("a change", |state| {
                !second(state)
                    || !state.planned.is_empty()
                    || state.config.as_ref().unwrap().sampler.apis_max.get() == most + 1
            });
        }
    });
    let config = hall.bus.ask(|state| state.config.clone()).unwrap().unwrap();
    assert_eq!(config.sampler.apis_max.get(), most + 1);
    let recorded = hall.events();
    assert_eq!(actor.join().unwrap().refused, Vec::<String>::new());
    let did = named(&recorded, "curriculum");
    assert_eq!(did, ["ActorAttached", "SettingPlanned", "ActorDetached"]);
}

/// It would never know that it was sent away, nor would whoever attached it.
#[test]
fn a_program_that_does_not_read_is_ended_when_it_is_sent_away() {
    let hall = Hall::new(&config(4));
    let talks = "while True: print('{\"intent\": \"note\", \"text\": \"on and on\"}', flush=True)";
    let python = python().to_str().unwrap().to_owned();
    let (home, run) = (hall.home.dir().to_owned(), hall.run.to_string());
    let attached = std::thread::spawn(move || {
        crate::cli::kernelzero(&home, &["attach", "--name", "deaf", "--", &python, "-c", talks])
    });
    hall.eye().until_events("its notes", |events| events.len() > 20);
    ends_with(&hall.call(&["detach", &run, "deaf"]), 0, "deaf is sent away");
    ends_with(&attached.join().unwrap(), 3, "the daemon ended it");
    hall.drive(|_| {});
}

#[test]
fn a_program_that_fails_or_cannot_be_attached_is_told_of() {
    let hall = Hall::new(&config(4));
    let python = python().to_str().unwrap().to_owned();
    let failing = "import sys; print('nonsense', flush=True); sys.stdin.readline(); sys.exit(3)";
    let failed = hall.call(&["attach", "--name", "short", "--", &python, "-c", failing]);
    ends_with(&failed, 3, "the run goes on");
    ends_with(&hall.call(&["attach", "--", "no-such-program"]), 2, "no-such-program");
    let unknown = hall.call(&["attach", "--events", "Step", "--", "true"]);
    ends_with(&unknown, 2, "there is no event `Step`");
    ends_with(&hall.call(&["attach", "--name", "A B", "--", "true"]), 2, "a-z");
    ends_with(&hall.call(&["attach"]), 2, "<COMMAND>");
    hall.drive(|_| {});
    let (recorded, blobs, home, _folder) = hall.close();
    assert_eq!(named(&recorded, "short"), ["ActorAttached", "ActorDetached"]);
    // The one owner of the log is gone with the last of its users.
    drop(blobs);
    let late = crate::cli::kernelzero(home.dir(), &["attach", "--", "true"]);
    ends_with(&late, 2, "is finished: it has no daemon any more");
}
