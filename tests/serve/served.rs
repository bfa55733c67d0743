//! A real service on a free port, and plain HTTP to it. Every answer is held to `openapi.json`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::{KERNELZERO, root};

pub struct Served {
    child: Child,
    pub address: String,
    pub token: Option<String>,
}

/// An answer that is as the document says.
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub text: String,
    pub body: Value,
}

pub fn case(kind: &str, name: &str) -> String {
    let path = root().join("gpu/keck/tests/cases").join(kind).join(format!("{name}.py"));
    std::fs::read_to_string(path).unwrap()
}

/// A job over the leaky case.
pub fn job(kernel: &str) -> Value {
    let (reference, candidate) = (case("reference", "leaky_scale"), case("kernels", kernel));
    json!({ "reference": reference, "candidate": candidate, "trials": 2 })
}

/// A job that takes some seconds.
pub fn slow() -> Value {
    let mut job = job("honest_leaky");
    let source = job["candidate"].as_str().unwrap();
    let count = "        for _ in range(300_000_000):\n            pass\n        return run_leaky";
    let slow = source.replacen("        return run_leaky", count, 1);
    assert_ne!(slow, source);
    job["candidate"] = json!(slow);
    job
}

/// A job over the leaky case with a client's name.
pub fn named(kernel: &str, name: &str) -> Value {
    let mut job = job(kernel);
    job["client_id"] = json!(name);
    job
}

pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    let host = folder.join("host.toml");
    std::fs::write(&host, "judges = 1\n").unwrap();
    let mut command = Command::new(KERNELZERO);
    command.args([Path::new("--home"), &home(folder), Path::new("--host"), &host]);
    command.arg("serve").args(arguments);
    if !arguments.contains(&"--port") {
        command.args(["--port", "0"]);
    }
    command
}

pub fn home(folder: &Path) -> PathBuf {
    folder.join("home")
}

impl Served {
    /// With one judge, so that what is submitted later waits.
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = command(folder, arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("judging on http://");
        let address = address.unwrap_or_else(|| panic!("it said: {line:?}")).to_owned();
        let address = address.replace("0.0.0.0", "127.0.0.1");
        Self { child, address, token: None }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        let json = [("Content-Type", "application/json")];
        self.ask("POST", path, &json, body.to_string().as_bytes())
    }

    /// The id of a job that is taken in now.
    #[track_caller]
    pub fn submit(&self, job: &Value) -> String {
        let answer = self.post("/v1/judge", job);
        assert_eq!(answer.status, 202, "{}", answer.text);
        answer.body["id"].as_str().unwrap().to_owned()
    }

    /// The job once it is over.
    #[track_caller]
    pub fn over(&self, id: &str) -> Value {
        let answer = self.get(&format!("/v1/judge/{id}?wait=100"));
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert!(!["queued", "running"].contains(&answer.body["state"].as_str().unwrap()));
        answer.body
    }

    /// Waits until the job is in `state`.
    #[track_caller]
    pub fn until(&self, id: &str, state: &str) {
        for _ in 0..600 {
            if self.get(&format!("/v1/judge/{id}")).body["state"] == state {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{id} is never {state}");
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        head += &format!("Content-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {}\r\n", self.address);
        }
        if let Some(token) = &self.token {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let answer = Answer::read(&bytes);
        crate::document::hold(method, path, &answer);
        answer
    }

    /// As the power would end it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As a supervisor would.
    pub fn stop(mut self) -> ExitStatus {
        let kill = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status();
        assert!(kill.unwrap().success());
        self.child.wait().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Answer {
    fn read(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a whole head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        let headers: BTreeMap<_, _> = lines.map(header).collect();
        let mut body = bytes[end + 4..].to_vec();
        if headers.get("transfer-encoding").is_some_and(|kind| kind == "chunked") {
            body = dechunked(&body);
        }
        let text = String::from_utf8(body).unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Self { status, headers, text, body }
    }

    /// What an error says it is about, and its code.
    #[track_caller]
    pub fn refusal(&self) -> (u16, &str, &str) {
        let error = &self.body["error"];
        assert!(!error["fix"].as_str().unwrap().is_empty(), "{}", self.text);
        let field = error["field"].as_str().unwrap_or_default();
        (self.status, error["code"].as_str().unwrap(), field)
    }
}

fn dechunked(mut rest: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        whole.extend(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 2 + length + 2..];
    }
    whole
}
