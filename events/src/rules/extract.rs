//! Code out of a chatty answer. Which extractor a run uses is one of its settings, so that a log
//! that was written with an older one is audited with that one.

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
        match self {
            Self::Fences => fences::code(answer).map(str::to_owned),
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
fn parsed(answer: &str, entry: &str) -> Option<String> {
    let answer = blocks::spoken(answer);
    let whole = python::read(answer);
    if whole.defines(entry) {
        return fit(answer.to_owned());
    }
    let blocks = blocks::blocks(answer);
    let defining = |closed: bool, python: bool| {
        let mut last = blocks.iter().rev().filter(|b| b.closed == closed && b.python == python);
        last.find(|block| python::read(&block.text).defines(entry))
    };
    let chosen = defining(true, true)
        .or_else(|| defining(true, false))
        .or_else(|| defining(false, true))
        .or_else(|| blocks.iter().rev().find(|b| b.closed && b.python))?;
    fit(chosen.text.clone())
}

fn fit(code: String) -> Option<String> {
    (!code.trim().is_empty() && code.len() <= SOURCE_MAX).then_some(code)
}
