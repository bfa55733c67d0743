//! Sums over a run, for people and for weakness weights.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::Role;

/// How many were judged, and how many of them were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Right ones.
    pub right: u64,
    /// All.
    pub all: u64,
}

impl Tally {
    /// Counts one more.
    pub fn add(&mut self, right: bool) {
        self.right += u64::from(right);
        self.all += 1;
    }

    /// Share of right ones; 0 if there are none.
    pub fn share(&self) -> f64 {
        if self.all == 0 { 0.0 } else { self.right as f64 / self.all as f64 }
    }
}

/// Sums over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Modules, and valid ones.
    pub modules: Tally,
    /// Kernels that were judged, and right ones.
    pub kernels: Tally,
    /// Scored groups, and those with a signal, by whose phase.
    pub groups: BTreeMap<Role, Tally>,
    /// Steps, and those with an update, by whose phase.
    pub steps: BTreeMap<Role, Tally>,
    /// Tokens drawn, by who drew them.
    pub tokens: BTreeMap<Role, u64>,
    /// Failures of the world.
    pub world_failures: u64,
}
