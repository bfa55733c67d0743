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
    },
}

impl Device {
    /// Looks for a GPU without touching CUDA.
    pub fn detect(force_cpu: bool) -> Self {
        if force_cpu || !Path::new("/dev/nvidiactl").exists() {
            return Self::Cpu;
        }
        let asked = Command::new("nvidia-smi")
            .args(["--query-gpu=name,compute_cap", "--format=csv,noheader"])
            .output();
        let text = asked.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        let line = text.ok().and_then(|t| t.lines().next().map(str::to_owned));
        match line.as_deref().and_then(|l| l.rsplit_once(", ")) {
            Some((name, arch)) => Self::Cuda { name: name.to_owned(), arch: arch.replace('.', "") },
            None => Self::Cpu,
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

    /// Architecture that CUDA candidates are built for; without a GPU Hopper's.
    pub fn arch(&self) -> &str {
        match self {
            Self::Cpu => "90",
            Self::Cuda { arch, .. } => arch,
        }
    }
}
