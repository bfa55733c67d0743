//! Actors that an operator sends away.

use std::process::{Child, Command, Stdio};

use events::config::{BuiltIn, Metric, RunConfig};
use events::event::Event;
use serde_json::json;

use crate::cli::{KERNELZERO, ends_with};
use crate::common::config;
use crate::hall::{Hall, python, well};
use crate::protocol::Line;

fn attach(hall: &Hall, arguments: &[&str]) -> Child {
    let mut command = Command::new(KERNELZERO);
    let command = command.arg("--home").arg(hall.home.dir()).arg("attach").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn whoever_is_sent_away_is_told_and_the_log_says_by_whom() {
    let mut wanted = config(4);
    let (metric, above, pause) = (Metric::Kl, Some(2.0), false);
    let alarm = BuiltIn::Alarm { metric, policy: None, above, below: None, pause };
    wanted.actors = [("alarm".parse().unwrap(), alarm)].into();
    let hall = Hall::new(&RunConfig::parse(&wanted.to_text().unwrap()).unwrap());
    let file = |name: &str| hall.folder.path().join(name).display().to_string();
    let script = format!(
        "import sys; lines = sys.stdin.readlines(); open({:?}, 'w').write(lines[-1])",
        file("last")
    );
    let python = python().display().to_string();
    let program = attach(&hall, &["--name", "program", "--", &python, "-c", &script]);
    let tap = format!("kind = \"tap\", file = \"{}\"", file("tap"));
    let tap = attach(&hall, &["--name", "tap", "--actor", &tap]);
    // It wants everything and reads nothing.
    let stalled = Line::hello(&hall, "stalled", json!({ "filter": {} }));
    let mut other = Line::hello(&hall, "other", json!({}));
    let refused = other.ask(r#"{"detach": "alarm"}"#);
    assert!(refused["refused"]["why"].as_str().unwrap().contains("only an operator"), "{refused}");
    hall.eye().until_events("all of them", |events| {
        events.iter().filter(|r| r.event.name() == "ActorAttached").count() == 5
    });
    hall.drive(|_| {});
    let run = hall.run.to_string();
    let names = ["alarm", "program", "tap", "stalled"];
    ends_with(&hall.call(&["detach", &run, "nobody"]), 2, "there are: alarm, operator-");
    for name in names {
        ends_with(&hall.call(&["detach", &run, name]), 0, &format!("{name} is sent away"));
    }
    well(program);
    let last = std::fs::read_to_string(file("last")).unwrap();
    assert!(last.starts_with(r#"{"end":{"why":"sent away by operator-"#), "{last}");
    let tap = tap.wait_with_output().unwrap();
    ends_with(&tap, 3, "sent away by operator-");
    hall.eye().until_events("all are gone", |events| {
        events.iter().filter(|r| r.event.name() == "ActorDetached").count() >= 4 + 5
    });
    ends_with(&hall.call(&["detach", &run, "tap"]), 2, "no actor called tap");
    drop((stalled, other));
    let (recorded, _, home, _folder) = hall.close();
    for name in names {
        let end = recorded.iter().find_map(|r| match &r.event {
            Event::ActorDetached { why } if actors::attached::actor_name(r.actor) == name => {
                Some(why)
            }
            _ => None,
        });
        assert!(end.unwrap().starts_with("sent away by operator-"), "{name}: {end:?}");
    }
    let late = crate::cli::kernelzero(home.dir(), &["detach", &run, "tap"]);
    ends_with(&late, 2, "has no daemon");
    let operator = ["attach", "--name", "operator-1", "--", "true"];
    ends_with(&crate::cli::kernelzero(home.dir(), &operator), 2, "such names are those of");
}
