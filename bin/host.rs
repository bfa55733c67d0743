//! What only changes the machine: paths, devices, numbers of workers. Never recorded as science.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;

use crate::exit::Usage;

/// One machine. Every key has a default; unknown keys are refused by name and line.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct HostConfig {
    /// A Python with torch and triton; else `$KERNELZERO_PYTHON`, else the one that `make setup`
    /// made.
    pub python: Option<PathBuf>,
    /// The engine's program; else `$KERNELZERO_ENGINE`, else `kernelzero-engine` beside this one.
    pub engine: Option<PathBuf>,
    /// Where the models live: `cpu` or `cuda:N`.
    pub device: String,
    /// Devices that the models train on together, one process of the engine each; all of
    /// them sample. None are `device` alone.
    pub ranks: Vec<String>,
    /// Gradient steps on a GPU give the same bytes when they are done again, on the same kind of GPU.
    pub deterministic: bool,
    /// Judge jobs at the same time; 0 is one per core.
    pub judges: usize,
    /// Build CUDA candidates with torch's own headers only, which takes a minute each.
    pub full_headers: bool,
    /// Turns that are timed at least; 0 is the usual number. More make narrower intervals.
    pub timing_turns: usize,
    /// Hold the device for one candidate from its start to its end, not only while it is timed.
    pub exclusive: bool,
    /// Samples that the engine is asked for at a time; each is recorded when it is finished.
    pub samples_at_once: usize,
    /// Keep the frozen reference in the host's memory and send it layer by layer: slower, and a whole model
    /// less on the device.
    pub hosted_reference: bool,
    /// Port for status and metrics on 127.0.0.1; 0 is any free one.
    pub port: u16,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            python: None,
            engine: None,
            device: "cpu".to_owned(),
            ranks: Vec::new(),
            deterministic: false,
            judges: 0,
            full_headers: false,
            timing_turns: 0,
            exclusive: false,
            samples_at_once: 512,
            hosted_reference: false,
            port: 0,
        }
    }
}

impl HostConfig {
    /// Reads a host file, or takes the defaults.
    pub fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|e| Usage(format!("cannot read the host file {}: {e}", path.display())))?;
        let host = toml::from_str(&text);
        Ok(host.map_err(|e| Usage(format!("host file {}: {e}", path.display())))?)
    }

    /// Where the engine's first process computes.
    pub fn engine_device(&self) -> &str {
        self.ranks.first().unwrap_or(&self.device)
    }

    /// The Python that runs the judge's workers.
    pub fn python(&self) -> Result<PathBuf> {
        let from_environment = || std::env::var_os("KERNELZERO_PYTHON").map(PathBuf::from);
        let installed = || cache_dir().map(|dir| dir.join("venv/bin/python"));
        let path = self.python.clone().or_else(from_environment).or_else(installed);
        let path = path.ok_or_else(|| anyhow!("no $HOME to look for a Python in"))?;
        if path.is_file() {
            return Ok(path);
        }
        Err(anyhow!(
            "there is no Python at {}: run `make setup`, or set KERNELZERO_PYTHON to one \
                     with torch 2.11.0, triton 3.6.0 and numpy below 2.4",
            path.display()
        ))
    }

    /// The engine's program.
    pub fn engine(&self) -> Result<PathBuf> {
        let beside = || {
            let here = std::env::current_exe().ok()?;
            Some(here.parent()?.join("kernelzero-engine"))
        };
        let from_environment = || std::env::var_os("KERNELZERO_ENGINE").map(PathBuf::from);
        let path = self.engine.clone().or_else(from_environment).or_else(beside);
        let path = path.context("cannot tell where this program is")?;
        if path.is_file() {
            return Ok(path);
        }
        Err(anyhow!(
            "there is no engine at {}: run `make build`, or set KERNELZERO_ENGINE",
            path.display()
        ))
    }

    /// The folder of torch's libraries beside the Python, for the engine's loader.
    pub fn torch_libraries(&self) -> Result<PathBuf> {
        let python = self.python()?;
        let root = python.parent().and_then(Path::parent).context("the Python has no folder")?;
        let lib = root.join("lib");
        let entries =
            std::fs::read_dir(&lib).with_context(|| format!("reading {}", lib.display()))?;
        for entry in entries.flatten() {
            let torch = entry.path().join("site-packages/torch/lib");
            if torch.is_dir() {
                return Ok(torch);
            }
        }
        Err(anyhow!("torch is not installed for {}: run `make setup`", python.display()))
    }

    /// Judge jobs at the same time.
    pub fn judges(&self) -> usize {
        match self.judges {
            0 => std::thread::available_parallelism().map_or(2, std::num::NonZeroUsize::get),
            set => set,
        }
    }
}

/// What set-up installs into.
pub fn cache_dir() -> Option<PathBuf> {
    let set = std::env::var_os("KERNELZERO_CACHE").map(PathBuf::from);
    set.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/kernelzero")))
}
