//! Settings of a judge.

use std::path::PathBuf;
use std::time::Duration;

use crate::headers::HeadersPolicy;

/// How workers are kept apart from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Namespaces where the kernel allows them, and what else there is.
    Strongest,
    /// What is left where the kernel allows no namespaces: landlock, limits, dropped privileges
    /// and the system call filter. For tests.
    LimitsOnly,
    /// These layers and no others, so that a test can see what each of them holds alone. Named as
    /// [`crate::Judge::layers`] names them; no setting and no command leads here.
    #[doc(hidden)]
    Only(&'static [&'static str]),
}

/// Layers that need no namespace. Not an own user: it could not read an environment below root's
/// home, which only a mount namespace shows to it.
const WITHOUT_NAMESPACES: [&str; 6] =
    ["landlock", "no-capabilities", "no-new-privs", "rlimits", "parent-death", "seccomp"];

/// Every layer of isolation that a worker can have, as measurements name them.
pub const LAYERS: [&str; 15] = [
    "user-ns",
    "mount-ns",
    "pid-ns",
    "net-ns",
    "ipc-ns",
    "uts-ns",
    "read-only-root",
    "private-tmp",
    "own-uid",
    "landlock",
    "no-capabilities",
    "no-new-privs",
    "rlimits",
    "parent-death",
    "seccomp",
];

impl Isolation {
    /// The layers that are asked for; `None` means all that the machine has.
    pub(crate) fn layers(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Strongest => None,
            Self::LimitsOnly => Some(&WITHOUT_NAMESPACES),
            Self::Only(layers) => Some(layers),
        }
    }
}

/// Where and how a [`crate::Judge`] runs code.
#[derive(Clone, Debug)]
pub struct Config {
    /// Python of an environment that holds torch, triton and numpy < 2.4.
    pub python: PathBuf,
    /// Folder for builds and for the workers' root. Made if absent; swept of dead owners' remains.
    pub scratch: PathBuf,
    /// Jobs that run at once; further callers wait.
    pub workers: usize,
    /// Deadline for importing a source, building its model and loading state.
    pub import_timeout: Duration,
    /// Deadline for one trial of a reference or a candidate. Like the one above it does not count
    /// time in which the worker was ready to run but got no processor.
    pub trial_timeout: Duration,
    /// Processor time that one compiler of one candidate may take with torch's headers.
    pub build_timeout: Duration,
    /// The same with the judge's own headers, with which an honest kernel takes a few seconds.
    pub fast_build_timeout: Duration,
    /// Headers that CUDA candidates are built with.
    pub headers: HeadersPolicy,
    /// Memory a worker may take beyond the warm process, in MiB.
    pub memory_mib: u64,
    /// Device memory that torch's allocator gives to a worker, in MiB.
    pub gpu_memory_mib: u64,
    /// Largest file a worker may write or hand over, in MiB.
    pub file_mib: u64,
    /// Size of a worker's private folder, in MiB.
    pub tmp_mib: u64,
    /// Bytes of reference results that are kept for further kernels of the same module.
    pub cache_bytes: usize,
    /// Turns that are timed at least, of three calls of each side; more until the speed-up's
    /// interval is narrow.
    pub turns: usize,
    /// Hold the device for one candidate from its start to its end, as the paper does. Else only
    /// while it is timed.
    pub exclusive: bool,
    /// Layers to use.
    pub isolation: Isolation,
    /// Run on the CPU even if there is a GPU.
    pub force_cpu: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            python: default_python(),
            scratch: std::env::temp_dir().join("keck"),
            workers: 1,
            import_timeout: Duration::from_secs(20),
            trial_timeout: Duration::from_secs(20),
            build_timeout: Duration::from_secs(150),
            fast_build_timeout: Duration::from_secs(45),
            headers: HeadersPolicy::Auto,
            memory_mib: 4096,
            gpu_memory_mib: 24 * 1024,
            file_mib: 1024,
            tmp_mib: 256,
            cache_bytes: 256 << 20,
            turns: 10,
            exclusive: false,
            isolation: Isolation::Strongest,
            force_cpu: false,
        }
    }
}

/// `KERNELZERO_PYTHON`, else the environment that `make setup` made: below `KERNELZERO_CACHE`, else
/// below the home folder's cache.
fn default_python() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("KERNELZERO_CACHE").unwrap_or_else(|| {
        let home = variable("HOME").unwrap_or_else(|| PathBuf::from("/"));
        home.join(".cache/kernelzero")
    });
    variable("KERNELZERO_PYTHON").unwrap_or_else(|| cache.join("venv/bin/python"))
}
