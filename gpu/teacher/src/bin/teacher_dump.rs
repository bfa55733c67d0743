//! Writes pairs as JSON lines.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use serde::Serialize;
use teacher::{Split, coder_prompt, draw, pair, proposer_prompt, shuffled, split_of};

const USAGE: &str = "teacher-dump --n COUNT --seed SEED --split train|held-out --out FILE";

#[derive(Serialize)]
struct Row<'a> {
    apis: &'a [String],
    module: &'a str,
    kernel: &'a str,
    proposer_prompt: String,
    proposer_answer: &'a str,
    coder_prompt: String,
    coder_answer: &'a str,
    signature: &'a str,
    held_out_apis: bool,
    held_out_signature: bool,
    checked: bool,
}

struct Args {
    count: usize,
    seed: u64,
    split: Split,
    out: String,
}

fn args() -> Option<Args> {
    let mut args = Args { count: 4000, seed: 1, split: Split::Train, out: String::new() };
    let mut given = std::env::args().skip(1);
    while let Some(flag) = given.next() {
        let value = given.next()?;
        match flag.as_str() {
            "--n" => args.count = value.parse().ok()?,
            "--seed" => args.seed = value.parse().ok()?,
            "--split" if value == "train" => args.split = Split::Train,
            "--split" if value == "held-out" => args.split = Split::HeldOut,
            "--out" => args.out = value,
            _ => return None,
        }
    }
    (!args.out.is_empty()).then_some(args)
}

fn dump(args: &Args) -> io::Result<usize> {
    let mut out = BufWriter::new(File::create(&args.out)?);
    let mut seen: HashSet<blake3::Hash> = HashSet::new();
    let (mut written, mut tries) = (0, 0u64);
    while written < args.count && tries < 100 * args.count as u64 {
        let seed = args.seed.wrapping_mul(1_000_000_007).wrapping_add(tries);
        tries += 1;
        let set = draw(seed);
        let made = pair(seed, &set).map_err(io::Error::other)?;
        let wanted = split_of(&set, &made.signature) == args.split;
        if !wanted || !seen.insert(blake3::hash(made.module.as_bytes())) {
            continue;
        }
        let row = Row {
            apis: &made.apis,
            module: &made.module,
            kernel: &made.kernel,
            proposer_prompt: proposer_prompt(&shuffled(seed, &set)),
            proposer_answer: &made.proposer_answer,
            coder_prompt: coder_prompt(&made.module),
            coder_answer: &made.coder_answer,
            signature: &made.signature,
            held_out_apis: teacher::is_held_out(&set),
            held_out_signature: teacher::is_held_out_signature(&made.signature),
            checked: false,
        };
        serde_json::to_writer(&mut out, &row)?;
        out.write_all(b"\n")?;
        written += 1;
    }
    out.flush()?;
    Ok(written)
}

fn main() -> ExitCode {
    let mut err = io::stderr();
    let Some(args) = args() else {
        let _ = writeln!(err, "{USAGE}");
        return ExitCode::from(2);
    };
    match dump(&args) {
        Ok(n) => {
            let _ = writeln!(err, "{n} pairs");
            ExitCode::SUCCESS
        }
        Err(e) => {
            let _ = writeln!(err, "{e}");
            ExitCode::FAILURE
        }
    }
}
