//! Finding, forking and folding runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use events::config::RunConfig;
use events::event::Event;
use events::ids::{RunId, Seq};
use events::log::{Blobs, Log};
use events::needed;
use events::state::{Position, RunState};
use store::{BlobDir, FileLog, Home, OpenMode};

use crate::exit::Usage;
use crate::kept;

/// A run without any event: the newest, if a start was cut off before its first event, else a new
/// one.
pub(crate) fn empty_run(home: &Home) -> Result<(RunId, Arc<FileLog>)> {
    if let Some(run) = home.runs()?.last().copied() {
        let log = home.open_run(run, OpenMode::ReadOnly)?;
        if log.head().0 == Seq(0) {
            drop(log);
            return Ok((run, Arc::new(home.open_run(run, OpenMode::Own)?)));
        }
    }
    let run = new_run_id()?;
    Ok((run, Arc::new(home.create_run(run)?)))
}

pub(crate) fn new_run_id() -> Result<RunId> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    let mut random = [0; 10];
    let mut source = std::fs::File::open("/dev/urandom").context("opening /dev/urandom")?;
    std::io::Read::read_exact(&mut source, &mut random).context("reading /dev/urandom")?;
    Ok(RunId::new(u64::try_from(now.as_millis())?, random))
}

/// The run that a command is about: the one named, or the newest.
pub fn pick(home: &Home, named: Option<RunId>) -> Result<RunId> {
    let runs = home.runs()?;
    match named {
        Some(run) if runs.contains(&run) => Ok(run),
        Some(run) => {
            Err(Usage(format!("there is no run {run} in {}", home.dir().display())).into())
        }
        None => runs.last().copied().ok_or_else(|| {
            let text = format!(
                "there is no run in {}: start one with `kernelzero run --config \
                                FILE`",
                home.dir().display()
            );
            Usage(text).into()
        }),
    }
}

/// Opens a home that must exist, for reading.
pub fn home_to_read(dir: &Path) -> Result<Home> {
    if !dir.join("runs").is_dir() {
        let text = format!(
            "{} holds no runs: give --home, or start one with `kernelzero run`",
            dir.display()
        );
        return Err(Usage(text).into());
    }
    Ok(Home::open(dir)?)
}

/// Opens a run's log for reading. Says so where nothing speaks for its last records.
pub fn log_to_read(home: &Home, run: RunId) -> Result<FileLog> {
    let log = home.open_run(run, OpenMode::ReadOnly)?;
    if let Err(error) = log.require_head() {
        eprintln!("kernelzero: {error}");
    }
    Ok(log)
}

/// A run opened for reading, with its state.
pub struct Reader {
    /// Its name.
    pub run: RunId,
    /// Its folder.
    pub folder: PathBuf,
    /// Its log.
    pub log: FileLog,
    /// Its blobs.
    pub blobs: BlobDir,
    /// What its log adds up to.
    pub state: RunState,
}

/// Opens and folds a run for reading; an owner may go on writing.
pub fn read(dir: &Path, named: Option<RunId>) -> Result<Reader> {
    let home = home_to_read(dir)?;
    let run = pick(&home, named)?;
    let log = log_to_read(&home, run)?;
    let state = kept::state_of(&log)?;
    Ok(Reader { run, folder: home.run_dir(run), log, blobs: home.blobs_to_read()?, state })
}

/// The run that `kernelzero run` goes on with: of those that have this config and are not over, the
/// one that a daemon has, else the newest.
pub fn unfinished(home: &Home, config: &RunConfig) -> Result<Option<RunId>> {
    let mut newest = None;
    for run in home.runs()?.into_iter().rev() {
        let log = home.open_run(run, OpenMode::ReadOnly)?;
        let first = log.get(Seq(1))?.map(|recorded| recorded.event);
        let Some(Event::RunStarted { config: text, .. }) = first else { continue };
        // One from before there was this setting goes on as it began.
        let same = RunConfig::parse(&text).is_ok_and(|mut started| {
            started.coder.pool.ties = config.coder.pool.ties;
            started == *config
        });
        if !same || kept::state_of(&log)?.position == Position::Finished {
            continue;
        }
        if store::owner(&home.run_dir(run)).is_some() {
            return Ok(Some(run));
        }
        newest = newest.or(Some(run));
    }
    Ok(newest)
}

/// Fails with the first blob that a run at `state` needs to go on and that is not there. Run before a
/// daemon goes on with it: what cannot be done should not be begun. Older ones are for `log verify`.
pub fn require_blobs(state: &RunState, blobs: &dyn Blobs) -> Result<()> {
    match needed::to_go_on(state).into_iter().find(|blob| !blobs.has(*blob)) {
        Some(missing) => Ok(blobs.get(missing).map(drop)?),
        None => Ok(()),
    }
}
