//! The engine's own CUDA kernels. For generation: RMSNorm, rotary positions with the write into a paged
//! cache, SwiGLU, paged attention of one new token per row, sampling, and matrix times vector; for
//! training, what stands between its matrix products.
//!
//! `compile` turns the sources in `cuda/` into machine code with NVRTC, which needs no GPU;
//! `gpu` holds a device, its memory and events; `launch` has one function per kernel, over raw
//! device addresses, and says what each must address. The crate knows nothing of models or of libtorch.
//! Launches go to a [`Machine`]: the device, or a host that plays one in tests.
//! `reference` computes the same in float64 on the host, `check` compares on a device.

pub mod check;
pub mod compile;
mod error;
pub mod gpu;
pub mod launch;
mod machine;
pub mod reference;

pub use error::{Error, Result};
pub use gpu::Gpu;
pub use machine::{Address, Machine, Memory};
