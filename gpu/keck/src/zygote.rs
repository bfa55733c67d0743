//! The warm Python process that forks workers, and its embedded source.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::Config;
use crate::device::Device;
use crate::error::Error;
use crate::poll::{Ready, wait};
use crate::wire;

/// The workers' source, written to the private folder at start.
const SOURCES: [(&str, &str); 15] = [
    ("clock.py", include_str!("../worker/clock.py")),
    ("fences.py", include_str!("../worker/fences.py")),
    ("lease.py", include_str!("../worker/lease.py")),
    ("inline.py", include_str!("../worker/inline.py")),
    ("jit.py", include_str!("../worker/jit.py")),
    ("kernel.py", include_str!("../worker/kernel.py")),
    ("module.py", include_str!("../worker/module.py")),
    ("probe.py", include_str!("../worker/probe.py")),
    ("report.py", include_str!("../worker/report.py")),
    ("sandbox.py", include_str!("../worker/sandbox.py")),
    ("timed.py", include_str!("../worker/timed.py")),
    ("tools.py", include_str!("../worker/tools.py")),
    ("watch.py", include_str!("../worker/watch.py")),
    ("wire.py", include_str!("../worker/wire.py")),
    ("zygote.py", include_str!("../worker/zygote.py")),
];
/// Importing torch takes seconds, on a busy machine many.
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// A fork takes milliseconds.
const FORK_TIMEOUT: Duration = Duration::from_secs(30);

/// A worker as the zygote made it.
#[derive(Debug)]
pub struct Forked {
    /// The judge's end of the worker's socket.
    pub socket: OwnedFd,
    /// What the worker prints.
    pub log: OwnedFd,
    /// Refers to the process without the danger of a reused id.
    pub handle: OwnedFd,
}

/// The running process. Dropping it ends it and all its workers.
#[derive(Debug)]
pub struct Zygote {
    child: Child,
    control: OwnedFd,
    /// Isolation layers that are up.
    pub layers: Vec<String>,
    /// Versions of python, torch and triton.
    pub versions: BTreeMap<String, String>,
}

impl Zygote {
    /// Starts Python, waits until torch is loaded and the isolation stands.
    pub fn start(config: &Config, device: &Device, folder: &Path) -> Result<Self, Error> {
        let sources = folder.join("worker");
        fs::create_dir_all(&sources).map_err(Error::system("writing the worker's source"))?;
        for (name, text) in SOURCES {
            fs::write(sources.join(name), text)
                .map_err(Error::system("writing the worker's source"))?;
        }
        let (control, theirs) = wire::pair()?;
        let settings = json!({
            "device": device.kind(),
            "arch": device.arch(),
            "root": folder.join("root"),
            "tmp_mib": config.tmp_mib,
            "file_mib": config.file_mib,
            "gpu_memory_mib": config.gpu_memory_mib,
            "layers": config.isolation.layers(),
        });
        let log = fs::File::create(folder.join("zygote.log"))
            .map_err(Error::system("making the zygote's log"))?;
        let child = command(config, device.kind())
            .arg("-I")
            .arg("-B")
            .arg(sources.join("zygote.py"))
            .arg(settings.to_string())
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(log.try_clone().map_err(Error::system("sharing the zygote's log"))?)
            .stderr(log)
            .spawn()
            .map_err(|_| Error::PythonMissing(config.python.clone()))?;
        let mut zygote = Self { child, control, layers: Vec::new(), versions: BTreeMap::new() };
        let hello = zygote.answer(START_TIMEOUT).map_err(|_| {
            let text = fs::read_to_string(folder.join("zygote.log")).unwrap_or_default();
            Error::TorchMissing(text.lines().last().unwrap_or("no answer").to_owned())
        })?;
        zygote.layers = strings(&hello.0["layers"]);
        let versions = hello.0["version"].as_object().into_iter().flatten();
        let text =
            |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        zygote.versions = versions.filter_map(text).collect();
        Ok(zygote)
    }

    /// Forks a worker for a role.
    pub fn fork(&mut self, role: &str, memory_mib: u64, scratch: &Path) -> Result<Forked, Error> {
        let (socket, theirs) = wire::pair()?;
        let (log, their_log) =
            nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK)
                .map_err(Error::errno("making a pipe"))?;
        clear_nonblocking(&their_log)?;
        let request = json!({ "role": role, "memory_mib": memory_mib, "scratch": scratch });
        let fds = [theirs.as_raw_fd(), their_log.as_raw_fd()];
        wire::send(self.control.as_fd(), request.to_string().as_bytes(), &fds)
            .map_err(|e| Error::WorkerDied(e.to_string()))?;
        let (reply, mut fds) = self.answer(FORK_TIMEOUT)?;
        match (reply["error"].as_str(), fds.pop()) {
            (None, Some(handle)) => Ok(Forked { socket, log, handle }),
            (error, _) => Err(Error::Spawn(error.unwrap_or("no process handle").to_owned())),
        }
    }

    fn answer(&mut self, timeout: Duration) -> Result<(Value, Vec<OwnedFd>), Error> {
        let died = |why: &str| Error::WorkerDied(why.to_owned());
        match wait(&[self.control.as_fd()], timeout)? {
            Ready::TimedOut => Err(died("it did not answer in time")),
            Ready::At(_) => {
                let (packet, fds) =
                    wire::receive(self.control.as_fd()).map_err(|e| died(&e.to_string()))?;
                let value = serde_json::from_slice(&packet)
                    .map_err(|_| died("it closed its control socket"))?;
                Ok((value, fds))
            }
        }
    }
}

impl Zygote {
    /// Whether the process still holds its socket. When it is gone so are its workers, and their
    /// end says nothing about what they ran.
    pub fn is_alive(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut polled = [PollFd::new(self.control.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut polled, PollTimeout::ZERO);
        !polled[0].revents().is_some_and(|r| r.contains(PollFlags::POLLHUP))
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Python with a clean environment; what a worker needs is named here and nowhere else.
fn command(config: &Config, device: &str) -> Command {
    let mut command = Command::new(&config.python);
    command.env_clear();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LANG", "C.UTF-8");
    command.env("KECK_DEVICE", device).env("HOME", "/tmp").env("LOGNAME", "keck");
    // Large tensors in large pages: they are there sooner.
    command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    for threads in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"] {
        command.env(threads, "1");
    }
    if device == "cpu" {
        command.env("TRITON_INTERPRET", "1").env("CUDA_VISIBLE_DEVICES", "");
    } else {
        // cc and ptxas are Triton's tools; a candidate must not choose them.
        command.env("CC", c_compiler()).env("CUDA_MODULE_LOADING", "LAZY");
        // One queue to the device instead of eight: a context is made in a third of the time.
        command.env("CUDA_DEVICE_MAX_CONNECTIONS", "1");
        for name in ["LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
    }
    command
}

/// The compiler itself, not a link through `/etc/alternatives`, which workers do not see.
fn c_compiler() -> std::path::PathBuf {
    let real = |name: &str| fs::canonicalize(Path::new("/usr/bin").join(name)).ok();
    real("gcc").or_else(|| real("cc")).unwrap_or_else(|| "/usr/bin/cc".into())
}

fn clear_nonblocking(fd: &OwnedFd) -> Result<(), Error> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(fd, FcntlArg::F_SETFL(OFlag::empty()))
        .map(|_| ())
        .map_err(Error::errno("setting a pipe's flags"))
}

fn strings(value: &Value) -> Vec<String> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}
