//! Named tensors of files against the places that a model has for them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tch::Tensor;

use crate::error::{Error, Result};
use crate::layout::Spec;

/// The places of a model: name to shape and first element.
pub(crate) struct Fill {
    places: BTreeMap<String, (Vec<i64>, i64)>,
}

impl Fill {
    pub(crate) fn new(specs: &[Spec]) -> Self {
        let places = specs.iter().flat_map(Spec::places);
        let places = places.map(|(part, shape, at)| (part.name.clone(), (shape, at))).collect();
        Fill { places }
    }

    /// Holds names and shapes of tensors to the places: each is filled by one tensor of its shape,
    /// and nothing else is there.
    pub(crate) fn check(
        &self,
        dir: &Path,
        tensors: impl Iterator<Item = (String, Vec<i64>)>,
    ) -> Result<()> {
        let mut seen = BTreeSet::new();
        let (mut extra, mut shapes) = (Vec::new(), Vec::new());
        for (name, found) in tensors {
            match self.places.get(&name) {
                None => extra.push(name),
                Some((shape, _)) if *shape != found => {
                    shapes.push(format!("`{name}` has {found:?}, not {shape:?}"));
                    seen.insert(name);
                }
                Some(_) => drop(seen.insert(name)),
            }
        }
        let path = || dir.to_owned();
        if !shapes.is_empty() {
            return Err(Error::Shape { path: path(), shapes: list(&shapes) });
        }
        if !extra.is_empty() {
            return Err(Error::UnexpectedTensor { path: path(), names: list(&extra) });
        }
        self.complete(dir, &seen)
    }

    /// Hands one tensor, checked, to `put(first element, tensor)`.
    pub(crate) fn copy(
        &self,
        file: &Path,
        name: &str,
        tensor: &Tensor,
        put: impl FnOnce(i64, &Tensor) -> Result<()>,
    ) -> Result<()> {
        let path = || -> PathBuf { file.to_owned() };
        let Some((shape, offset)) = self.places.get(name) else {
            return Err(Error::UnexpectedTensor { path: path(), names: name.into() });
        };
        let found = tensor.size();
        if &found != shape {
            let shapes = format!("`{name}` has {found:?}, not {shape:?}");
            return Err(Error::Shape { path: path(), shapes });
        }
        if tensor.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            return Err(Error::WeightsNotFinite { path: path(), name: name.into() });
        }
        put(*offset, tensor)
    }

    /// Fails with all places that are not among `seen`.
    pub(crate) fn complete(&self, dir: &Path, seen: &BTreeSet<String>) -> Result<()> {
        let missing: Vec<String> =
            self.places.keys().filter(|n| !seen.contains(*n)).cloned().collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Error::MissingTensor { path: dir.to_owned(), names: list(&missing) }),
        }
    }
}

/// The first few of `words`, and how many more there are.
fn list(words: &[String]) -> String {
    const SHOWN: usize = 8;
    let more = words.len().saturating_sub(SHOWN);
    let text = words[..words.len() - more].join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}
