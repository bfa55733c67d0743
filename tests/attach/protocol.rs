//! The socket as any process sees it: lines of JSON, limits, and nobody who harms the run.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use events::event::Recorded;
use serde_json::{Value, json};

use crate::cli::said;
use crate::common::config;
use crate::hall::Hall;

/// One connection, line by line.
pub struct Line {
    pub stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Line {
    pub fn raw(hall: &Hall) -> Self {
        let stream = UnixStream::connect(hall.run_dir().join("attach.sock")).unwrap();
        Self { lines: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    /// Attached as `name`, without events unless `more` says otherwise.
    pub fn hello(hall: &Hall, name: &str, more: Value) -> Self {
        let mut line = Self::raw(hall);
        let mut hello = json!({ "protocol": 1, "name": name, "filter": { "events": [] } });
        hello.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line.say(&json!({ "hello": hello }).to_string());
        let welcome = line.hear();
        assert_eq!(welcome["welcome"]["run"], json!(hall.run), "{welcome}");
        line
    }

    pub fn say(&mut self, text: &str) {
        writeln!(self.stream, "{text}").unwrap();
    }

    /// The next line; null at the end.
    pub fn hear(&mut self) -> Value {
        let mut text = String::new();
        self.lines.read_line(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// The answer to a line, other lines passed over.
    pub fn ask(&mut self, text: &str) -> Value {
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

pub fn codes(recorded: &[Recorded], name: &str) -> Vec<&'static str> {
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
    // On a terminal it moves no cursor and is one line.
    line.ask(r#"{"intent": "note", "text": "\u001b[2J\nforged\u009b"}"#);
    let shown = said(&hall.call(&["log", "--type", "Noted,StepTaken"]));
    assert!(shown.contains(r"\u{1b}[2J forged\u{9b}") && shown.lines().count() == 2, "{shown:?}");
    let set = line.ask(r#"{"intent": "set", "key": "coder.beta", "value": "0.7", "at": "round"}"#);
    let from = &set["accepted"]["event"]["SettingPlanned"]["from"];
    assert_eq!(*from, json!({ "round": 1, "role": "proposer", "step": 0 }));
    let late = r#"{"intent": "set", "key": "coder.beta", "value": "0.6",
                   "at": {"round": 0, "role": "coder", "step": 9}}"#
        .replace('\n', "");
    assert_eq!(line.ask(&late)["accepted"]["event"]["SettingPlanned"]["from"], *from);
    for (text, code, says) in [
        (r#"{"intent": "pause", "reason": " "}"#, "bad-intent", "say why"),
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
    assert_eq!((count("IntentRefused"), count("SettingPlanned"), count("Noted")), (9, 2, 2));
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
