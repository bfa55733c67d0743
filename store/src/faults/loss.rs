//! What is gone with the power. Of a file that was not synced since it was changed, each block of 512
//! bytes may be the old or the new one, and the length anything in between; of names made, changed or
//! removed in folders that were not synced, the last ones may never have been.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::Chance;
use crate::disk::Change;

const BLOCK: usize = super::BLOCK as usize;

#[derive(Debug)]
enum Name {
    Made(PathBuf),
    Folder(PathBuf),
    Renamed { from: PathBuf, to: PathBuf, over: Option<Vec<u8>> },
    Removed(PathBuf, Vec<u8>),
}

impl Name {
    fn path(&self) -> &Path {
        match self {
            Self::Made(path) | Self::Folder(path) | Self::Removed(path, _) => path,
            Self::Renamed { to, .. } => to,
        }
    }

    fn undo(self) {
        match self {
            Self::Made(path) => drop(fs::remove_file(path)),
            Self::Folder(path) => drop(fs::remove_dir_all(path)),
            Self::Removed(path, content) => fs::write(path, content).unwrap(),
            Self::Renamed { from, to, over } => {
                fs::rename(&to, from).unwrap();
                if let Some(content) = over {
                    fs::write(to, content).unwrap();
                }
            }
        }
    }
}

/// What is not durable yet.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Content of changed files as it was when they were synced last.
    synced: BTreeMap<PathBuf, Vec<u8>>,
    names: Vec<Name>,
}

impl Journal {
    /// Notes what `change` is about to replace.
    pub fn before(&mut self, change: Change<'_>) {
        match change {
            Change::Create(path) => {
                let old = fs::read(path);
                if old.is_err() {
                    self.names.push(Name::Made(path.to_owned()));
                }
                self.synced.entry(path.to_owned()).or_insert(old.unwrap_or_default());
            }
            Change::Write(path, ..) | Change::Resize(path, _) => {
                if let (false, Ok(old)) = (self.synced.contains_key(path), fs::read(path)) {
                    self.synced.insert(path.to_owned(), old);
                }
            }
            Change::Remove(path) => {
                if let Ok(content) = fs::read(path) {
                    let content = self.synced.remove(path).unwrap_or(content);
                    self.names.push(Name::Removed(path.to_owned(), content));
                }
            }
            Change::Folder(path) => self.names.push(Name::Folder(path.to_owned())),
            Change::RemoveFolder(path) => {
                self.synced.retain(|changed, _| !changed.starts_with(path));
                self.names.retain(|name| !name.path().starts_with(path));
            }
            Change::Rename(..) | Change::Sync(_) | Change::SyncFolder(_) | Change::SyncAll(_) => {}
        }
        if let Change::Rename(from, to) = change
            && from.exists()
            && fs::read_dir(to).map_or(true, |mut inside| inside.next().is_none())
        {
            let over = fs::read(to).ok();
            let over = over.map(|content| self.synced.remove(to).unwrap_or(content));
            let moved: Vec<_> =
                self.synced.keys().filter(|path| path.starts_with(from)).cloned().collect();
            for path in moved {
                let rest = path.strip_prefix(from).unwrap();
                let now = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
                let content = self.synced.remove(&path).unwrap();
                self.synced.insert(now, content);
            }
            self.names.push(Name::Renamed { from: from.to_owned(), to: to.to_owned(), over });
        }
    }

    /// Notes what is durable once `change` is done.
    pub fn after(&mut self, change: Change<'_>) {
        match change {
            Change::Sync(path) => drop(self.synced.remove(path)),
            Change::SyncFolder(dir) => self.names.retain(|name| name.path().parent() != Some(dir)),
            Change::SyncAll(_) => *self = Self::default(),
            _ => {}
        }
    }

    /// The power goes.
    pub fn lose(self, chance: &mut Chance) {
        for (path, old) in self.synced {
            let Ok(new) = fs::read(&path) else { continue };
            fs::write(path, mixed(&old, &new, chance)).unwrap();
        }
        let kept = chance.below(self.names.len() as u64 + 1) as usize;
        for name in self.names.into_iter().skip(kept).rev() {
            name.undo();
        }
    }
}

fn mixed(old: &[u8], new: &[u8], chance: &mut Chance) -> Vec<u8> {
    let (least, most) = (old.len().min(new.len()), old.len().max(new.len()));
    let between = least + chance.below((most - least) as u64 + 1) as usize;
    let length = chance.of(&[old.len(), new.len(), (between / BLOCK * BLOCK).max(least)]);
    let mut bytes = vec![0; length];
    for (at, block) in bytes.chunks_mut(BLOCK).enumerate() {
        let from = if chance.one_in(2) { old } else { new };
        let from = from.get(at * BLOCK..).unwrap_or_default();
        let held = from.len().min(block.len());
        block[..held].copy_from_slice(&from[..held]);
    }
    bytes
}
