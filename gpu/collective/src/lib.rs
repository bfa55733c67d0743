//! Several processes, one per device, that take one step together.
//!
//! Rank 0 starts the others with its own command line (`launch`) and is linked to each by a socket
//! (`star`), over which small values, texts and the tensors of CPUs travel. Tensors of GPUs go over NCCL
//! (`nccl`). There is no recovery inside: a rank that ends or hangs ends all, and rank 0 says which.
//! Knows no tensors: callers hand over bytes and device pointers.

mod error;
mod launch;
pub mod nccl;
mod star;
mod wire;

pub use error::{Error, Loss, Result};
pub use launch::{RANK, join, start};
pub use nccl::Nccl;
pub use star::Star;
