//! Decides a whole log again and compares.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Result;
use events::event::{Event, Recorded};
use events::ids::{BlobId, Digest, RunId, Seq};
use events::log::{Blobs, Log};
use events::outcome::{Backend, Failure, SourceReport};
use events::rules::audit::{Evidence, Finding, check};
use events::state::RunState;
use store::{BlobDir, HeadState, Home, OpenMode};

use crate::runs::{home_to_read, pick};

/// What audits rest on beside the log: stored blobs, and the static rules of this program.
pub(crate) struct Stored(pub BlobDir);

impl Evidence for Stored {
    fn blob(&self, id: BlobId) -> Result<Vec<u8>, String> {
        self.0.get(id).map_err(|e| e.to_string())
    }

    fn module_source(&self, source: &str, tracked: &BTreeSet<String>) -> SourceReport {
        keck::rules::inspect_module(source, tracked)
    }

    fn kernel_source(&self, source: &str) -> Result<Backend, Failure> {
        keck::rules::inspect_kernel(source)
    }
}

/// What an audit found.
pub struct Report {
    /// The run.
    pub run: RunId,
    /// Events checked.
    pub events: u64,
    /// Position and hash of the last record.
    pub head: (Seq, Digest),
    /// Everything that does not agree.
    pub findings: Vec<String>,
}

/// Audits one run without writing anything. Damage of the log itself is an error; a decision that
/// does not agree is a finding. `expected_head` is a hash that was kept elsewhere.
pub fn audit(dir: &Path, named: Option<RunId>, expected_head: Option<Digest>) -> Result<Report> {
    let home: Home = home_to_read(dir)?;
    let run = pick(&home, named)?;
    let log = home.open_run(run, OpenMode::ReadOnly)?;
    let evidence = Stored(home.blobs()?);
    let mut findings = Vec::new();
    if log.recovery().outside == HeadState::Missing {
        findings.push(
            "the head kept outside the log is missing: an edit that was chained anew would not show"
                .to_owned(),
        );
    }
    let mut state = RunState::default();
    let mut illegal = None;
    log.scan(Seq(1), |recorded, _| {
        findings.extend(step(&mut state, recorded, &evidence, &mut illegal));
        if illegal.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    findings.extend(illegal);
    let head = log.head();
    if expected_head.is_some_and(|expected| expected != head.1) {
        findings.push(format!("the head is {}, not what was kept elsewhere", head.1));
    }
    Ok(Report { run, events: state.last.0, head, findings })
}

fn step(
    state: &mut RunState,
    recorded: &Recorded,
    evidence: &Stored,
    illegal: &mut Option<String>,
) -> Vec<String> {
    let mut found = Vec::new();
    if recorded.cause.is_some_and(|cause| cause >= recorded.seq) {
        found.push(format!("{}: its cause comes after it", recorded.seq));
    }
    if let Event::RunForked { parent_head, .. } = &recorded.event
        && *parent_head != recorded.previous
    {
        found.push(format!("{}: the parent's hash is not that of the record before", recorded.seq));
    }
    let checked: Result<(), Finding> = check(state, recorded.seq, &recorded.event, evidence);
    found.extend(checked.err().map(|finding| finding.to_string()));
    if let Err(error) = state.apply(recorded.seq, &recorded.event) {
        *illegal = Some(error.to_string());
    }
    found
}
