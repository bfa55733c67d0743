//! Making a run: it appears with all that it needs or not at all.
//!
//! It is built in `<home>/runs/new-<run>`, made durable and renamed. One process at a time makes runs
//! (`<home>/lock`), so whatever has such a name while another is made was left by someone who was killed.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use events::event::Draft;
use events::ids::RunId;
use events::log::LogError;

use crate::disk;
use crate::error::{io, refused};
use crate::file_log::Options;
use crate::fork::Base;
use crate::head::{self, Head};
use crate::lineage::View;
use crate::lock::OwnerLock;
use crate::place_lock::PlaceLock;
use crate::segment::sync_dir;
use crate::writer::Writer;

const NEW: &str = "new-";
/// The head of a run that is being made, in its own folder.
const HEAD: &str = "head";

/// Held by whoever gives a run of `home` its name.
pub(crate) fn alone(home: &Path) -> Result<PlaceLock, LogError> {
    PlaceLock::wait(&home.join("lock"))
}

/// Makes a run, empty or as a branch with its first records, and owns it. Refused if it is there. On a
/// failure there is nothing of it; where only its name could not be made durable, it is there, whole.
pub(crate) fn make(
    home: &Path,
    run: RunId,
    branch: Option<(&Base, Vec<Draft>)>,
) -> Result<OwnerLock, LogError> {
    let _alone = alone(home)?;
    sweep(home)?;
    let [runs, heads] = ["runs", "heads"].map(|part| home.join(part));
    let [dir, head] = [&runs, &heads].map(|part| part.join(run.to_string()));
    if dir.exists() || head.exists() {
        return Err(refused("cannot create", &dir, "there is a run with this id"));
    }
    let new = runs.join(format!("{NEW}{run}"));
    let made = fill(&new, branch).and_then(|lock| {
        // Whoever finds the head finds the folder too, and so knows whose it is.
        sync_dir(&runs)?;
        match disk::rename(&new.join(HEAD), &head) {
            Ok(()) => sync_dir(&heads)?,
            // An empty run has none.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(io("cannot create", &head)(e)),
        }
        disk::rename(&new, &dir).map_err(io("cannot create", &dir))?;
        Ok(lock)
    });
    if made.is_err() {
        // Else the next one does it.
        let _ = sweep(home);
    }
    let lock = made?;
    sync_dir(&runs)?;
    Ok(lock)
}

/// Puts everything that the run needs into the folder `new`, durably.
fn fill(new: &Path, branch: Option<(&Base, Vec<Draft>)>) -> Result<OwnerLock, LogError> {
    let log = new.join("log");
    disk::create_dir_all(&log).map_err(io("cannot create", &log))?;
    let lock = OwnerLock::take(new)?;
    if let Some((base, first)) = branch {
        base.write(new)?;
        let path = new.join(HEAD);
        let file = disk::File::create(&path).map_err(io("cannot write", &path))?;
        let mut view = View::after(base.at, base.head);
        let mut writer = Writer::new(log, &view, file, Options::default().segment_bytes)?;
        writer.append(first)?;
        writer.publish(&mut view);
        let written = head::write(writer.head(), Head { seq: view.last, hash: view.hash });
        written.and_then(|()| writer.head().sync_all()).map_err(io("cannot write", &path))?;
    }
    sync_dir(new)?;
    Ok(lock)
}

/// Removes what was left by those who were killed while they made a run.
fn sweep(home: &Path) -> Result<(), LogError> {
    let runs = home.join("runs");
    for entry in fs::read_dir(&runs).map_err(io("cannot list", &runs))? {
        let left = entry.map_err(io("cannot list", &runs))?.path();
        let name = left.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(run) = name.strip_prefix(NEW).and_then(|run| run.parse::<RunId>().ok()) else {
            continue;
        };
        let heads = home.join("heads");
        let head = heads.join(run.to_string());
        if head.exists() && !runs.join(run.to_string()).exists() {
            disk::remove_file(&head).map_err(io("cannot remove", &head))?;
            sync_dir(&heads)?;
        }
        disk::remove_dir_all(&left).map_err(io("cannot remove", &left))?;
    }
    Ok(())
}
