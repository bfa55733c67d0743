//! The subcommands.

pub mod bench_generate;
pub mod check_kernels;
pub mod generate;
mod random;
pub mod sft;
pub mod train_bpe;
