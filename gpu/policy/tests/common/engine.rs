//! An engine as its parent sees it, with several ranks or alone, and what the tests of it train.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use policy::config::ModelConfig;
use policy::{Open, Policy, checkpoint};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

/// `KERNELZERO_ENGINE`, or what was built beside this test.
pub fn engine() -> PathBuf {
    let built = || env!("CARGO_BIN_EXE_kernelzero-engine").into();
    std::env::var_os("KERNELZERO_ENGINE").map_or_else(built, PathBuf::from)
}

/// An engine whose lines a test writes and reads.
pub struct Engine {
    pub child: Child,
    pub input: Option<ChildStdin>,
    pub output: BufReader<ChildStdout>,
}

impl Engine {
    pub fn start(world: usize, more: &[&str]) -> Self {
        Self::on(&vec!["cpu"; world].join(","), more)
    }

    pub fn on(devices: &str, more: &[&str]) -> Self {
        let mut command = Command::new(engine());
        command.args(["serve", "--ranks", devices]).args(more).env("OMP_NUM_THREADS", "1");
        Self::spawn(command)
    }

    /// Without ranks.
    pub fn alone() -> Self {
        let mut command = Command::new(engine());
        command.arg("serve");
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Engine { input: child.stdin.take(), child, output }
    }

    pub fn send(&mut self, request: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{request}").unwrap();
    }

    pub fn reply(&mut self) -> Value {
        let mut reply = String::new();
        self.output.read_line(&mut reply).unwrap();
        serde_json::from_str(&reply).unwrap_or_else(|e| panic!("{e}: `{reply}`"))
    }

    pub fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.reply()
    }

    /// The reply to a line that need not be JSON.
    pub fn line(&mut self, line: &str) -> Value {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        self.reply()
    }

    /// The kind of error that a request comes to.
    #[track_caller]
    pub fn error(&mut self, request: Value) -> String {
        let reply = self.ask(&request);
        reply["error"]["kind"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
    }

    #[track_caller]
    pub fn ok(&mut self, request: &Value) -> Value {
        let reply = self.ask(request);
        assert_eq!(reply["ok"], true, "{reply}");
        reply
    }

    /// Ends it as a parent does.
    pub fn close(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }

    /// The other ranks' processes, in order.
    pub fn others(&self) -> Vec<u32> {
        let id = self.child.id();
        let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        list.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn saved_model(dir: &Path) -> PathBuf {
    saved(dir, &super::tiny())
}

pub fn saved(dir: &Path, shape: &ModelConfig) -> PathBuf {
    let tokenizer = dir.join("tokenizer");
    policy::bpe::train(["a b".to_owned()].into_iter(), 260, &tokenizer).unwrap();
    let shape = |vocab| ModelConfig { vocab, ..shape.clone() };
    let open = Open { device: Device::Cpu, kind: None, trainable: false };
    let policy = Policy::random(&tokenizer, shape, 1, open).unwrap();
    let model = dir.join("model");
    checkpoint::save(&policy, None, &model, Kind::Float).unwrap();
    model
}

/// `groups` prompts with three answers each, of lengths that differ.
pub fn samples(groups: u32) -> Value {
    let one = |i: u32| {
        let (group, n) = (i / 3, 2 + i * 5 % 17);
        let prompt: Vec<u32> = (0..3 + group % 4).map(|j| 10 + (group * 7 + j) % 200).collect();
        let tokens: Vec<u32> = (0..n).map(|j| 10 + (i * 13 + j * j) % 200).collect();
        let logprobs: Vec<f32> = (0..n).map(|j| -4.0 - (j % 3) as f32 / 2.0).collect();
        json!({"prompt_tokens": prompt, "tokens": tokens, "logprobs": logprobs,
            "advantage": f64::from(i % 3) - 1.0})
    };
    (0..3 * groups).map(one).collect()
}

pub fn load(model: &Path, more: Value) -> Value {
    let mut load = json!({"op": "load", "slot": "a", "dir": model, "trainable": true});
    load.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    load
}

pub fn step(samples: &Value) -> Value {
    json!({"op": "grpo", "slot": "a", "reference_slot": "ref", "samples": samples, "lr": 1e-3,
        "kl": 0.1, "micro_tokens": 48, "aggregate": "token-mean"})
}

/// All files of a checkpoint with their bytes.
pub fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let names = ["config.json", "model.safetensors", checkpoint::OPTIMIZER_FILE];
    names.map(|n| (n.to_owned(), std::fs::read(dir.join(n)).unwrap())).into()
}

pub fn tensors(file: &Path) -> Vec<(String, Tensor)> {
    let mut all = Tensor::read_safetensors(file).unwrap();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}
