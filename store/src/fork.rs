//! Forks: a run that shares its parent's records up to some position and goes on by itself.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

use events::ids::{Digest, RunId, Seq};
use events::log::LogError;
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::error::{damaged, io, refused};
use crate::lineage::{View, record_at};
use crate::segment::{self, Segment};

const NAME: &str = "base.json";
/// More forks of forks than anyone makes; stops a base that names itself.
const DEPTH_MAX: usize = 1000;

/// Where a fork left its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// The run it left.
    pub parent: RunId,
    /// The last shared record.
    pub at: Seq,
    /// Hash of the last shared record.
    pub head: Digest,
}

impl Base {
    fn text(&self, path: &Path) -> Result<String, LogError> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|e| refused("cannot write", path, e.to_string()))
    }

    /// What its file holds.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, LogError> {
        self.text(Path::new(NAME)).map(String::into_bytes)
    }

    /// The base of the run in `dir`, if it is a fork.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, LogError> {
        let path = dir.join(NAME);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io("cannot read", &path)(e)),
        };
        let base: Self = serde_json::from_slice(&text)
            .map_err(|e| damaged(&path, 0, 0, format!("this is no fork's base: {e}")))?;
        if base.text(&path)?.as_bytes() != text {
            return Err(damaged(&path, 0, base.at.0, "this is not how the base was written"));
        }
        Ok(Some(base))
    }

    /// Writes it into `dir` durably.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), LogError> {
        let path = dir.join(NAME);
        let text = self.text(&path)?;
        let written = disk::File::create(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
        written.map_err(io("cannot write", &path))
    }
}

/// Views of the runs below `base`, oldest first, cut to what is shared and checked against its
/// hash. Nothing after `base.at` is looked at.
pub(crate) fn ancestors(runs: &Path, base: &Base) -> Result<Vec<View>, LogError> {
    let mut views = Vec::new();
    let mut wanted = Some(*base);
    for _ in 0..DEPTH_MAX {
        let Some(base) = wanted else {
            views.reverse();
            return Ok(views);
        };
        let dir = runs.join(base.parent.to_string());
        if !dir.exists() {
            let what =
                "the run that a branch left is missing: restore it, or the branch's base.json";
            return Err(damaged(&dir, 0, base.at.0, what));
        }
        let below = Base::read(&dir)?;
        if let Some(below) = below.filter(|below| below.at >= base.at) {
            wanted = Some(Base { parent: below.parent, ..base });
            continue;
        }
        views.push(shared(&dir.join("log"), below.map_or(0, |b| b.at.0), &base)?);
        wanted = below;
    }
    Err(refused("cannot open", runs, "the forks do not end: a run's base names itself"))
}

fn shared(log: &Path, before: u64, base: &Base) -> Result<View, LogError> {
    let firsts = segment::list(log)?;
    let wanted = firsts.into_iter().filter(|first| *first <= base.at.0);
    let segments = wanted.map(|first| Segment::open(log, first).map(Arc::new));
    let segments = Arc::new(segments.collect::<Result<Vec<_>, _>>()?);
    let end = segments.last().map_or(Ok(0), |s| s.len())?;
    let view = View { segments, before, last: base.at.0, hash: base.head, end };
    view.check_start(log)?;
    let found = record_at(std::slice::from_ref(&view), view.last)?;
    if found.map(|(_, hash)| hash) != Some(view.hash) {
        let what = "the parent's record is not the one that the fork left";
        return Err(damaged(log, 0, view.last, what));
    }
    Ok(view)
}
