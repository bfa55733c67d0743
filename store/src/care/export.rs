//! Writing one run into an archive.

use std::fs::File;
use std::io::{Error, Read, Write};
use std::path::Path;

use events::event::SCHEMA;
use events::ids::RunId;
use events::log::LogError;

use super::References;
use super::archive::{FORMAT, Line, MANIFEST, Manifest, Member};
use super::backup::Copied;
use super::snapshot::Snapshot;
use crate::blob_file::Temporary;
use crate::disk;
use crate::error::{io, refused};
use crate::home::Home;
use crate::place_lock::PlaceLock;
use crate::segment::sync_dir;

const LEVEL: i32 = 3;

/// Writes `run`, the runs that it branched from and all blobs that they name into the new file
/// `to`. An owner may go on meanwhile. On any failure `to` does not appear.
pub fn export(home: &Home, run: RunId, to: &Path) -> Result<Copied, LogError> {
    let _alone = PlaceLock::of(to)?;
    if to.exists() {
        return Err(refused("cannot export to", to, "there is such a file already"));
    }
    let blobs = home.blobs_to_read()?;
    let mut needed = References::default();
    let mut snapshots = vec![Snapshot::take(home, run, &mut needed)?];
    while let Some(parent) = snapshots.last().and_then(|s| s.base).map(|base| base.parent) {
        snapshots.push(Snapshot::take(home, parent, &mut needed)?);
    }
    snapshots.reverse();
    let lines = snapshots.iter().map(|s| Line { run: s.run, last: s.head.0, head: s.head.1 });
    let runs: Vec<Line> = lines.collect();
    let mut copied = Copied { blobs: needed.len() as u64, ..Copied::default() };
    copied.runs = runs.iter().map(|line| (line.run, line.last.0)).collect();
    let manifest = Manifest { format: FORMAT, schema: SCHEMA, runs, blobs: copied.blobs };
    // Read once before anything is written, so that damage is named as what it is.
    if let Some(wrong) = blobs.verify_all(needed.blobs()).into_iter().next() {
        return Err(wrong);
    }
    let dir = match to.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let failed = io("cannot write", to);
    let mut temporary = Temporary::create(dir).map_err(&failed)?;
    let paths = needed.blobs().map(|blob| (Member::Blob(blob), blobs.path(blob)));
    copied.bytes = write(&mut temporary.file, &manifest, &snapshots, paths).map_err(&failed)?;
    temporary.keep(to).map_err(&failed)?;
    sync_dir(dir)?;
    Ok(copied)
}

fn write(
    file: &mut disk::File,
    manifest: &Manifest,
    snapshots: &[Snapshot],
    blobs: impl Iterator<Item = (Member, std::path::PathBuf)>,
) -> Result<u64, Error> {
    let mut packed = zstd::Encoder::new(&mut *file, LEVEL)?;
    packed.include_checksum(true)?;
    let mut tar = tar::Builder::new(packed);
    let text = serde_json::to_vec_pretty(manifest).map_err(Error::other)?;
    add(&mut tar, MANIFEST, text.len() as u64, &mut text.as_slice())?;
    for snapshot in snapshots {
        let run = snapshot.run;
        if let Some(base) = &snapshot.base {
            let text = base.bytes().map_err(Error::other)?;
            let name = Member::Base(run).name();
            add(&mut tar, &name, text.len() as u64, &mut text.as_slice())?;
        }
        for part in &snapshot.parts {
            let name = Member::Segment(run, part.name.clone()).name();
            let mut from = File::open(&part.path)?.take(part.length);
            add(&mut tar, &name, part.length, &mut from)?;
        }
        let head = snapshot.head_bytes();
        add(&mut tar, &Member::Head(run).name(), head.len() as u64, &mut head.as_slice())?;
    }
    for (member, path) in blobs {
        let mut from = File::open(path)?;
        let length = from.metadata()?.len();
        add(&mut tar, &member.name(), length, &mut from)?;
    }
    tar.into_inner()?.finish()?.flush()?;
    Ok(file.inner().metadata()?.len())
}

fn add(
    tar: &mut tar::Builder<impl Write>,
    name: &str,
    length: u64,
    from: &mut dyn Read,
) -> Result<(), Error> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(length);
    let mut counted = from.take(length);
    tar.append_data(&mut header, name, &mut counted)?;
    if counted.limit() == 0 { Ok(()) } else { Err(Error::other(format!("{name} got shorter"))) }
}
