//! Tells whether the index is as it was left. sled can lose data without saying so, and can panic
//! over damaged files, which aborts the process. So a seal (a digest over names, sizes and times of
//! its files) lies beside it while nobody uses it: without the right seal the index is thrown away
//! and built again, also after a process died inside sled.

use std::fmt::Write;
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use events::ids::Digest;

use crate::disk;

fn path_of(index: &Path) -> PathBuf {
    index.with_extension("seal")
}

/// Whether the files in `index` are those that were sealed.
pub(crate) fn holds(index: &Path) -> bool {
    match (fs::read_to_string(path_of(index)), fingerprint(index)) {
        (Ok(seal), Ok(now)) => seal == now,
        _ => false,
    }
}

/// Takes the seal away, before anything is opened or changed.
pub(crate) fn remove(index: &Path) -> Result<(), Error> {
    match disk::remove_file(&path_of(index)) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Seals the files as they are. Failing to costs a rebuild, nothing more.
pub(crate) fn put(index: &Path) {
    if let Ok(now) = fingerprint(index) {
        let _ = disk::write(&path_of(index), now.as_bytes());
    }
}

fn fingerprint(index: &Path) -> Result<String, Error> {
    let mut lines = Vec::new();
    let mut folders = vec![index.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let mut line = entry.path().display().to_string();
            let (size, secs, nanos) = (about.len(), about.mtime(), about.mtime_nsec());
            let _ = write!(line, " {size} {secs}.{nanos}");
            lines.push(line);
        }
    }
    lines.sort_unstable();
    Ok(Digest::of(lines.join("\n").as_bytes()).hex())
}
