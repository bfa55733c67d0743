//! What can go wrong between the host and a device.

use cudarc::driver::DriverError;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of the device, of its libraries, or of a caller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A library of CUDA is not where it was looked for.
    #[error("{library} cannot be opened: {fix} (looked beside libtorch and on the loader's path)")]
    Library {
        /// Its file name.
        library: &'static str,
        /// What to do.
        fix: &'static str,
    },
    /// A kernel does not compile, which is a defect of this crate or an unknown architecture.
    #[error("{source_file} does not compile for {arch}:\n{log}")]
    Compile {
        /// The file in `cuda/`.
        source_file: &'static str,
        /// Such as `sm_90a`.
        arch: String,
        /// The compiler's word.
        log: String,
    },
    /// A call of the driver failed; after a fault of a kernel, every later call does.
    #[error("CUDA: {0}")]
    Driver(#[from] DriverError),
    /// A shape that a kernel does not serve.
    #[error("{0}")]
    Shape(String),
    /// A kernel and its reference differ.
    #[error("{kernel}: {problem}")]
    Wrong {
        /// The kernel.
        kernel: &'static str,
        /// Where and by how much.
        problem: String,
    },
}
