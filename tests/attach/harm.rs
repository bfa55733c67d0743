//! Whatever an attached actor does, the run goes on as it would have.

use std::io::Write;

use events::ids::Role;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::cli::ends_with;
use crate::common::config;
use crate::hall::Hall;
use crate::protocol::{Line, codes};

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

/// Who asks for more than its share is taken more slowly, and the run's own events are not kept waiting.
#[test]
fn a_flood_of_intents_is_taken_at_its_pace() {
    let hall = Hall::new(&config(4));
    let began = std::time::Instant::now();
    let mut flood = Line::hello(&hall, "flood", json!({}));
    let mut asks = flood.stream.try_clone().unwrap();
    let asking = std::thread::spawn(move || {
        let note = r#"{"intent": "note", "text": "me again"}"#;
        (0..3000).all(|_| writeln!(asks, "{note}").is_ok())
    });
    let hearing = std::thread::spawn(move || while !flood.hear()["answer"].is_null() {});
    hall.eye().until_events("a flood", |events| events.len() > 100);
    hall.drive(|_| {});
    let recorded = hall.events();
    let most = 101.0 + 10.0 * began.elapsed().as_secs_f64();
    hearing.join().unwrap();
    assert!(!asking.join().unwrap(), "not all was taken");
    let notes = codes(&recorded, "flood").iter().filter(|name| **name == "Noted").count();
    assert!(notes > 90 && (notes as f64) < most, "{notes} notes, at most {most}");
    assert!(recorded.iter().any(|r| r.event.name() == "RunFinished"));
}

#[test]
fn so_many_may_be_attached_and_no_more() {
    let hall = Hall::new(&config(4));
    let mut inside: Vec<Line> =
        (0..32).map(|n| Line::hello(&hall, &format!("actor-{n}"), json!({}))).collect();
    let mut late = Line::raw(&hall);
    let greet = r#"{"hello": {"protocol": 1, "name": "late"}}"#;
    late.say(greet);
    let why = late.hear()["end"]["why"].as_str().unwrap().to_owned();
    assert!(why.contains("32 actors are attached"), "{why}");
    let mut like = Line::raw(&hall);
    like.say(r#"{"hello": {"protocol": 1, "name": "operator-1"}}"#);
    let why = like.hear()["end"]["why"].as_str().unwrap().to_owned();
    assert!(why.contains("kernelzero's own commands"), "{why}");
    // Who connects and says nothing takes none of the operators' places for long, and not all at once.
    let silent: Vec<Line> = (0..60).map(|_| Line::raw(&hall)).collect();
    ends_with(&hall.call(&["set", "coder.beta=0.4"]), 0, "coder.beta = 0.4 from round 1");
    ends_with(&hall.call(&["status"]), 0, "planned");
    let run = hall.run.to_string();
    ends_with(&hall.call(&["detach", &run, "actor-7"]), 0, "actor-7 is sent away");
    let heard =
        std::iter::repeat_with(|| inside[7].hear()).find(|line| line["caught-up"].is_null());
    assert!(heard.unwrap()["end"]["why"].as_str().unwrap().starts_with("sent away by operator-"));
    drop((inside, silent));
    let mut again = loop {
        let mut line = Line::raw(&hall);
        // One that is refused may be ended before it has said who it is.
        let _ = writeln!(line.stream, "{greet}");
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
    let mut session = session.into_inner();
    let deep = "[".repeat(200_000);
    for line in [
        deep.clone(),
        json!({ "intent": "set", "key": "coder.beta", "value": deep }).to_string(),
        json!({ "intent": "set", "key": "a.".repeat(100_000), "value": "1" }).to_string(),
        json!({ "intent": "note", "text": deep }).to_string(),
    ] {
        let answer = json!(session.line(&line).unwrap());
        assert!(!answer["refused"].is_null(), "{answer}");
    }
    session.leave("it is over");
    hall.drive(|_| {});
    hall.events();
}
