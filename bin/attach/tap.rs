//! Events into a file.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};

use actors::attached::{Attached, Filter};
use events::event::Recorded;
use events::ids::Seq;
use events::intent::Intent;

/// Longest end of a file that is looked through for its last line, in bytes.
const TAIL: u64 = 16 << 20;
/// How the line of an event begins.
const FIRST: &[u8] = b"{\"seq\":";

/// Writes each event as a line of JSON.
pub struct Tap {
    path: String,
    file: File,
    events: Option<Vec<String>>,
    /// The last event in the file, until the log has shown that it is its own.
    last: Option<Recorded>,
}

impl Tap {
    /// Opens or makes the file at `path`; what is in it stays, but for a line that was cut off.
    pub fn open(path: &str, events: Option<Vec<String>>) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("tap: cannot write {path}: {error}");
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(cannot)?;
        let length = file.metadata().map_err(cannot)?.len();
        let start = length.saturating_sub(TAIL);
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(start)).map_err(cannot)?;
        file.read_to_end(&mut tail).map_err(cannot)?;
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let last = match tail[..whole].split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()) {
            // Empty, or with nothing but the beginning of its first event.
            None if start == 0
                && whole == 0
                && (tail.starts_with(FIRST) || FIRST.starts_with(&tail)) =>
            {
                None
            }
            None => return Err(format!("tap: {path} holds other things than events")),
            Some(line) => {
                let recorded = serde_json::from_slice::<Recorded>(line);
                Some(
                    recorded
                        .map_err(|e| format!("tap: the last line of {path} is no event: {e}"))?,
                )
            }
        };
        file.set_len(start + whole as u64).map_err(cannot)?;
        file.seek(SeekFrom::End(0)).map_err(cannot)?;
        Ok(Self { path: path.to_owned(), file, events, last })
    }
}

impl Tap {
    fn other(&self) -> String {
        format!("tap: {} ends with an event that this run has not: give another file", self.path)
    }
}

impl Attached for Tap {
    fn filter(&self) -> Filter {
        Filter { events: self.events.clone(), actors: None }
    }

    fn after(&mut self, _: Seq) -> Seq {
        // The last one again, to compare.
        Seq(self.last.as_ref().map_or(0, |last| last.seq.0.saturating_sub(1)))
    }

    fn see(&mut self, recorded: &Recorded) -> Result<Vec<Intent>, String> {
        if let Some(last) = self.last.take() {
            return if last == *recorded { Ok(Vec::new()) } else { Err(self.other()) };
        }
        let mut line = serde_json::to_vec(recorded).map_err(|error| error.to_string())?;
        line.push(b'\n');
        let written = self.file.write_all(&line);
        written.map_err(|error| format!("tap: cannot write {}: {error}", self.path))?;
        Ok(Vec::new())
    }

    fn caught_up(&mut self) -> Result<Vec<Intent>, String> {
        if self.last.is_some() { Err(self.other()) } else { Ok(Vec::new()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_event_stays_as_it_is() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("notes");
        let open = || Tap::open(file.to_str().unwrap(), None);
        for notes in ["my notes", "my notes\n", "{\"seq", "{\"seq\":1,\"at"] {
            std::fs::write(&file, notes).unwrap();
            let ours = FIRST.starts_with(notes.as_bytes()) || notes.as_bytes().starts_with(FIRST);
            assert_eq!(open().is_ok(), ours, "{notes}");
            let left = std::fs::read(&file).unwrap();
            assert_eq!(left, if ours { b"" } else { notes.as_bytes() }, "{notes}");
        }
    }
}
