//! Reading one run out of an archive. Nothing of it appears before all of it was checked.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;

use events::ids::RunId;
use events::log::{Blobs, LogError};

use super::References;
use super::archive::{MANIFEST, MANIFEST_MAX, Manifest, Member};
use super::stage::{IMPORT, Stage};
use crate::blob_file::{Failed, copy};
use crate::disk;
use crate::error::{io, refused};
use crate::fork::{Base, ancestors};
use crate::home::Home;
use crate::making::alone;
use crate::segment::sync_dir;
use crate::verify::verify;

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The run that was exported.
    pub run: RunId,
    /// Runs that it branched from and that were not there yet.
    pub ancestors: Vec<RunId>,
    /// Its events, with those of its ancestors.
    pub events: u64,
    /// Blobs in the archive.
    pub blobs: u64,
}

/// Adds the run in the archive `from` to `home`, with the runs that it branched from. Refused if
/// the run is there already, or if an ancestor is there with other records. A damaged or cut-off
/// archive adds nothing.
pub fn import(home: &Home, from: &Path) -> Result<Imported, LogError> {
    // Held to the end: blobs come before the run that names them, and no `gc` may come in between.
    let blobs = home.blobs()?;
    let file = File::open(from).map_err(io("cannot open", from))?;
    let packed = zstd::Decoder::new(file).map_err(|e| bad(from, &e.to_string()))?.single_frame();
    let mut tar = tar::Archive::new(packed);
    let (manifest, stage) = unpack(&mut tar, home, from)?;
    end(tar.into_inner(), from)?;
    let events = check(&manifest, &stage, from)?;
    split(&manifest, home, &stage)?;
    stage.sync()?;
    let needed = names(&stage.home)?;
    for blob in needed.blobs() {
        blobs.adopt(&stage.blobs.path(blob), blob)?;
    }
    blobs.sync()?;
    let _alone = alone(home.dir())?;
    // Others may have brought ancestors meanwhile.
    let (run, known) = split(&manifest, home, &stage)?;
    let new = manifest.runs.iter().map(|line| line.run).filter(|run| !known.contains(run));
    let new: Vec<RunId> = new.collect();
    for run in &new {
        publish(&stage, home, *run)?;
    }
    let ancestors = new.into_iter().filter(|new| *new != run).collect();
    Ok(Imported { run, ancestors, events, blobs: manifest.blobs })
}

fn bad(archive: &Path, what: &str) -> LogError {
    wrong(archive, format!("it is damaged or cut off: {what}"))
}

fn wrong(archive: &Path, what: String) -> LogError {
    LogError::Archive { path: archive.display().to_string(), what }
}

/// Reads what comes after the last member: the zeros that end it, and nothing else. The checksum behind
/// them covers everything.
fn end(mut packed: Packed, from: &Path) -> Result<(), LogError> {
    let more = || wrong(from, "there is more after its end".to_owned());
    let mut buffer = [0; 4096];
    loop {
        match packed.read(&mut buffer).map_err(|e| reading(from, e))? {
            0 => break,
            read if buffer[..read].iter().all(|byte| *byte == 0) => {}
            _ => return Err(more()),
        }
    }
    match packed.finish().read(&mut buffer).map_err(|e| reading(from, e))? {
        0 => Ok(()),
        _ => Err(more()),
    }
}

/// A failure to read is the archive's fault unless the system says otherwise.
fn reading(archive: &Path, error: std::io::Error) -> LogError {
    match error.raw_os_error() {
        Some(_) => io("cannot read", archive)(error),
        None => bad(archive, &error.to_string()),
    }
}

type Packed = zstd::Decoder<'static, std::io::BufReader<File>>;

/// Puts everything into a folder of its own inside `home`.
fn unpack(
    tar: &mut tar::Archive<Packed>,
    home: &Home,
    from: &Path,
) -> Result<(Manifest, Stage), LogError> {
    let mut entries = tar.entries().map_err(|e| reading(from, e))?;
    let first = entries.next().ok_or_else(|| bad(from, "it is empty"))?;
    let first = first.map_err(|e| reading(from, e))?;
    if first.path_bytes().as_ref() != MANIFEST.as_bytes() {
        return Err(bad(from, "it does not begin with a manifest"));
    }
    let mut text = Vec::new();
    first.take(MANIFEST_MAX).read_to_end(&mut text).map_err(|e| reading(from, e))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| bad(from, &format!("its manifest: {e}")))?;
    manifest.check().map_err(|what| wrong(from, what))?;
    let run = manifest.runs.last().ok_or_else(|| bad(from, "it holds no run"))?.run;
    require_new(home, run)?;
    let runs: BTreeSet<RunId> = manifest.runs.iter().map(|line| line.run).collect();
    let stage = Stage::create(home.dir().join(format!("{IMPORT}{run}")))?;
    for entry in entries {
        let mut entry = entry.map_err(|e| reading(from, e))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let member = Member::parse(&name).filter(|_| entry.header().entry_type().is_file());
        let odd = || bad(from, &format!("`{name}` does not belong there"));
        let path = match member.ok_or_else(odd)? {
            Member::Blob(id) => {
                stage.blobs.put_stored(id, &mut entry).map_err(|e| blob_error(from, e))?;
                continue;
            }
            Member::Base(run) if runs.contains(&run) => stage.home.run_dir(run).join("base.json"),
            Member::Head(run) if runs.contains(&run) => {
                stage.dir.join("heads").join(run.to_string())
            }
            Member::Segment(run, file) if runs.contains(&run) => {
                stage.home.run_dir(run).join("log").join(file)
            }
            _ => return Err(odd()),
        };
        write(&path, &mut entry, from)?;
    }
    Ok((manifest, stage))
}

fn require_new(home: &Home, run: RunId) -> Result<(), LogError> {
    if home.run_dir(run).exists() {
        let why = "this run is there already: import into another home, or remove it first";
        return Err(refused("cannot import", &home.run_dir(run), why));
    }
    Ok(())
}

fn blob_error(archive: &Path, error: LogError) -> LogError {
    match error {
        LogError::Blob { id, .. } => bad(archive, &format!("blob {id} has another content")),
        LogError::Io { cause, .. } if cause.raw_os_error().is_none() => reading(archive, cause),
        other => other,
    }
}

fn write(path: &Path, from: &mut dyn Read, archive: &Path) -> Result<(), LogError> {
    let failed = io("cannot write", path);
    if let Some(dir) = path.parent() {
        disk::create_dir_all(dir).map_err(&failed)?;
    }
    let mut file = disk::File::create(path).map_err(&failed)?;
    match copy(from, &mut file) {
        Ok(_) => file.flush().map_err(&failed),
        Err(Failed::Reading(e)) => Err(reading(archive, e)),
        Err(Failed::Writing(e)) => Err(failed(e)),
    }
}

/// Everything that the manifest names is there and whole; returns the events of the run.
fn check(manifest: &Manifest, stage: &Stage, from: &Path) -> Result<u64, LogError> {
    let mut events = 0;
    for line in &manifest.runs {
        let dir = stage.home.run_dir(line.run);
        disk::create_dir_all(&dir.join("log")).map_err(io("cannot create", &dir))?;
        let report =
            verify(&dir, |_, _| ControlFlow::Break(())).map_err(|e| inside(from, stage, e))?;
        if report.head != (line.last, line.head) {
            return Err(bad(from, &format!("run {} does not end as the manifest says", line.run)));
        }
        events = report.events;
    }
    let needed = names(&stage.home)?;
    if let Some(missing) = needed.blobs().find(|blob| !Blobs::has(&stage.blobs, *blob)) {
        return Err(bad(from, &format!("blob {missing} is not in it")));
    }
    if needed.len() as u64 != manifest.blobs {
        return Err(bad(
            from,
            &format!("{} blobs are named, not {}", needed.len(), manifest.blobs),
        ));
    }
    Ok(events)
}

/// Damage of what was unpacked is the archive's: its files are named as they are called there.
fn inside(archive: &Path, stage: &Stage, error: LogError) -> LogError {
    match error {
        LogError::Damaged { path, offset, seq, what } => {
            let file = Path::new(&path);
            let file = file.strip_prefix(stage.home.dir()).unwrap_or(file).display();
            bad(archive, &format!("{file} at byte {offset} (record {seq}): {what}"))
        }
        other => other,
    }
}

fn names(home: &Home) -> Result<References, LogError> {
    References::of_home(home)
}

/// The run, and which of its ancestors are in `home` already, with the records that it shares.
fn split(
    manifest: &Manifest,
    home: &Home,
    stage: &Stage,
) -> Result<(RunId, BTreeSet<RunId>), LogError> {
    let mut known = BTreeSet::new();
    let runs: Vec<RunId> = manifest.runs.iter().map(|line| line.run).collect();
    for (at, run) in runs.iter().enumerate() {
        if !home.run_dir(*run).exists() {
            continue;
        }
        known.insert(*run);
        let Some(child) = runs.get(at + 1) else { continue };
        // Those that come from it share its records up to there.
        if let Some(base) = Base::read(&stage.home.run_dir(*child))? {
            ancestors(&home.dir().join("runs"), &base)?;
        }
    }
    match runs.last() {
        Some(run) if !known.contains(run) => Ok((*run, known)),
        Some(run) => require_new(home, *run).map(|()| (*run, known)),
        None => Err(refused("cannot import into", home.dir(), "no run is given")),
    }
}

/// The head first: a run without one is not gone on with.
fn publish(stage: &Stage, home: &Home, run: RunId) -> Result<(), LogError> {
    let heads = home.dir().join("heads");
    let head = heads.join(run.to_string());
    let staged = stage.dir.join("heads").join(run.to_string());
    disk::rename(&staged, &head).map_err(io("cannot create", &head))?;
    sync_dir(&heads)?;
    let dir = home.run_dir(run);
    disk::rename(&stage.home.run_dir(run), &dir).map_err(|e| match e.kind() {
        ErrorKind::DirectoryNotEmpty => refused("cannot import", &dir, "it was made meanwhile"),
        _ => io("cannot create", &dir)(e),
    })?;
    sync_dir(&home.dir().join("runs"))
}
