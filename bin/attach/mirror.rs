//! Kernels judged by a second judge, over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use actors::attached::Attached;
use events::config::Rules;
use events::event::{Event, Recorded};
use events::ids::{BlobId, KernelId, Seq};
use events::intent::Intent;
use events::log::Blobs;
use events::outcome::Measurement;
use events::rules::verdict::verdict;
use events::state::RunState;
use serde_json::{Value, json};

/// How long the other judge may take for one kernel, in polls of half a minute.
const POLLS: u32 = 40;
/// How often one that cannot be reached is tried, and after how long again.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_secs(3);

/// Asks the other judge about kernels that this run measures, one after the other.
pub struct Mirror {
    judge: String,
    percent: u64,
    blobs: Arc<dyn Blobs>,
    /// The fold of what it has seen: it knows the code of kernels and modules, and the settings.
    state: RunState,
    /// The log's last event when it came: what was measured before is not looked at.
    last: Seq,
}

impl Mirror {
    /// A mirror to the service at `judge`.
    pub fn new(judge: &str, percent: u64, blobs: Arc<dyn Blobs>) -> Self {
        let judge = judge.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self { judge, percent, blobs, state: RunState::default(), last: Seq(0) }
    }

    fn text(&self, id: BlobId) -> Result<String, String> {
        let bytes = self.blobs.get(id).map_err(|error| error.to_string())?;
        String::from_utf8(bytes).map_err(|error| format!("blob {id}: {error}"))
    }

    fn measured(&self, kernel: KernelId, measurement: &Measurement) -> Result<Vec<Intent>, String> {
        let entry = self.state.open.kernel.get(&kernel);
        let module = entry.and_then(|entry| self.state.module_source(entry.module));
        let source = entry.and_then(|entry| entry.source);
        let (Some(config), Some(module), Some(source)) = (&self.state.config, module, source)
        else {
            return Ok(Vec::new());
        };
        // Ids are hashes: each hundredth of them is as good as any.
        if kernel.0.as_u128() % 100 >= u128::from(self.percent) {
            return Ok(Vec::new());
        }
        let Some(here) = verdict(measurement, config.judge.profile) else { return Ok(Vec::new()) };
        let job = json!({
            "reference": self.text(module)?,
            "candidate": self.text(source)?,
            "client_id": kernel.to_string(),
            "profile": match config.judge.profile {
                Rules::Paper => "paper",
                Rules::Strict => "strict",
            },
        });
        let there = self.judged(&job)?;
        let judged = there != "judge_error" && there != "no_device";
        let agree = judged && here.is_correct() == (there == "correct");
        let text = format!("mirror: kernel {kernel} is {here:?} here, {there} at {}", self.judge);
        Ok(if agree { Vec::new() } else { vec![Intent::Note { text }] })
    }

    /// The outcome of a job at the other judge.
    fn judged(&self, job: &Value) -> Result<String, String> {
        let mut answer = self.http("POST", "/v1/judge", &job.to_string())?;
        for _ in 0..POLLS {
            if let Some(outcome) = answer["result"]["outcome"].as_str() {
                return Ok(outcome.to_owned());
            }
            let id = answer["id"].as_str().ok_or_else(|| format!("{}: {answer}", self.judge))?;
            answer = self.http("GET", &format!("/v1/judge/{id}?wait=30"), "")?;
        }
        Err(format!("{} has not judged in {} minutes", self.judge, POLLS / 2))
    }

    fn http(&self, method: &str, path: &str, body: &str) -> Result<Value, String> {
        let failed = |error: std::io::Error| format!("the judge at {}: {error}", self.judge);
        let mut tries = 1;
        let mut stream = loop {
            match TcpStream::connect(&self.judge) {
                Ok(stream) => break stream,
                Err(error) if tries == TRIES => return Err(failed(error)),
                Err(_) => std::thread::sleep(PAUSE),
            }
            tries += 1;
        };
        stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(failed)?;
        let (host, length) = (&self.judge, body.len());
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).map_err(failed)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(failed)?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).map_err(|error| format!("{host} answers {answer:?}: {error}"))
    }
}

impl Attached for Mirror {
    fn after(&mut self, last: Seq) -> Seq {
        self.last = last;
        Seq(0)
    }

    fn see(&mut self, recorded: &Recorded) -> Result<Vec<Intent>, String> {
        let asked = match &recorded.event {
            Event::KernelMeasured { kernel, measurement } if recorded.seq > self.last => {
                self.measured(*kernel, measurement)?
            }
            _ => Vec::new(),
        };
        let applied = self.state.apply(recorded.seq, &recorded.event);
        applied.map(|()| asked).map_err(|error| error.to_string())
    }
}
