//! Faults of the world. None of them says anything about a candidate: the job is retried or the
//! fault is raised, and no verdict follows.

use std::path::PathBuf;

/// What kept the judge from judging, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The Python of the configuration does not run.
    #[error("python not found at {0}: set KERNELZERO_PYTHON or `Config::python`")]
    PythonMissing(PathBuf),
    /// Torch or triton cannot be imported, or their versions do not fit.
    #[error("torch or triton does not load ({0}): install torch 2.11.0 and numpy < 2.4")]
    TorchMissing(String),
    /// No CUDA compiler in the environment.
    #[error("no nvcc ({0}): install nvidia-cuda-nvcc, -nvvm, -crt and -cccl 13.0 beside torch")]
    ToolchainMissing(String),
    /// The scratch folder cannot be used.
    #[error("scratch folder {path}: {source}: make it writable or set `Config::scratch`")]
    Scratch {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No space left.
    #[error("disk full while {0}: free space in the scratch folder")]
    DiskFull(String),
    /// A worker that never ran foreign code died or did not answer.
    #[error("the warm worker process died ({0}): the next job starts a new one")]
    WorkerDied(String),
    /// A worker could not be made.
    #[error("cannot start a worker: {0}")]
    Spawn(String),
    /// The device does not answer, or not rightly.
    #[error("the device is not usable ({0}): see nvidia-smi, reset it or set another `device`")]
    DeviceLost(String),
    /// Work that would have been done in time on a machine that is less busy.
    #[error("the machine is too busy ({0}): lower `Config::workers` or the load beside it")]
    Overloaded(String),
    /// A system call of the judge itself failed.
    #[error("while {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The judge broke one of its own rules.
    #[error("judge bug: {0}")]
    Bug(String),
}

impl Error {
    /// Wraps a failed system call; a full disk gets its own variant.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| {
            if source.raw_os_error() == Some(libc::ENOSPC) {
                Self::DiskFull(what.to_owned())
            } else {
                Self::System { what, source }
            }
        }
    }

    pub(crate) fn errno(what: &'static str) -> impl FnOnce(nix::Error) -> Self {
        move |code| Self::system(what)(std::io::Error::from_raw_os_error(code as i32))
    }
}
