//! Finding, starting, forking and folding runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use actors::Bus;
use actors::shells::{Start, start};
use anyhow::{Context, Result, anyhow};
use events::config::RunConfig;
use events::event::{Actor, Event, InitialPolicy};
use events::ids::{BlobId, Role, RunId, Seq};
use events::log::{Blobs, Log};
use events::outcome::Backend;
use events::rules::api_table::ApiTable;
use events::state::{Position, RunState};
use store::{BlobDir, FileLog, Home, OpenMode};

use crate::exit::Usage;
use crate::host::HostConfig;

/// A config file, read and checked, with everything that it names.
pub struct Plan {
    /// The settings.
    pub config: RunConfig,
    /// Its folder; what it names is relative to it.
    folder: PathBuf,
}

impl Plan {
    /// Reads a config and checks that what it names exists, before anything starts.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Usage(format!("cannot read the config {}: {e}", path.display())))?;
        let config = RunConfig::parse(&text)
            .map_err(|e| Usage(format!("config {}: {e}", path.display())))?;
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        let plan = Self { config, folder };
        plan.table()?;
        for role in [Role::Proposer, Role::Coder] {
            plan.policy_files(role)?;
        }
        Ok(plan)
    }

    fn table(&self) -> Result<String> {
        let path = self.folder.join(&self.config.sampler.table);
        let text = std::fs::read_to_string(&path)
            .map_err(|e| Usage(format!("sampler.table: cannot read {}: {e}", path.display())))?;
        ApiTable::parse(&text)
            .map_err(|e| Usage(format!("sampler.table: {}: {e}", path.display())))?;
        Ok(text)
    }

    fn policy_files(&self, role: Role) -> Result<Vec<(String, PathBuf)>> {
        let folder = self.folder.join(&self.config.policy(role).init);
        let key = format!("{role}.policy.init");
        let entries = std::fs::read_dir(&folder).map_err(|e| {
            Usage(format!("{key}: cannot read the folder {}: {e}", folder.display()))
        })?;
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
            let wanted = [".json", ".safetensors", ".jinja"].iter().any(|end| name.ends_with(end));
            if wanted && path.is_file() {
                files.push((name, path));
            }
        }
        files.sort();
        for needed in ["config.json", "tokenizer.json"] {
            if !files.iter().any(|(name, _)| name == needed) {
                let text = format!(
                    "{key}: {} has no {needed}: give a folder in the Hugging Face \
                                    layout",
                    folder.display()
                );
                return Err(Usage(text).into());
            }
        }
        Ok(files)
    }

    /// What the judge is asked for must be possible here.
    pub fn check_machine(&self, host: &HostConfig) -> Result<()> {
        let judge = &self.config.judge;
        if host.device == "cpu" && (judge.timing || judge.backend == Backend::Cuda) {
            let key = if judge.timing { "judge.timing" } else { "judge.backend" };
            let text = format!(
                "{key}: this needs a GPU, and the host's device is cpu: set it otherwise, or give a \
                 host file with device = \"cuda:0\""
            );
            return Err(Usage(text).into());
        }
        Ok(())
    }

    /// Has the engine load both policies, so that a run never begins with weights, a config or a
    /// tokenizer that do not fit each other.
    pub fn check_policies(&self, host: &HostConfig) -> Result<()> {
        let folder = |role| self.folder.join(&self.config.policy(role).init);
        let output = std::process::Command::new(host.engine()?)
            .arg("check")
            .args([Role::Proposer, Role::Coder].map(folder))
            .env("LD_LIBRARY_PATH", host.torch_libraries()?)
            .output()
            .context("starting the engine to check the policies")?;
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(()),
            Some(1) => Err(Usage(format!("a policy cannot be used: {}", said.trim())).into()),
            _ => Err(anyhow!("the engine cannot check the policies ({}): {said}", output.status)),
        }
    }

    /// Stores the first weights of `role`: file names and blobs, sorted by name.
    pub fn store_policy(&self, role: Role, blobs: &BlobDir) -> Result<Vec<(String, BlobId)>> {
        let put = |(name, path): (String, PathBuf)| Ok((name, blobs.put_file(&path)?));
        self.policy_files(role)?.into_iter().map(put).collect()
    }

    /// Records the beginning of a new run in `home`, with everything that it starts from as blobs.
    pub fn start(&self, home: &Home) -> Result<(RunId, Arc<FileLog>)> {
        let blobs = home.blobs()?;
        let mut policies = Vec::new();
        for role in [Role::Proposer, Role::Coder] {
            policies.push(InitialPolicy { role, files: self.store_policy(role, &blobs)? });
        }
        let api_table = Blobs::put(&blobs, self.table()?.as_bytes())?;
        let (run, log) = empty_run(home)?;
        let bus = Bus::open(log.clone(), Arc::new(blobs))?;
        let first = Start {
            run,
            config: self.config.to_text()?,
            code: env!("CARGO_PKG_VERSION").to_owned(),
            environment: environment(),
            api_table,
            policies,
        };
        start(&bus, first)?;
        Ok((run, log))
    }
}

/// A run without any event: the newest, if a start was cut off before its first event, else a new
/// one.
fn empty_run(home: &Home) -> Result<(RunId, Arc<FileLog>)> {
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

fn environment() -> Vec<(String, String)> {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    vec![
        ("system".to_owned(), std::env::consts::OS.to_owned()),
        ("processor".to_owned(), std::env::consts::ARCH.to_owned()),
        ("cores".to_owned(), cores.to_string()),
        ("kernel".to_owned(), read("/proc/sys/kernel/osrelease")),
    ]
}

fn new_run_id() -> Result<RunId> {
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
    let log = home.open_run(run, OpenMode::ReadOnly)?;
    let state = actors::bus::fold(&log)?;
    Ok(Reader { run, folder: home.run_dir(run), log, blobs: home.blobs()?, state })
}

/// The run that `kernelzero run` goes on with: of those that have this config and are not over, the
/// one that a daemon has, else the newest.
pub fn unfinished(home: &Home, config: &RunConfig) -> Result<Option<RunId>> {
    let mut newest = None;
    for run in home.runs()?.into_iter().rev() {
        let log = home.open_run(run, OpenMode::ReadOnly)?;
        let first = log.get(Seq(1))?.map(|recorded| recorded.event);
        let Some(Event::RunStarted { config: text, .. }) = first else { continue };
        let same = RunConfig::parse(&text).is_ok_and(|started| started == *config);
        if !same || actors::bus::fold(&log)?.position == Position::Finished {
            continue;
        }
        if store::owner(&home.run_dir(run)).is_some() {
            return Ok(Some(run));
        }
        newest = newest.or(Some(run));
    }
    Ok(newest)
}

/// Fails with the first blob that the log names, no later event drops, and is not there. Run before a
/// daemon goes on with a run: what cannot be done without it should not be begun.
pub fn require_blobs(log: &FileLog, blobs: &BlobDir) -> Result<()> {
    let (mut needed, mut checkpoints) = (BTreeSet::new(), BTreeMap::new());
    log.scan(Seq(1), |recorded, _| {
        match &recorded.event {
            Event::CheckpointSaved { policy, files, .. } => {
                checkpoints.insert(*policy, files.clone());
            }
            Event::CheckpointDropped { policy, files } => {
                let kept: &mut Vec<_> = checkpoints.entry(*policy).or_default();
                kept.retain(|(name, _)| !files.contains(name));
            }
            event => needed.extend(event.blobs()),
        }
        ControlFlow::Continue(())
    })?;
    needed.extend(checkpoints.into_values().flatten().map(|(_, blob)| blob));
    match needed.into_iter().find(|blob| !Blobs::has(blobs, *blob)) {
        Some(missing) => Ok(Blobs::get(blobs, missing).map(drop)?),
        None => Ok(()),
    }
}

/// Branches `parent` before round `round` and returns the branch. The parent is not touched.
pub fn restart(dir: &Path, named: Option<RunId>, round: u32) -> Result<RunId> {
    let home = home_to_read(dir)?;
    let parent = pick(&home, named)?;
    let log = home.open_run(parent, OpenMode::ReadOnly)?;
    let mut found: Option<(Seq, events::ids::Digest)> = None;
    log.scan(Seq(1), |recorded, _| match recorded.event {
        Event::RoundStarted { round: started } if started == round => {
            found = Some((Seq(recorded.seq.0 - 1), recorded.previous));
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    })?;
    let (at, parent_head) = found.ok_or_else(|| {
        Usage(format!("run {parent} has no round {round}: `kernelzero status` shows its rounds"))
    })?;
    drop(log);
    let run = new_run_id()?;
    let log: Arc<dyn Log> = Arc::new(home.fork_run(parent, at, run)?);
    let bus = Bus::open(log, Arc::new(home.blobs()?))?;
    let reason = format!("restart of round {round}");
    let forked = Event::RunForked { run, parent, parent_head, reason };
    bus.append(Actor::RunControl, vec![(Some(at), forked)])?;
    Ok(run)
}
