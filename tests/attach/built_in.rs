//! Built-in actors, in a config and attached by hand.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;

use actors::attached::actor_name;
use events::config::{BuiltIn, Metric, RunConfig};
use events::event::{Event, Recorded, Scores};
use events::ids::{Role, StepRef};
use events::log::Blobs;
use kernelzero::attach::residents::Residents;

use crate::cli::{KERNELZERO, ends_with};
use crate::common::config;
use crate::freezing::{by_config, decisions, events, free, same};
use crate::hall::{Hall, well};

fn with(mut config: RunConfig, actors: Vec<(&str, BuiltIn)>) -> RunConfig {
    config.actors = actors.into_iter().map(|(name, a)| (name.parse().unwrap(), a)).collect();
    // As it is recorded and read again.
    RunConfig::parse(&config.to_text().unwrap()).unwrap()
}

fn of<'a>(recorded: &'a [Recorded], name: &str) -> Vec<&'a Recorded> {
    recorded.iter().filter(|r| actor_name(r.actor) == name).collect()
}

fn names(recorded: &[Recorded], name: &str) -> Vec<&'static str> {
    of(recorded, name).iter().map(|r| r.event.name()).collect()
}

#[test]
fn a_policy_is_frozen_and_thawed_and_a_setting_changed_by_actors_of_the_config() {
    let from = StepRef { round: 2, role: Role::Coder, step: 0 };
    let freeze = BuiltIn::Freeze { policy: Role::Proposer, at_step: 3 };
    let frozen = with(free(3, 6), vec![("freezer", freeze.clone())]);
    let hall = Hall::new(&frozen);
    hall.drive(|_| {});
    let recorded = hall.events();
    let wanted = decisions(&events(&by_config(&free(3, 6), 3)));
    same(&decisions(&events(&recorded)), &wanted, "by an actor of the config");
    assert_eq!(names(&recorded, "freezer"), ["ActorAttached", "SettingChanged", "ActorDetached"]);

    let thaw = BuiltIn::Thaw { policy: Role::Proposer, from };
    let (key, value) = ("coder.beta".to_owned(), "0.9".to_owned());
    let set = BuiltIn::Set { key, value, from };
    let actors = vec![("freezer", freeze), ("thawer", thaw), ("beta", set)];
    let hall = Hall::new(&with(free(3, 6), actors));
    let bus = hall.bus.clone();
    hall.drive(move |job| {
        let state = bus.ask(Clone::clone).unwrap();
        let later = state.position == events::state::Position::Finished
            || matches!(state.position, events::state::Position::InPhase { step, .. } if step >= from);
        let config = state.config.unwrap();
        assert_eq!(config.coder.beta.get() == 0.9, later, "{:?}", job.weights.policy);
        assert_eq!(config.proposer.policy.freeze_at_step, (!later).then_some(3));
    });
    let recorded = hall.events();
    assert_eq!(names(&recorded, "thawer"), ["ActorAttached", "SettingPlanned", "ActorDetached"]);
}

#[test]
fn what_an_actor_of_the_config_has_done_it_does_not_do_again() {
    let freeze = BuiltIn::Freeze { policy: Role::Proposer, at_step: 3 };
    let mut hall = Hall::new(&with(config(4), vec![("freezer", freeze)]));
    let thaw = hall.call(&["thaw", "proposer"]);
    ends_with(&thaw, 0, "(taken away)");
    let blobs: Arc<dyn Blobs> = hall.blobs.clone();
    hall.residents_again(|gate| Residents::start(gate, &blobs).unwrap().close());
    let frozen = hall.bus.ask(|state| state.config.clone()).unwrap().unwrap();
    assert_eq!(frozen.proposer.policy.freeze_at_step, None, "someone thawed it");
    let attached = [&["ActorAttached", "SettingChanged", "ActorDetached"][..], &["ActorAttached"]];
    let wanted = [attached.concat(), vec!["ActorDetached"]].concat();
    assert_eq!(names(&hall.events(), "freezer"), wanted);
}

#[test]
fn a_tap_has_every_event_once_however_often_it_is_attached() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("events.jsonl");
    let path = file.to_str().unwrap().to_owned();
    // A line that was cut off is written again.
    std::fs::write(&file, "{\"seq\": 1, \"at_un").unwrap();
    let tap = BuiltIn::Tap { file: path.clone(), events: None };
    let mut hall = Hall::new(&with(config(4), vec![("tap", tap.clone())]));
    hall.drive(|_| {});
    let blobs: Arc<dyn Blobs> = hall.blobs.clone();
    hall.residents_again(|gate| {
        let text = std::fs::read_to_string(&file).unwrap();
        let some: String = text.lines().take(9).map(|line| format!("{line}\n")).collect();
        std::fs::write(&file, some).unwrap();
        Residents::start(gate, &blobs).unwrap().close();
    });
    let (recorded, _, home, _folder) = hall.close();
    let read = || -> Vec<Recorded> {
        let text = std::fs::read_to_string(&file).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let seen = read();
    assert!(seen.len() + 4 > recorded.len(), "all but the end of itself and of others");
    assert_eq!(seen, recorded[..seen.len()]);
    drop(home);

    // Another run does not write on; this one does.
    let other = Hall::new(&with(config(5), vec![("tap", tap.clone())]));
    other.drive(|_| {});
    let other = other.events();
    let Event::ActorDetached { why } = &of(&other, "tap")[1].event else { unreachable!() };
    assert!(why.contains("has not: give another file"), "{why}");
    assert_eq!(read(), seen);

    // By hand, over another run, with a filter.
    let steps = folder.path().join("steps.jsonl");
    let hall = Hall::new(&config(5));
    let actor = format!("kind = \"tap\", file = \"{}\", events = [\"StepTaken\"]", steps.display());
    let tap = Command::new(KERNELZERO)
        .args(["--home", hall.home.dir().to_str().unwrap()])
        .args(["attach", "--name", "steps", "--actor", &actor])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    hall.eye().until_event("the tap", |r| r.event.name() == "ActorAttached");
    hall.drive(|_| {});
    let (recorded, _, _, _folder) = hall.close();
    well(tap);
    let text = std::fs::read_to_string(&steps).unwrap();
    let taken = recorded.iter().filter(|r| r.event.name() == "StepTaken");
    let seen: Vec<Recorded> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(seen.iter().collect::<Vec<_>>(), taken.collect::<Vec<_>>());
    for (actor, says) in [
        ("kind = \"lid\"", "unknown variant `lid`"),
        ("kind = \"alarm\", metric = \"kl\"", "`above` or `below`"),
        ("kind = \"tap\", file = \"x\", events = [\"Step\"]", "no event `Step`"),
        ("kind = \"alarm\", metric = \"kl\", above = nan", "finite"),
        ("kind = \"tap\"", "missing field `file`"),
    ] {
        let refused = hall_less(&["attach", "--actor", actor]);
        ends_with(&refused, 2, says);
    }
}

fn hall_less(arguments: &[&str]) -> std::process::Output {
    crate::cli::kernelzero(std::path::Path::new("none"), arguments)
}

#[test]
fn an_alarm_notes_and_pauses() {
    let alarm = |pause, above| BuiltIn::Alarm {
        metric: Metric::GradNorm,
        policy: Some(Role::Coder),
        above: Some(above),
        below: None,
        pause,
    };
    let actors = vec![("quiet", alarm(true, 2.0)), ("loud", alarm(true, 0.5))];
    let hall = Hall::new(&with(config(4), actors));
    let eye = hall.eye();
    let after = hall.bus.clone();
    hall.drive(move |_| {
        let stepped = after.ask(|state| state.version(Role::Coder).steps > 0).unwrap();
        if stepped {
            eye.until("a pause", |state| state.paused.is_some());
        }
    });
    let recorded = hall.events();
    assert_eq!(names(&recorded, "loud")[1..3], ["Noted", "RunPaused"]);
    assert_eq!(names(&recorded, "quiet"), ["ActorAttached", "ActorDetached"]);
    let Event::Noted { text } = &of(&recorded, "loud")[1].event else { unreachable!() };
    assert!(text.contains("GradNorm is 1 after round"), "{text}");
    assert!(recorded.iter().all(|r| r.event.name() != "RunFinished"));
}

/// A second judge that finds nothing right.
fn stern_judge() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut length, mut line, mut waits) = (0, String::new(), false);
            while stream.read_line(&mut line).unwrap() > 2 {
                waits |= line.starts_with("GET ");
                if let Some(text) = line.strip_prefix("Content-Length: ") {
                    length = text.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let result = if waits { r#"{"outcome": "incorrect"}"# } else { "null" };
            let body = format!(r#"{{"id": "a", "result": {result}}}"#);
            let head = "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n";
            stream.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn a_mirror_notes_where_another_judge_finds_otherwise() {
    let mirror =
        |judge: &str| BuiltIn::Mirror { judge: judge.to_owned(), percent: 100.try_into().unwrap() };
    let actors = vec![("mirror", mirror(&stern_judge())), ("broken", mirror("127.0.0.1:1"))];
    let hall = Hall::new(&with(config(4), actors));
    let (eye, recorded) = (hall.eye(), hall.bus.clone());
    hall.drive(|_| {});
    let right = |scores: &Scores| match scores {
        Scores::Modules(lines) => {
            lines.iter().flat_map(|line| &line.verdicts).filter(|v| v.is_correct()).count()
        }
        Scores::Kernels(lines) => lines.iter().filter(|line| line.verdict.is_correct()).count(),
    };
    let read = recorded.log().read_after(events::ids::Seq(0), usize::MAX).unwrap();
    let wanted: usize = read
        .iter()
        .map(|r| match &r.event {
            Event::GroupScored { scores, .. } => right(scores),
            _ => 0,
        })
        .sum();
    eye.until_events("all notes", |events| {
        events.iter().filter(|r| r.event.name() == "Noted").count() == wanted
    });
    eye.until_event("the end of the broken one", |r| r.event.name() == "ActorDetached");
    drop(recorded);
    let recorded = hall.events();
    let notes = names(&recorded, "mirror").iter().filter(|name| **name == "Noted").count();
    assert!(wanted > 3);
    assert_eq!(notes, wanted);
    let Event::ActorDetached { why } = &of(&recorded, "broken").last().unwrap().event else {
        unreachable!()
    };
    assert!(why.contains("127.0.0.1:1"), "{why}");
}
