//! Whether this machine can judge, line by line, with the fix for what cannot.

use std::path::Path;
use std::process::Command;

use crate::config::Config;
use crate::device::Device;
use crate::judge::Judge;
use crate::toolchain::Toolchain;

/// One line of the doctor's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What to do if it is not; empty if there is nothing to do.
    pub fix: &'static str,
}

/// Looks at the environment without starting a judge.
pub fn doctor(config: &Config) -> Vec<Check> {
    let versions = versions(&config.python);
    let version = |name: &str| -> String {
        let found = versions.iter().find_map(|line| line.strip_prefix(name));
        found.map(|v| v.trim().to_owned()).unwrap_or_default()
    };
    let package = |name: &'static str, version: String, good: bool, fix: &'static str| {
        let detail = if version.is_empty() { "not found".to_owned() } else { version };
        Check { name, ok: good, detail, fix }
    };
    let (python, torch) = (version("python"), version("torch"));
    let (triton, numpy) = (version("triton"), version("numpy"));
    let old_numpy = older_than(&numpy, 2, 4);
    vec![
        package(
            "python",
            python.clone(),
            !python.is_empty(),
            "set KERNELZERO_PYTHON to the environment's python",
        ),
        package("torch", torch.clone(), torch.starts_with("2.11."), "install torch 2.11.0"),
        package("triton", triton.clone(), triton.starts_with("3.6."), "install triton 3.6.0"),
        package("numpy", numpy, old_numpy, "install numpy < 2.4: Triton's interpreter needs it"),
        nvcc(config),
        gpu(config),
        namespaces(),
        landlock(),
        scratch(&config.scratch),
    ]
}

impl Judge {
    /// The same for a running judge, with the layers that its workers really have.
    pub fn doctor(&self) -> Vec<Check> {
        let mut checks = doctor(&self.config);
        let layers = self.layers();
        checks.push(Check {
            name: "layers",
            ok: layers.iter().any(|l| l == "pid-ns") && layers.iter().any(|l| l == "seccomp"),
            detail: layers.join(" "),
            fix: "allow unprivileged user namespaces, or run the judge as root",
        });
        checks
    }
}

/// Versions from the packages' own records: importing torch would take seconds.
fn versions(python: &Path) -> Vec<String> {
    const QUESTION: &str = "import sys\nfrom importlib.metadata import version, \
        PackageNotFoundError\nprint('python', sys.version.split()[0])\n\
        for name in ('torch', 'triton', 'numpy'):\n    try: print(name, version(name))\n    \
        except PackageNotFoundError: pass\n";
    let asked = Command::new(python).args(["-I", "-c", QUESTION]).env_clear().output();
    let text = asked.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn older_than(version: &str, major: u32, minor: u32) -> bool {
    let mut parts = version.split('.').map(|p| p.parse::<u32>().unwrap_or(0));
    match (parts.next(), parts.next()) {
        (Some(a), Some(b)) => (a, b) < (major, minor) && a > 0,
        _ => false,
    }
}

fn nvcc(config: &Config) -> Check {
    let found = Toolchain::find(&config.python);
    Check {
        name: "nvcc",
        ok: found.is_ok() && Path::new("/usr/bin/g++").exists(),
        detail: match found {
            Ok(tools) => tools.nvcc().display().to_string(),
            Err(error) => error.to_string(),
        },
        fix: "install nvidia-cuda-nvcc, -nvvm, -crt and -cccl 13.0 beside torch, and g++",
    }
}

/// A machine without a GPU is well too: it says what that means.
fn gpu(config: &Config) -> Check {
    let device = Device::detect(config.force_cpu);
    let detail = match device.kind() {
        "cpu" => "none: Triton runs under its interpreter, CUDA kernels only compile".to_owned(),
        _ => device.name().to_owned(),
    };
    Check { name: "gpu", ok: true, detail, fix: "" }
}

/// A child tries to enter the namespaces; this process stays where it is.
fn namespaces() -> Check {
    let tried = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--fork", "true"])
        .output();
    let ok = tried.is_ok_and(|o| o.status.success());
    Check {
        name: "namespaces",
        ok,
        detail: if ok { "user, mount, pid, net, ipc" } else { "refused" }.to_owned(),
        fix: "allow unprivileged user namespaces (kernel.apparmor_restrict_unprivileged_userns=0)",
    }
}

fn landlock() -> Check {
    const CREATE_RULESET_VERSION: libc::c_ulong = 1;
    // SAFETY: asks for the version only; no memory is handed over.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    Check {
        name: "landlock",
        ok: version > 0,
        detail: if version > 0 { format!("ABI {version}") } else { "not there".to_owned() },
        fix: "needed only where namespaces are refused: Linux 5.13 or newer with landlock",
    }
}

fn scratch(folder: &Path) -> Check {
    let made = std::fs::create_dir_all(folder)
        .and_then(|()| tempfile::NamedTempFile::new_in(folder).map(|_| ()));
    Check {
        name: "scratch",
        ok: made.is_ok(),
        detail: match made {
            Ok(()) => folder.display().to_string(),
            Err(error) => format!("{}: {error}", folder.display()),
        },
        fix: "make the folder writable or set `Config::scratch`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_versions() {
        assert!(older_than("2.3.5", 2, 4) && older_than("1.26.0", 2, 4));
        assert!(!older_than("2.4.0", 2, 4) && !older_than("", 2, 4));
    }
}
