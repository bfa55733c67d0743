//! The static rules alone on the corpus that `KERNELZERO_JUDGE_CASES` points to: no honest case
//! may be refused.
#![allow(missing_docs)]

mod common;

use std::path::PathBuf;

#[test]
fn no_false_alarms() {
    let Some(folder) = std::env::var_os("KERNELZERO_JUDGE_CASES").map(PathBuf::from) else {
        println!("KERNELZERO_JUDGE_CASES is not set");
        return;
    };
    let mut alarms = Vec::new();
    for group in ["honest", "broken", "hack"] {
        for case in common::cases(&folder.join(group)) {
            let start = std::time::Instant::now();
            let verdict = keck::rules::inspect_kernel(&case.source);
            let text = match &verdict {
                Ok(backend) => format!("passes as {backend:?}"),
                Err(failure) => format!("{:?} {}", failure.kind, failure.detail),
            };
            let us = start.elapsed().as_micros();
            println!("{group}/{:35} {us:6} us {}", case.name, text.replace('\n', " | "));
            if group == "honest" && verdict != Ok(case.backend()) {
                alarms.push(format!("{}: {text}", case.name));
            }
        }
    }
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
}
