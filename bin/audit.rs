//! Decides a whole log again and compares. The log goes by as a stream: memory does not grow with
//! it. One thread reads and checks the chain, one folds and decides, and the others read blobs and
//! apply static rules ahead of it, since those ask for nothing but their source.

mod evidence;
mod memo;
mod report;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

use anyhow::{Result, anyhow};
use events::event::{Event, Recorded};
use events::ids::{Digest, PolicyVersion, RunId, Seq};
use events::log::{Log, LogError};
use events::rules::audit::{Agreement, Auditor, Evidence};
use events::rules::intent::may;
use events::state::RunState;
use store::{FileLog, HeadState, OpenMode};

pub use self::evidence::Stored;
use self::report::is_by_rules;
pub use self::report::{Kind, Report, Rules, Since};
use crate::exit::Usage;
use crate::runs::{home_to_read, pick};

/// Records that one thread hands to the other at a time, and how many such lots may wait.
const LOT: usize = 512;
const LOTS: usize = 8;

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
    log.require_head()?;
    let mut report = audit_log(&log, &Stored::new(home.blobs_to_read()?), since)?;
    // The file is there, so it was made empty: that accepts the log for going on, not for an audit.
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
pub fn audit_log(log: &FileLog, evidence: &(dyn Evidence + Sync), since: Since) -> Result<Report> {
    let end = log.head().0;
    if let Since::Seq(seq) = since
        && seq > end
    {
        return Err(Usage(format!("--since {}: the log ends with {end}", seq.0)).into());
    }
    let mut audit = Audit::new(since, evidence.purity_policy());
    let (sender, receiver) = sync_channel(LOTS);
    let (ahead, wanted) = sync_channel(LOTS);
    let wanted = Mutex::new(wanted);
    std::thread::scope(|scope| {
        for _ in 1..available_parallelism().map_or(2, NonZeroUsize::get) {
            scope.spawn(|| go_ahead(&wanted, evidence));
        }
        let reader = scope.spawn(move || read(log, end, since, (&sender, &ahead)));
        audit.all(receiver, evidence);
        audit.checkpoints(evidence);
        reader
            .join()
            .map_err(|_| anyhow!("the reader of the log panicked"))?
            .map_err(anyhow::Error::from)
    })?;
    audit.end()
}

/// Works out what decisions will need, lot by lot, until the reader ends.
fn go_ahead(wanted: &Mutex<Receiver<Vec<Event>>>, evidence: &(dyn Evidence + Sync)) {
    loop {
        let events = wanted.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(events) = events else { return };
        events.iter().for_each(|event| evidence.ahead(event));
    }
}

type Lot = Vec<(Recorded, Digest)>;

/// Reads and checks the log; the other side hears only of what is sound.
fn read(
    log: &FileLog,
    end: Seq,
    since: Since,
    (to, ahead): (&SyncSender<Lot>, &SyncSender<Vec<Event>>),
) -> Result<(), LogError> {
    let (mut lot, mut wanted) = (Vec::with_capacity(LOT), Vec::new());
    let mut compares = false;
    log.scan_owned(Seq(1), |recorded, hash| {
        if recorded.seq > end {
            return ControlFlow::Break(());
        }
        compares |= since.begins_with(&recorded);
        if compares && names_blobs(&recorded.event) {
            wanted.push(recorded.event.clone());
        }
        lot.push((recorded, hash));
        if lot.len() < LOT {
            return ControlFlow::Continue(());
        }
        // Where those who go ahead have enough to do, who decides looks for itself.
        let _ = ahead.try_send(std::mem::take(&mut wanted));
        // The receiver goes on to the end, so sending fails only after a panic there.
        let sent = to.send(std::mem::replace(&mut lot, Vec::with_capacity(LOT)));
        if sent.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let _ = ahead.try_send(wanted);
    let _ = to.send(lot);
    Ok(())
}

fn names_blobs(event: &Event) -> bool {
    matches!(
        event,
        Event::RunStarted { .. }
            | Event::ModuleProposed { .. }
            | Event::KernelWritten { .. }
            | Event::CheckpointSaved { .. }
    )
}

struct Audit {
    since: Since,
    /// Whether decisions are compared yet.
    compares: bool,
    /// Whether the fold stopped: an event cannot follow. The chain is checked to the end.
    stopped: bool,
    state: RunState,
    auditor: Auditor,
    /// Where the checkpoints that were not dropped were saved.
    saved: BTreeMap<PolicyVersion, Seq>,
    report: Report,
}

impl Audit {
    fn new(since: Since, purity_policy: u32) -> Self {
        let head = (Seq(0), Digest::default());
        let (findings, kinds) = (Vec::new(), BTreeMap::new());
        let rules = Rules { purity_policy, others: BTreeMap::new() };
        Self {
            since,
            compares: since == Since::Start,
            stopped: false,
            state: RunState::default(),
            auditor: Auditor::default(),
            saved: BTreeMap::new(),
            report: Report { events: 0, head, findings, found: 0, kinds, rules },
        }
    }

    fn all(&mut self, lots: Receiver<Lot>, evidence: &dyn Evidence) {
        for (recorded, hash) in lots.into_iter().flatten() {
            self.report.head = (recorded.seq, hash);
            self.step(recorded, evidence);
            self.report.events += 1;
        }
    }

    fn step(&mut self, recorded: Recorded, evidence: &dyn Evidence) {
        self.compares |= self.since.begins_with(&recorded);
        let event = &recorded.event;
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
        let mut other = false;
        if compared {
            match self.auditor.check(&self.state, recorded.seq, event, evidence) {
                Ok(how) => other = how == Agreement::OtherRules,
                Err(finding) => self.report.find(finding.to_string()),
            }
            if is_by_rules(event) {
                self.report.rules.count(self.state.purity_policy, other);
            }
        }
        if let (true, Event::CheckpointSaved { policy, .. }) = (compared, event) {
            self.saved.insert(*policy, recorded.seq);
        }
        let name = event.name();
        if !self.stopped
            && let Err(illegal) = self.state.apply_owned(recorded.seq, recorded.event)
        {
            self.report.find(illegal.to_string());
            self.stopped = true;
        }
        let kind = self.report.kinds.entry(name).or_default();
        kind.events += 1;
        kind.compared += u64::from(compared);
        kind.other_rules += u64::from(other);
        kind.findings += self.report.found - before;
    }

    /// Files of checkpoints are looked at in the end, when it is known which were dropped.
    fn checkpoints(&mut self, evidence: &dyn Evidence) {
        for (policy, seq) in std::mem::take(&mut self.saved) {
            let files = self.state.checkpoints.get(&policy).map(|c| c.files.as_slice());
            for (_, id) in files.unwrap_or_default() {
                if let Err(what) = evidence.sound(*id) {
                    self.report.find(format!("{seq} CheckpointSaved: {what}"));
                    self.report.kinds.entry("CheckpointSaved").or_default().findings += 1;
                }
            }
        }
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
