//! Decides a whole log again and compares. The log goes by as a stream: memory does not grow with
//! it. One thread reads and checks the chain, the other folds and decides.

mod evidence;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Result, anyhow};
use events::event::{Event, Recorded};
use events::ids::{Digest, RunId, Seq};
use events::log::{Log, LogError};
use events::rules::audit::{Auditor, Evidence};
use events::rules::intent::may;
use events::state::RunState;
use store::{FileLog, HeadState, OpenMode};

pub use self::evidence::Stored;
use crate::exit::Usage;
use crate::runs::{home_to_read, pick};

/// Findings that are kept as text; all are counted.
const TEXTS: usize = 1000;
/// Records that one thread hands to the other at a time, and how many such lots may wait.
const LOT: usize = 512;
const LOTS: usize = 8;

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

/// One kind of event in the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// How many there are.
    pub events: u64,
    /// Of how many the decision was compared.
    pub compared: u64,
    /// What does not agree.
    pub findings: u64,
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
}

/// Audits one run without writing anything. Damage of the log itself is an error; a decision that
/// does not agree is a finding. `expected_head` is a hash that was kept elsewhere.
pub fn audit(
    dir: &Path,
    named: Option<RunId>,
    since: Since,
    expected_head: Option<Digest>,
) -> Result<(RunId, Report)> {
    let home = home_to_read(dir)?;
    let run = pick(&home, named)?;
    let log = home.open_run(run, OpenMode::ReadOnly)?;
    let mut report = audit_log(&log, &Stored::new(home.blobs_to_read()?), since)?;
    if log.recovery().outside == HeadState::Missing {
        report.find(
            "the head kept outside the log is missing: an edit that was chained anew would not show"
                .to_owned(),
        );
    }
    if expected_head.is_some_and(|expected| expected != report.head.1) {
        report.find(format!("the head is {}, not what was kept elsewhere", report.head.1));
    }
    Ok((run, report))
}

/// Audits an open log up to where it ends now.
pub fn audit_log(log: &FileLog, evidence: &dyn Evidence, since: Since) -> Result<Report> {
    let end = log.head().0;
    if let Since::Seq(seq) = since
        && seq > end
    {
        return Err(Usage(format!("--since {}: the log ends with {end}", seq.0)).into());
    }
    let mut audit = Audit::new(since);
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel(LOTS);
        let reader = scope.spawn(move || read(log, end, &sender));
        audit.all(receiver, evidence);
        reader
            .join()
            .map_err(|_| anyhow!("the reader of the log panicked"))?
            .map_err(anyhow::Error::from)
    })?;
    audit.end()
}

type Lot = Vec<(Recorded, Digest)>;

/// Reads and checks the log; the other side hears only of what is sound.
fn read(log: &FileLog, end: Seq, to: &SyncSender<Lot>) -> Result<(), LogError> {
    let mut lot = Vec::with_capacity(LOT);
    log.scan_owned(Seq(1), |recorded, hash| {
        if recorded.seq > end {
            return ControlFlow::Break(());
        }
        lot.push((recorded, hash));
        let full = lot.len() == LOT;
        // The receiver goes on to the end, so sending fails only after a panic there.
        if full && to.send(std::mem::replace(&mut lot, Vec::with_capacity(LOT))).is_err() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    let _ = to.send(lot);
    Ok(())
}

struct Audit {
    since: Since,
    /// Whether decisions are compared yet.
    compares: bool,
    /// Whether the fold stopped: an event cannot follow. The chain is checked to the end.
    stopped: bool,
    state: RunState,
    auditor: Auditor,
    report: Report,
}

impl Audit {
    fn new(since: Since) -> Self {
        let head = (Seq(0), Digest::default());
        let (findings, kinds) = (Vec::new(), BTreeMap::new());
        Self {
            since,
            compares: since == Since::Start,
            stopped: false,
            state: RunState::default(),
            auditor: Auditor::default(),
            report: Report { events: 0, head, findings, found: 0, kinds },
        }
    }

    fn all(&mut self, lots: Receiver<Lot>, evidence: &dyn Evidence) {
        for (recorded, hash) in lots.into_iter().flatten() {
            self.step(&recorded, evidence);
            self.report.head = (recorded.seq, hash);
            self.report.events += 1;
        }
    }

    fn step(&mut self, recorded: &Recorded, evidence: &dyn Evidence) {
        let event = &recorded.event;
        self.compares |= match self.since {
            Since::Start => true,
            Since::Seq(seq) => recorded.seq >= seq,
            Since::Round(round) => *event == Event::RoundStarted { round },
        };
        let before = self.report.found;
        if recorded.cause.is_some_and(|cause| cause >= recorded.seq) {
            self.report.find(format!("{}: its cause comes after it", recorded.seq));
        }
        if let Event::RunForked { parent_head, .. } = event
            && *parent_head != recorded.previous
        {
            let what = "the parent's hash is not that of the record before";
            self.report.find(format!("{}: {what}", recorded.seq));
        }
        if let Err(what) = may(recorded.actor, event) {
            self.report.find(format!("{} {}: {what}", recorded.seq, event.name()));
        }
        let compared = self.compares && !self.stopped;
        if compared
            && let Err(finding) = self.auditor.check(&self.state, recorded.seq, event, evidence)
        {
            self.report.find(finding.to_string());
        }
        if !self.stopped
            && let Err(illegal) = self.state.apply(recorded.seq, event)
        {
            self.report.find(illegal.to_string());
            self.stopped = true;
        }
        let kind = self.report.kinds.entry(event.name()).or_default();
        kind.events += 1;
        kind.compared += u64::from(compared);
        kind.findings += self.report.found - before;
    }

    fn end(self) -> Result<Report> {
        if let Since::Round(round) = self.since
            && !self.compares
        {
            return Err(Usage(format!("--round {round}: the log has no such round")).into());
        }
        Ok(self.report)
    }
}

impl Report {
    fn find(&mut self, what: String) {
        self.found += 1;
        if self.findings.len() < TEXTS {
            self.findings.push(what);
        }
    }
}
