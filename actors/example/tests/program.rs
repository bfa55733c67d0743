//! The program over its standard streams, as `kernelzero attach` runs it.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use events::config::{EXAMPLE, RunConfig};
use events::event::{Actor, Event, Recorded, SCHEMA, Validity};
use events::ids::{ApiSetId, Digest, ModuleId, Role, RunId, Seq, StepRef};
use events::outcome::{ModuleReport, ModuleRun, SourceReport};
use serde_json::{Value, json};

fn recorded(seq: u64, event: Event) -> Value {
    let (previous, actor) = (Digest::default(), Actor::Trainer);
    let (seq, schema) = (Seq(seq), SCHEMA);
    json!({ "event": Recorded { seq, at_unix_ms: 0, cause: None, actor, schema, previous, event } })
}

fn started() -> Event {
    Event::RunStarted {
        run: RunId::new(1, [1; 10]),
        config: RunConfig::parse(EXAMPLE).unwrap().to_text().unwrap(),
        code: "test".into(),
        environment: vec![],
        api_table: Digest::default(),
        policies: vec![],
    }
}

fn validated(index: u32) -> Event {
    let step = StepRef { round: 1, role: Role::Proposer, step: 0 };
    let module = ModuleId::at(ApiSetId::at(RunId::new(1, [1; 10]), step, 0), step, index);
    let report = ModuleReport { source: SourceReport::NoCode, run: ModuleRun::NotRun };
    Event::ModuleValidated { module, report, validity: Validity::Valid }
}

fn run(arguments: &[&str], lines: &[Value]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_curriculum"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for line in lines {
        // A program that does not like its arguments does not read.
        let _ = writeln!(input, "{line}");
    }
    drop(input);
    child.wait_with_output().unwrap()
}

#[test]
fn it_asks_for_more_apis_after_a_good_round_and_only_for_the_future() {
    let round = |round| Event::RoundFinished { round };
    let lines = [
        json!({ "welcome": { "protocol": 1, "run": RunId::new(1, [1; 10]), "last": 3 } }),
        recorded(1, started()),
        recorded(2, validated(0)),
        recorded(3, round(1)),
        json!({ "caught-up": 3 }),
        recorded(4, validated(1)),
        recorded(5, round(2)),
        json!({ "answer": { "id": null, "refused": { "code": "not-now", "why": "too late" } } }),
        recorded(6, round(3)),
        json!({ "end": { "why": "the daemon ends" } }),
    ];
    let output = run(&["0.75", "9"], &lines);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let asked: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let set = json!({ "intent": "set", "key": "sampler.apis-max", "value": "5", "at": "round" });
    assert_eq!(asked, [set]);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "refused: too late\n");
}

#[test]
fn what_is_not_the_protocol_ends_it() {
    let output = run(&["0.75", "9"], &[json!({ "event": { "seq": "one" } })]);
    assert!(!output.status.success());
    assert!(!run(&["all"], &[]).status.success());
}
