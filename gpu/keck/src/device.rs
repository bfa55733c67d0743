//! What the kernels run on.

use std::path::Path;
use std::process::Command;

/// The device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// No GPU: Triton's interpreter.
    Cpu,
    /// The first GPU.
    Cuda {
        /// Its name.
        name: String,
        /// Compute capability without the dot, as in `90`.
        arch: String,
        /// Version of its driver.
        driver: String,
    },
}

impl Device {
    /// Looks for a GPU without touching CUDA.
    pub fn detect(force_cpu: bool) -> Self {
        if force_cpu || !Path::new("/dev/nvidiactl").exists() {
            return Self::Cpu;
        }
        let asked = Command::new("nvidia-smi")
            .args(["--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"])
            .output();
        let text = asked.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        let line = text.ok().and_then(|t| t.lines().next().map(str::to_owned));
        let line = line.as_deref().unwrap_or_default();
        match line.split(", ").collect::<Vec<_>>()[..] {
            [name, arch, driver] => Self::Cuda {
                name: name.to_owned(),
                arch: arch.replace('.', ""),
                driver: driver.to_owned(),
            },
            _ => Self::Cpu,
        }
    }

    /// Torch's name of the device's kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda { .. } => "cuda",
        }
    }

    /// For people and for measurements.
    pub fn name(&self) -> &str {
        match self {
            Self::Cpu => "cpu-interpreter",
            Self::Cuda { name, .. } => name,
        }
    }

    /// The driver's version, where there is one.
    pub fn driver(&self) -> Option<&str> {
        match self {
            Self::Cpu => None,
            Self::Cuda { driver, .. } => Some(driver),
        }
    }

    /// Architecture that CUDA candidates are built for; without a GPU Hopper's.
    pub fn arch(&self) -> &str {
        match self {
            Self::Cpu => "90",
            Self::Cuda { arch, .. } => arch,
        }
    }
}
