//! The two streams of `serve`: lines are read ahead, so that a cancellation is seen while an answer
//! is being written.

use std::collections::VecDeque;
use std::io::{BufRead, Result, Write};
use std::sync::mpsc::{Receiver, sync_channel};

use serde::Serialize;
use serde_json::Value;

/// Lines that wait unread by us before the parent has to wait.
const AHEAD: usize = 64;

/// Lines in and out.
pub(crate) struct Link<W> {
    lines: Receiver<Result<String>>,
    /// Read while looking for a cancellation.
    waiting: VecDeque<Result<String>>,
    output: W,
    /// The `id` of the request that is being answered.
    pub(crate) id: Option<Value>,
}

impl<W: Write> Link<W> {
    /// Starts to read.
    pub(crate) fn new(input: impl BufRead + Send + 'static, output: W) -> Self {
        let (sender, lines) = sync_channel(AHEAD);
        std::thread::spawn(move || {
            for line in input.lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Link { lines, waiting: VecDeque::new(), output, id: None }
    }

    /// The next line; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<String>> {
        let line = self.waiting.pop_front().or_else(|| self.lines.recv().ok());
        line.transpose()
    }

    /// Sends a line.
    pub(crate) fn send(&mut self, line: &impl Serialize) -> Result<()> {
        serde_json::to_writer(&mut self.output, line)?;
        self.output.write_all(b"\n")?;
        self.output.flush()
    }

    /// Whether a cancellation has come. It stays in line, to be answered in its turn.
    pub(crate) fn cancelled(&mut self) -> bool {
        while let Ok(line) = self.lines.try_recv() {
            let cancels = line.as_ref().is_ok_and(|l| is_cancel(l));
            self.waiting.push_back(line);
            if cancels {
                return true;
            }
        }
        false
    }
}

fn is_cancel(line: &str) -> bool {
    line.contains("cancel")
        && serde_json::from_str(line).is_ok_and(|v: Value| v["op"].as_str() == Some("cancel"))
}
