//! What an audit is asked and what it found.

use std::collections::BTreeMap;

use events::event::{Event, Recorded};
use events::ids::{Digest, Seq};

/// Findings that are kept as text; all are counted.
const TEXTS: usize = 1000;

/// From where on decisions are compared. What lies before is checked all the same: chain and legality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Since {
    /// From the first event.
    #[default]
    Start,
    /// From this event on.
    Seq(Seq),
    /// From the start of this round on.
    Round(u32),
}

impl Since {
    /// Whether comparing begins with this event, if it has not begun before.
    pub(crate) fn begins_with(self, recorded: &Recorded) -> bool {
        match self {
            Since::Start => true,
            Since::Seq(seq) => recorded.seq >= seq,
            Since::Round(round) => recorded.event == Event::RoundStarted { round },
        }
    }
}

/// One kind of event in the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// How many there are.
    pub events: u64,
    /// Of how many the decision was compared.
    pub compared: u64,
    /// What does not agree.
    pub findings: u64,
    /// What other static rules decided, and these decide otherwise: neither agreement nor finding.
    pub other_rules: u64,
}

/// By which static rules a log was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The purity policy of this program.
    pub purity_policy: u32,
    /// Decisions by each other version (`None`: not recorded), and how many of them come out otherwise
    /// now, so that they cannot be made again.
    pub others: BTreeMap<Option<u32>, (u64, u64)>,
}

impl Rules {
    pub(super) fn count(&mut self, version: Option<u32>, differs: bool) {
        if version != Some(self.purity_policy) {
            let (all, other) = self.others.entry(version).or_default();
            *all += 1;
            *other += u64::from(differs);
        }
    }

    /// Decisions that cannot be made again.
    pub fn undecided(&self) -> u64 {
        self.others.values().map(|(_, other)| other).sum()
    }
}

/// Whether static rules decide it.
pub(super) fn is_by_rules(event: &Event) -> bool {
    matches!(event, Event::ModuleValidated { .. } | Event::KernelCompiled { .. })
}

/// What an audit found.
#[derive(Debug)]
pub struct Report {
    /// Events, with those shared with ancestors.
    pub events: u64,
    /// Position and hash of the last record.
    pub head: (Seq, Digest),
    /// The first things that do not agree.
    pub findings: Vec<String>,
    /// How many things do not agree.
    pub found: u64,
    /// The events by name.
    pub kinds: BTreeMap<&'static str, Kind>,
    /// By which static rules it was decided.
    pub rules: Rules,
}

impl Report {
    pub(super) fn find(&mut self, what: String) {
        self.found += 1;
        if self.findings.len() < TEXTS {
            self.findings.push(what);
        }
    }
}
