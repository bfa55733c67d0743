//! Code out of a chatty answer. Which extractor a run uses is one of its settings, so that a log
//! that was written with an older one is audited with that one.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::ids::Role;

mod blocks;
mod fences;
mod python;
#[cfg(test)]
mod tests;

/// Longest source that is taken, in bytes.
pub const SOURCE_MAX: usize = 64 * 1024;

/// How code is found in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extractor {
    /// The last complete fenced block whose language is Python or none. What configs without the
    /// setting mean: those of logs from before there was one.
    #[default]
    Fences,
    /// Thoughts are left out, fences that belong to Python's strings end nothing, and the block
    /// that defines what was asked for is preferred.
    Parsed,
}

impl Extractor {
    /// Whether this is what a config without the setting means.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The code in an answer of a role's model. `None` if there is none or if it is longer than
    /// [`SOURCE_MAX`].
    pub fn code(self, answer: &str, role: Role) -> Option<String> {
        self.find(answer, role).map(Cow::into_owned)
    }

    /// [`Extractor::code`], not copied where it stands in the answer as it is.
    pub fn find(self, answer: &str, role: Role) -> Option<Cow<'_, str>> {
        match self {
            Self::Fences => fences::code(answer).map(Cow::Borrowed),
            Self::Parsed => parsed(answer, entry(role)),
        }
    }
}

/// What a role's model is asked to define.
fn entry(role: Role) -> &'static str {
    match role {
        Role::Proposer => "Model",
        Role::Coder => "ModelNew",
    }
}

/// The whole answer if it is a Python file that defines `entry`; else the last complete block that
/// defines it, one in Python before one in another language; else the block that was not closed
/// if it does; else the last complete block of Python.
fn parsed<'a>(answer: &'a str, entry: &str) -> Option<Cow<'a, str>> {
    let answer = blocks::spoken(answer);
    if python::is_file_with(answer, entry) {
        return fit(Cow::Borrowed(answer));
    }
    let mut blocks = blocks::blocks(answer);
    let defining = |closed: bool, python: bool| {
        let fits = |b: &blocks::Block<'_>| {
            b.closed == closed && b.python == python && python::is_file_with(&b.text, entry)
        };
        blocks.iter().rposition(fits)
    };
    let chosen = defining(true, true)
        .or_else(|| defining(true, false))
        .or_else(|| defining(false, true))
        .or_else(|| blocks.iter().rposition(|b| b.closed && b.python))?;
    fit(blocks.swap_remove(chosen).text)
}

fn fit(code: Cow<'_, str>) -> Option<Cow<'_, str>> {
    (!code.trim().is_empty() && code.len() <= SOURCE_MAX).then_some(code)
}
