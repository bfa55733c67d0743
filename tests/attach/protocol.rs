//! The socket as any process sees it: lines of JSON, limits, and nobody who harms the run.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use events::event::Recorded;
use events::ids::Role;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::common::config;
use crate::hall::Hall;

/// One connection, line by line.
struct Line {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Line {
    fn raw(hall: &Hall) -> Self {
        let stream = UnixStream::connect(hall.run_dir().join("attach.sock")).unwrap();
        Self { lines: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    /// Attached as `name`, without events unless `more` says otherwise.
    fn hello(hall: &Hall, name: &str, more: Value) -> Self {
        let mut line = Self::raw(hall);
        let mut hello = json!({ "protocol": 1, "name": name, "filter": { "events": [] } });
        hello.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line.say(&json!({ "hello": hello }).to_string());
        let welcome = line.hear();
        assert_eq!(welcome["welcome"]["run"], json!(hall.run), "{welcome}");
        line
    }

    fn say(&mut self, text: &str) {
        writeln!(self.stream, "{text}").unwrap();
    }

    /// The next line; null at the end.
    fn hear(&mut self) -> Value {
        let mut text = String::new();
        self.lines.read_line(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// The answer to a line, other lines passed over.
    fn ask(&mut self, text: &str) -> Value {
        self.say(text);
        loop {
            let line = self.hear();
            assert!(!line.is_null(), "it ended after {text}");
            if !line["answer"].is_null() {
                return line["answer"].clone();
            }
        }
    }
}

fn codes(recorded: &[Recorded], name: &str) -> Vec<&'static str> {
    let of = |r: &&Recorded| actors::attached::actor_name(r.actor) == name;
    recorded.iter().filter(of).map(|r| r.event.name()).collect()
}

#[test]
fn every_line_is_answered_and_every_intent_is_in_the_log() {
    let hall = Hall::new(&config(4));
    let mode = std::fs::metadata(hall.run_dir().join("attach.sock")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let mut line = Line::hello(&hall, "tester", json!({ "what": "a test" }));
    let accepted = line.ask(r#"{"id": "x", "intent": "note", "text": "hello"}"#);
    assert_eq!(accepted["id"], "x");
    assert_eq!(accepted["accepted"]["event"]["Noted"]["text"], "hello");
    assert_eq!(accepted["accepted"]["actor"]["attached"], "tester");
    let set = line.ask(r#"{"intent": "set", "key": "coder.beta", "value": "0.7", "at": "round"}"#);
    let from = &set["accepted"]["event"]["SettingPlanned"]["from"];
    assert_eq!(*from, json!({ "round": 1, "role": "proposer", "step": 0 }));
    let late = r#"{"intent": "set", "key": "coder.beta", "value": "0.6",
                   "at": {"round": 0, "role": "coder", "step": 9}}"#
        .replace('\n', "");
    assert_eq!(line.ask(&late)["accepted"]["event"]["SettingPlanned"]["from"], *from);
    for (text, code, says) in [
        (r#"{"intent": "melt"}"#, "bad-intent", "unknown variant `melt`"),
        (r#"{"intent": "note", "text": 3}"#, "bad-intent", "string"),
        (r#"{"intent": "set", "key": "seed", "value": "3"}"#, "bad-setting", "began with"),
        (r#"{"intent": "set", "key": "judge.timing", "value": "true"}"#, "bad-setting", "GPU"),
        (r#"{"intent": "apis", "sets": [["a.x", "b.b"]]}"#, "bad-apis", "b.b is not in"),
        (r#"{"intent": "apis", "sets": [["a.x", "a.x"]]}"#, "bad-apis", "twice"),
        (r#"{"intent": "apis", "sets": [["a.x"]]}"#, "bad-apis", "set 0 has 1 APIs"),
        (r#"{"intent": "apis", "sets": []}"#, "bad-apis", "there are 0 sets"),
    ] {
        let refused = line.ask(text)["refused"].clone();
        assert_eq!(refused["code"], code, "{text}: {refused}");
        assert!(refused["why"].as_str().unwrap().contains(says), "{text}: {refused}");
    }
    for (text, says) in [
        ("{", "EOF"),
        ("[1]", "not a JSON object"),
        ("{}", "give `intent`"),
        (r#"{"get": "everything"}"#, "settings, apis and blob"),
        (r#"{"get": "blob", "blob": "x"}"#, "64 hexadecimal digits"),
    ] {
        let refused = line.ask(text)["refused"].clone();
        assert_eq!(refused["code"], "bad-line", "{text}: {refused}");
        assert!(refused["why"].as_str().unwrap().contains(says), "{text}: {refused}");
    }
    assert_eq!(line.ask(r#"{"get": "apis"}"#)["value"], json!(["a.w", "a.x", "a.y", "a.z"]));
    let settings = line.ask(r#"{"get": "settings"}"#);
    assert_eq!(settings["value"]["seed"], 4);
    let table = hall.bus.ask(|state| state.api_table).unwrap().unwrap();
    let blob = line.ask(&json!({ "get": "blob", "blob": table }).to_string());
    assert!(blob["value"].as_str().unwrap().starts_with("a.x\t5\n"));
    drop(line);
    hall.drive(|_| {});
    let config = hall.bus.ask(|state| state.config.clone()).unwrap().unwrap();
    // Of two changes for one step the one that came last holds.
    assert_eq!(config.coder.beta.get(), 0.6);
    let recorded = hall.events();
    let names = codes(&recorded, "tester");
    let count = |name: &str| names.iter().filter(|n| **n == name).count();
    assert_eq!((count("IntentRefused"), count("SettingPlanned"), count("Noted")), (8, 2, 1));
    assert_eq!((names[0], *names.last().unwrap()), ("ActorAttached", "ActorDetached"));
}

#[test]
fn who_does_not_say_who_it_is_is_not_let_in() {
    let hall = Hall::new(&config(4));
    let _inside = Line::hello(&hall, "twin", json!({}));
    for (text, says) in [
        ("", "EOF"),
        ("hello", "expected value"),
        (r#"{"intent": "note", "text": "x"}"#, "{\"hello\": "),
        (r#"{"hello": {"protocol": 2, "name": "a"}}"#, "this is 1"),
        (r#"{"hello": {"protocol": 1, "name": "trainer"}}"#, "run's own actors"),
        (r#"{"hello": {"protocol": 1, "name": "A"}}"#, "a-z"),
        (r#"{"hello": {"protocol": 1, "name": "twin"}}"#, "another name"),
        (
            r#"{"hello": {"protocol": 1, "name": "a", "filter": {"events": ["Step"]}}}"#,
            "no event `Step`",
        ),
        (r#"{"hello": {"protocol": 1, "name": "a", "from": 3}}"#, "unknown field `from`"),
    ] {
        let mut line = Line::raw(&hall);
        line.say(text);
        let end = line.hear();
        assert!(end["end"]["why"].as_str().unwrap().contains(says), "{text}: {end}");
        assert_eq!(line.hear(), Value::Null);
    }
    let mut long = Line::raw(&hall);
    // The other side may end it before all is written.
    let _ = long.stream.write_all("x".repeat(300 << 10).as_bytes());
    let mut rest = String::new();
    let _ = long.lines.read_to_string(&mut rest);
    hall.drive(|_| {});
    let names: Vec<&str> = hall.events().iter().map(|r| r.event.name()).collect();
    assert_eq!(names.iter().filter(|name| **name == "ActorAttached").count(), 1);
}

#[test]
fn events_come_from_a_position_on_through_a_filter() {
    let hall = Hall::new(&config(4));
    hall.drive(|_| {});
    let all = hall.bus.log().read_after(events::ids::Seq(0), usize::MAX).unwrap();
    let after = all.len() as u64 / 2;
    let filter = json!({ "events": ["StepTaken", "KernelWritten"], "actors": ["trainer"] });
    let mut line = Line::hello(&hall, "reader", json!({ "after": after, "filter": filter }));
    let mut seen = Vec::new();
    loop {
        let next = line.hear();
        if !next["caught-up"].is_null() {
            assert_eq!(next["caught-up"], all.len());
            break;
        }
        seen.push(serde_json::from_value::<Recorded>(next["event"].clone()).unwrap());
    }
    let wanted = all.into_iter().filter(|r| r.seq.0 > after && r.event.name() == "StepTaken");
    assert_eq!(seen, wanted.collect::<Vec<_>>());
    assert!(!seen.is_empty());
    drop(line);
    hall.events();
}

#[test]
fn who_reads_nothing_dies_or_talks_nonsense_harms_nobody() {
    let alone = Hall::new(&config(4));
    alone.drive(|_| {});
    let alone: Vec<_> = alone.events().into_iter().map(|r| r.event).collect();
    let hall = Hall::new(&config(4));
    // It wants everything, reads nothing, and goes on asking.
    let mut stalled = Line::hello(&hall, "stalled", json!({ "filter": {} }));
    for _ in 0..20 {
        stalled.say(r#"{"get": "apis"}"#);
    }
    let mut bursts = Line::hello(&hall, "bursts", json!({}));
    let nonsense = std::thread::spawn(move || {
        for number in 0..100 {
            if number < 99 {
                bursts.ask("nonsense");
            } else {
                bursts.say("nonsense");
            }
        }
        bursts.hear();
        let end = bursts.hear();
        assert!(end["end"]["why"].as_str().unwrap().contains("in a row"), "{end}");
    });
    let (mut dead, mut calls) = (Some(Line::hello(&hall, "dead", json!({ "filter": {} }))), 0);
    hall.drive(move |_| {
        calls += 1;
        if calls == 3 {
            drop(dead.take());
        }
    });
    nonsense.join().unwrap();
    let recorded = hall.events();
    drop(stalled);
    let decided: Vec<_> = recorded
        .iter()
        .map(|r| r.event.clone())
        .filter(|e| !matches!(e.name(), "ActorAttached" | "ActorDetached"))
        .collect();
    assert_eq!(decided, alone);
    for name in ["stalled", "dead", "bursts"] {
        assert_eq!(codes(&recorded, name), ["ActorAttached", "ActorDetached"], "{name}");
    }
}

#[test]
fn so_many_may_be_attached_and_no_more() {
    let hall = Hall::new(&config(4));
    let inside: Vec<Line> =
        (0..32).map(|n| Line::hello(&hall, &format!("actor-{n}"), json!({}))).collect();
    let mut late = Line::raw(&hall);
    assert_eq!(late.hear()["end"]["why"], "too many are attached");
    drop(inside);
    let mut again = loop {
        let mut line = Line::raw(&hall);
        // One that is refused may be ended before it has said who it is.
        let _ = writeln!(line.stream, r#"{{"hello": {{"protocol": 1, "name": "late"}}}}"#);
        if !line.hear()["welcome"].is_null() {
            break line;
        }
    };
    let freeze = r#"{"intent": "freeze", "policy": "coder"}"#;
    assert_eq!(again.ask(freeze)["accepted"]["event"]["SettingChanged"]["value"], "0");
    assert!(hall.bus.ask(|state| state.is_frozen(Role::Coder)).unwrap());
    drop(again);
    hall.events();
}

/// API sets that were asked for are those that the step has, and what is late or gone is drawn.
#[test]
fn api_sets_can_be_asked_for_and_the_log_audits() {
    let hall = Hall::new(&config(4));
    let mut line = Line::hello(&hall, "chooser", json!({}));
    let sets = json!([["a.x", "a.y", "a.z"]]);
    let asked = line.ask(&json!({ "intent": "apis", "sets": sets }).to_string());
    let step = json!({ "round": 1, "role": "proposer", "step": 0 });
    assert_eq!(asked["accepted"]["event"]["ApisProposed"]["step"], step);
    let bus = hall.bus.clone();
    let mut checked = false;
    hall.drive(move |_| {
        if !std::mem::replace(&mut checked, true) {
            assert!(bus.ask(|state| state.open.sets.len() == 2).unwrap());
            let late = json!({ "intent": "apis", "sets": sets, "step": step }).to_string();
            let refused = line.ask(&late)["refused"].clone();
            assert_eq!(refused["code"], "late", "{refused}");
            let next = line.ask(&json!({ "intent": "apis", "sets": sets }).to_string());
            let step = &next["accepted"]["event"]["ApisProposed"]["step"];
            assert_eq!(*step, json!({ "round": 2, "role": "proposer", "step": 0 }));
        }
    });
    let recorded = hall.events();
    let drawn: Vec<Vec<String>> = recorded
        .iter()
        .filter_map(|r| match &r.event {
            events::event::Event::ApisSampled { apis, index: 0, .. } => Some(apis.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(drawn, vec![vec!["a.x", "a.y", "a.z"]; 2]);
}

/// Lines of the protocol with a part cut out, doubled or replaced.
fn broken_lines() -> impl Strategy<Value = String> {
    let whole = prop_oneof![
        Just(r#"{"id": 1, "intent": "freeze", "policy": "proposer", "at-step": 4294967295}"#),
        Just(
            r#"{"intent": "set", "key": "coder.policy.prompt", "value": "{module}", "at": "phase"}"#
        ),
        Just(
            r#"{"intent": "apis", "sets": [["a.x", "a.y"]], "step": {"round": 1, "role": "coder"}}"#
        ),
        Just(r#"{"intent": "note", "text": "\u00fc"}"#),
        Just(r#"{"get": "blob", "blob": "00"}"#),
    ];
    (whole, any::<prop::sample::Index>(), any::<prop::sample::Index>(), ".{0,8}").prop_map(
        |(whole, from, to, put)| {
            let text: Vec<char> = whole.chars().collect();
            let (from, to) = (from.index(text.len()), to.index(text.len()));
            let (from, to) = (from.min(to), from.max(to));
            let parts = [&text[..from], &put.chars().collect::<Vec<_>>(), &text[to..]];
            parts.concat().into_iter().collect()
        },
    )
}

#[test]
fn any_line_is_answered_and_the_log_stays_right() {
    let hall = Hall::new(&config(4));
    let hello = json!({ "protocol": 1, "name": "fuzz" });
    let hello = serde_json::from_value(hello).unwrap();
    let mut runner = TestRunner::new(Config { cases: 300, ..Config::default() });
    let session = std::cell::RefCell::new(hall.gate.attach(&hello).unwrap());
    let lines = prop_oneof![broken_lines(), ".{0,60}", r#"\{"intent": "[a-z]{1,6}".{0,9}\}"#];
    runner
        .run(&lines, |line| {
            let mut session = session.borrow_mut();
            let answer = session.line(&line).unwrap();
            prop_assert!(answer.id.is_null() || !line.is_empty());
            Ok(())
        })
        .unwrap();
    session.into_inner().leave("it is over");
    hall.drive(|_| {});
    hall.events();
}
