//! Runs the corpus that `KERNELZERO_JUDGE_CASES` points to, and prints what came out. Without the
//! variable there is nothing to do: the corpus is not part of this repository. `KECK_CASES` keeps
//! only cases whose `group/name` holds a text; `KECK_BUILD_CUDA` also compiles CUDA candidates.
#![allow(missing_docs)]

mod common;

use std::path::PathBuf;
use std::time::Instant;

#[test]
fn corpus() {
    let Some(folder) = std::env::var_os("KERNELZERO_JUDGE_CASES").map(PathBuf::from) else {
        println!("KERNELZERO_JUDGE_CASES is not set");
        return;
    };
    let only = std::env::var("KECK_CASES").unwrap_or_default();
    let build_cuda = std::env::var_os("KECK_BUILD_CUDA").is_some();
    let judge = common::judge(2);
    println!("device {}, layers {:?}", judge.device(), judge.layers());
    let (mut good, mut total) = (0, 0);
    let mut bad = Vec::new();
    for group in ["honest", "broken", "hack"] {
        for case in common::cases(&folder.join(group)) {
            let name = format!("{group}/{}", case.name);
            if !name.contains(&only) {
                continue;
            }
            let module = folder.join("reference").join(format!("{}.py", case.header["reference"]));
            let module = std::fs::read_to_string(module).unwrap();
            let start = Instant::now();
            let (got, why) = common::outcome(&judge, &module, &case, build_cuda);
            let accepted = case.accepted();
            let cpu = case.header.get("cpu").is_some_and(|c| c.contains(&got));
            let built = got == "no_device" || got == "static_ok";
            let ok = accepted.contains(&got) || cpu || built && group != "hack";
            total += 1;
            good += usize::from(ok);
            let mark = if ok { "ok  " } else { "BAD " };
            let why = why.replace('\n', " | ");
            let line = format!(
                "{mark} {name:42} expected {:14} got {got:13} {:5} ms  {}",
                accepted[0],
                start.elapsed().as_millis(),
                &why[why.len().saturating_sub(150)..].trim(),
            );
            println!("{line}");
            if !ok {
                bad.push(line);
            }
        }
    }
    println!("{good} of {total} as expected; not so:\n{}", bad.join("\n"));
}
