//! A home that is being made: a folder beside the place where it will appear, which goes away
//! unless it is published.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use events::log::LogError;

use crate::blobs::BlobDir;
use crate::disk;
use crate::error::{io, refused};
use crate::home::Home;
use crate::place_lock::PlaceLock;
use crate::segment::sync_dir;

#[derive(Debug)]
pub(crate) struct Stage {
    pub dir: PathBuf,
    pub home: Home,
    pub blobs: BlobDir,
    published: bool,
    /// Last, so that it is let go last.
    _alone: PlaceLock,
}

impl Stage {
    /// An empty home in `dir`. What someone who was killed left there is removed; refused while another
    /// process makes it.
    pub fn create(dir: PathBuf) -> Result<Self, LogError> {
        let alone = PlaceLock::of(&dir)?;
        match disk::remove_dir_all(&dir) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(io("cannot remove", &dir)(e)),
            _ => {}
        }
        disk::create_dir_all(&dir).map_err(io("cannot create", &dir))?;
        let home = Home::open(&dir)?;
        let blobs = home.blobs()?;
        Ok(Self { dir, home, blobs, published: false, _alone: alone })
    }

    /// Makes everything in it durable at once.
    pub fn sync(&self) -> Result<(), LogError> {
        disk::sync_disk(&self.dir).map_err(io("cannot sync", &self.dir))
    }

    /// Gives it its name, in one step. `to` must not exist, or hold nothing but empty folders.
    pub fn publish(mut self, to: &Path) -> Result<(), LogError> {
        self.sync()?;
        clear(to)?;
        disk::rename(&self.dir, to).map_err(io("cannot create", to))?;
        self.published = true;
        match to.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
            _ => sync_dir(Path::new(".")),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.published {
            let _ = disk::remove_dir_all(&self.dir);
        }
    }
}

/// How the folders in a home begin in which imports are made.
pub(crate) const IMPORT: &str = "import-";

/// Removes what killed imports have left in `home`. What somebody makes just now stays.
pub(crate) fn sweep(home: &Path) -> Result<(), LogError> {
    let failed = io("cannot list", home);
    for entry in fs::read_dir(home).map_err(&failed)? {
        let name = entry.map_err(&failed)?.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(IMPORT)) else { continue };
        let left = home.join(name.strip_suffix(".lock").unwrap_or(name));
        // Its own file goes away with it.
        let Ok(_alone) = PlaceLock::of(&left) else { continue };
        match disk::remove_dir_all(&left) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(io("cannot remove", &left)(e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The folder beside `to` in which it is made.
pub(crate) fn beside(to: &Path) -> Result<PathBuf, LogError> {
    let Some(name) = to.file_name() else {
        return Err(refused("cannot create", to, "give the name of a new folder"));
    };
    let mut partial = name.to_owned();
    partial.push(".partial");
    Ok(to.with_file_name(partial))
}

/// Refuses a place where something is.
pub(crate) fn require_free(to: &Path) -> Result<(), LogError> {
    if is_free(to)? {
        return Ok(());
    }
    Err(refused("cannot write to", to, "something is there already: give the name of a new folder"))
}

/// Whether there is nothing but what an empty home has.
fn is_free(to: &Path) -> Result<bool, LogError> {
    let entries = match fs::read_dir(to) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(true),
        Err(e) => return Err(io("cannot list", to)(e)),
        Ok(entries) => entries,
    };
    for entry in entries {
        let path = entry.map_err(io("cannot list", to))?.path();
        let known = path.file_name().is_some_and(|name| {
            ["runs", "blobs", "heads", "tmp", "lock"].iter().any(|known| name == *known)
        });
        if !known || (path.is_dir() && !is_free(&path)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the empty folders of a home in which nothing ever happened.
fn clear(to: &Path) -> Result<(), LogError> {
    require_free(to)?;
    match disk::remove_dir_all(to) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(io("cannot replace", to)(e)),
        _ => Ok(()),
    }
}
