//! The archive of one run: a tar file in zstd, with the runs that it branched from.
//!
//! ```text
//! kernelzero.json             the manifest, first
//! runs/<run>/base.json        where a branch left its parent
//! runs/<run>/log/<first>.seg  segments as they are stored
//! heads/<run>                 position and hash of the last record
//! blobs/<hash>                blobs as they are stored
//! ```

use std::collections::BTreeSet;

use events::event::SCHEMA;
use events::ids::{BlobId, Digest, RunId, Seq};
use serde::{Deserialize, Serialize};

/// Name of the manifest.
pub(crate) const MANIFEST: &str = "kernelzero.json";
/// Version of this layout.
pub(crate) const FORMAT: u32 = 1;
/// Longest manifest, in bytes: a run has few ancestors.
pub(crate) const MANIFEST_MAX: u64 = 1 << 20;

/// What an archive says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Version of the layout.
    pub format: u32,
    /// Newest schema of a record in it.
    pub schema: u16,
    /// Runs, oldest ancestor first; the last one is what was exported.
    pub runs: Vec<Line>,
    /// How many blobs it holds.
    pub blobs: u64,
}

/// One run in the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub run: RunId,
    pub last: Seq,
    pub head: Digest,
}

/// A place in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    Base(RunId),
    Segment(RunId, String),
    Head(RunId),
    Blob(BlobId),
}

impl Member {
    /// The place of this name; `None` for any name that does not belong into an archive.
    pub fn parse(name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.split('/').collect();
        match parts.as_slice() {
            ["runs", run, "base.json"] => Some(Self::Base(id(run)?)),
            ["runs", run, "log", file] => {
                let stem = file.strip_suffix(".seg")?;
                let digits = stem.len() == 20 && stem.bytes().all(|b| b.is_ascii_digit());
                digits.then_some(Self::Segment(id(run)?, (*file).to_owned()))
            }
            ["heads", run] => Some(Self::Head(id(run)?)),
            ["blobs", hash] => Some(Self::Blob(hash.parse().ok()?)),
            _ => None,
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::Base(run) => format!("runs/{run}/base.json"),
            Self::Segment(run, file) => format!("runs/{run}/log/{file}"),
            Self::Head(run) => format!("heads/{run}"),
            Self::Blob(blob) => format!("blobs/{blob}"),
        }
    }
}

/// A run's id in the one form in which it is written.
fn id(text: &str) -> Option<RunId> {
    text.parse::<RunId>().ok().filter(|run| run.to_string() == text)
}

impl Manifest {
    /// Refuses what a newer program wrote, and what names a run twice. The error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let (format, schema) = (self.format, self.schema);
        if format > FORMAT || schema > SCHEMA {
            return Err(format!(
                "it has format {format} and records of schema {schema}, this program knows {FORMAT} and \
                 {SCHEMA}: use a newer program"
            ));
        }
        let runs: BTreeSet<RunId> = self.runs.iter().map(|line| line.run).collect();
        if runs.len() < self.runs.len() {
            return Err("its manifest names a run twice".to_owned());
        }
        Ok(())
    }
}
