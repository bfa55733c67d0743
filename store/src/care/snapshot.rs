//! One run's log at one moment: what was acknowledged then, whatever its owner appends later.
//! Segments only grow, so nothing has to be asked of the owner.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use events::ids::{Digest, RunId, Seq};
use events::log::LogError;

use crate::disk;
use crate::error::io;
use crate::file_log::{FileLog, OpenMode};
use crate::fork::Base;
use crate::head::Head;
use crate::home::Home;

use super::References;

/// A segment as far as it belongs to the moment.
#[derive(Debug)]
pub(crate) struct Part {
    pub path: PathBuf,
    pub name: String,
    pub length: u64,
}

#[derive(Debug)]
pub(crate) struct Snapshot {
    pub run: RunId,
    pub base: Option<Base>,
    pub parts: Vec<Part>,
    pub head: (Seq, Digest),
}

impl Snapshot {
    /// Reads and checks the run's own records, and adds the blobs that they name to `needed`.
    pub fn take(home: &Home, run: RunId, needed: &mut References) -> Result<Self, LogError> {
        let log: FileLog = home.open_run(run, OpenMode::ReadOnly)?;
        log.require_head()?;
        let view = log.own_view()?;
        needed.add_up_to(&log, view.before + 1, view.last)?;
        let mut parts = Vec::new();
        let count = view.segments.len();
        for (at, segment) in view.segments.iter().enumerate() {
            if segment.header.first > view.last {
                continue;
            }
            let length = if at + 1 == count { view.end } else { segment.len()? };
            let name = crate::segment::name(segment.header.first);
            parts.push(Part { path: segment.path.clone(), name, length });
        }
        let head = (Seq(view.last), view.hash);
        Ok(Self { run, base: log.base().copied(), parts, head })
    }

    /// The head file that belongs to the moment.
    pub fn head_bytes(&self) -> Vec<u8> {
        Head { seq: self.head.0.0, hash: self.head.1 }.encode().to_vec()
    }

    /// Writes the run into `home`, which nobody uses yet. Not synced.
    pub fn write(&self, home: &Path) -> Result<u64, LogError> {
        let dir = home.join("runs").join(self.run.to_string());
        let log = dir.join("log");
        disk::create_dir_all(&log).map_err(io("cannot create", &log))?;
        if let Some(base) = &self.base {
            base.write(&dir)?;
        }
        let mut bytes = 0;
        for part in &self.parts {
            let to = log.join(&part.name);
            bytes += part.length;
            let mut file = disk::File::create(&to).map_err(io("cannot create", &to))?;
            part.copy(&mut file).map_err(io("cannot write", &to))?;
        }
        let heads = home.join("heads");
        disk::create_dir_all(&heads).map_err(io("cannot create", &heads))?;
        let head = heads.join(self.run.to_string());
        disk::write(&head, &self.head_bytes()).map_err(io("cannot write", &head))?;
        Ok(bytes)
    }
}

impl Part {
    /// Copies the segment's part; an error if the file is shorter by now.
    pub fn copy(&self, to: &mut dyn Write) -> Result<(), std::io::Error> {
        let mut from = File::open(&self.path)?.take(self.length);
        let copied = std::io::copy(&mut from, to)?;
        if copied == self.length {
            return Ok(());
        }
        Err(std::io::Error::other(format!("{} is shorter than it was", self.path.display())))
    }
}
