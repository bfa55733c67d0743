//! A config with everything that it names, and the beginning of a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use actors::Bus;
use actors::shells::{Start, start};
use anyhow::{Context, Result, anyhow};
use events::config::{RunConfig, Ties};
use events::event::InitialPolicy;
use events::ids::{BlobId, Role, RunId};
use events::log::Blobs;
use events::outcome::Backend;
use events::rules::api_table::ApiTable;
use store::{BlobDir, FileLog, Home};

use crate::exit::Usage;
use crate::host::HostConfig;
use crate::runs::empty_run;

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
        let mut config = RunConfig::parse(&text)
            .map_err(|e| Usage(format!("config {}: {e}", path.display())))?;
        // Only logs from before this setting are to be read otherwise.
        config.coder.pool.ties = Ties::Coordinates;
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
        Ok(fits(&self.config, host).map_err(Usage)?)
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

/// Whether this machine can do what a config asks of the judge. The error names the setting and the fix.
pub fn fits(config: &RunConfig, host: &HostConfig) -> Result<(), String> {
    let judge = &config.judge;
    if host.device == "cpu" && (judge.timing || judge.backend == Backend::Cuda) {
        let key = if judge.timing { "judge.timing" } else { "judge.backend" };
        return Err(format!(
            "{key}: this needs a GPU, and the host's device is cpu: set it otherwise, or give a \
             host file with device = \"cuda:0\""
        ));
    }
    Ok(())
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
