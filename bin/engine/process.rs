//! The child process of an engine: one JSON object per line each way.
//!
//! A fault of a device or of libtorch ends the child, never the log's owner; the next request starts
//! a new one.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actors::ports::{Weights, WorldFailed};
use anyhow::Result;
use serde_json::Value;

use crate::host::HostConfig;

/// How long a killed child may take to end: it gives back all of a device's memory.
const KILLED: Duration = Duration::from_secs(60);

/// Ends the child from another thread, so that a stop need not wait for a long job.
#[derive(Clone, Default)]
pub struct Killer(Arc<Mutex<Option<u32>>>);

impl Killer {
    fn set(&self, process: Option<u32>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = process;
    }

    /// Kills the child, if there is one.
    pub fn kill(&self) {
        let process = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(id) = process.and_then(|id| i32::try_from(id).ok()) {
            // The child leads a group of its own.
            let _ = nix::sys::signal::killpg(
                nix::unistd::Pid::from_raw(id),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
    }
}

struct Running {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
    /// Which weights each slot holds, and whether they can be trained.
    held: BTreeMap<String, (Weights, bool)>,
}

/// Starts the child when it is needed.
pub struct EngineProcess {
    program: PathBuf,
    libraries: PathBuf,
    /// Of an engine with several ranks.
    ranks: Vec<String>,
    deterministic: bool,
    log: PathBuf,
    running: Option<Running>,
    killer: Killer,
}

/// A failed system call as the failure of the world that it is.
pub fn world(what: &str) -> impl Fn(std::io::Error) -> WorldFailed + '_ {
    move |error| WorldFailed(format!("{what}: {error}"))
}

impl EngineProcess {
    /// What will be started, and where it will write its log.
    pub fn new(host: &HostConfig, log: PathBuf) -> Result<Self> {
        Ok(Self {
            program: host.engine()?,
            libraries: host.torch_libraries()?,
            ranks: host.ranks.clone(),
            deterministic: host.deterministic,
            log,
            running: None,
            killer: Killer::default(),
        })
    }

    /// A handle that ends the child.
    pub fn killer(&self) -> Killer {
        self.killer.clone()
    }

    /// What the child's slots hold, if there is a child.
    pub fn held(&mut self) -> Option<&mut BTreeMap<String, (Weights, bool)>> {
        self.running.as_mut().map(|running| &mut running.held)
    }

    fn start(&self) -> Result<Running, WorldFailed> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.map_err(world("cannot open the engine's log"))?;
        let mut command = Command::new(&self.program);
        command
            .arg("serve")
            .env("LD_LIBRARY_PATH", &self.libraries)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0);
        if !self.ranks.is_empty() {
            command.args(["--ranks", &self.ranks.join(",")]);
        }
        if self.deterministic {
            command.arg("--deterministic");
        }
        let what = format!("cannot start the engine {}", self.program.display());
        let mut child = command.spawn().map_err(world(&what))?;
        self.killer.set(Some(child.id()));
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(WorldFailed("the engine has no pipes".into()));
        };
        Ok(Running { child, requests, replies: BufReader::new(replies), held: BTreeMap::new() })
    }

    /// Sends one request and waits for its reply. A child that is gone is the world's failure.
    pub fn ask(&mut self, request: &Value) -> Result<Value, WorldFailed> {
        self.ask_hearing(request, &mut |_| ControlFlow::Continue(()))
    }

    /// The same, with what is sent ahead of the reply given to `each`. Where that breaks the request is
    /// cancelled, and there is no reply.
    pub fn ask_hearing(
        &mut self,
        request: &Value,
        each: &mut dyn FnMut(Value) -> ControlFlow<()>,
    ) -> Result<Value, WorldFailed> {
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        let Some(running) = self.running.as_mut() else { unreachable!("started above") };
        let reply = exchange(running, request, each);
        match reply {
            Ok(mut reply) => match reply.get("error").filter(|e| !e.is_null()) {
                Some(error) => {
                    let message = error["message"].as_str().unwrap_or("no reason given");
                    let failed = WorldFailed(format!("engine: {message}"));
                    // It is about to end, and its models are lost: the next request starts it anew.
                    if error["kind"] == "rank_lost" {
                        self.end();
                    }
                    Err(failed)
                }
                None => Ok(reply.take()),
            },
            Err(error) => {
                let status = self.end();
                let log = self.log.display();
                Err(WorldFailed(format!("the engine ended ({error}; {status:?}): see {log}")))
            }
        }
    }

    /// Ends the child and everything that it holds; how it ended, if there was one.
    fn end(&mut self) -> Option<std::io::Result<ExitStatus>> {
        self.killer.kill();
        self.running.take().map(|mut running| ending(&mut running.child))
    }
}

/// How a killed child has ended. One that its device's driver keeps may never.
fn ending(child: &mut Child) -> std::io::Result<ExitStatus> {
    let until = Instant::now() + KILLED;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = format!("process {} was killed and has not ended", child.id());
    Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
}

impl Running {
    fn send(&mut self, request: &Value) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.requests.write_all(&line)?;
        self.requests.flush()
    }

    fn hear(&mut self) -> std::io::Result<Value> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

fn exchange(
    running: &mut Running,
    request: &Value,
    each: &mut dyn FnMut(Value) -> ControlFlow<()>,
) -> std::io::Result<Value> {
    running.send(request)?;
    let mut cancelled = false;
    loop {
        let line = running.hear()?;
        let is_reply = line.get("sample").is_none();
        if cancelled && is_reply {
            // The cancellation has an answer of its own, after that of what it ended.
            running.hear()?;
            return Ok(Value::Null);
        }
        if is_reply {
            return Ok(line);
        }
        if !cancelled && each(line).is_break() {
            running.send(&serde_json::json!({ "op": "cancel" }))?;
            cancelled = true;
        }
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.end();
    }
}
