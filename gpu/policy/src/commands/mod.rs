//! The subcommands.

pub mod bench_generate;
pub mod bench_train;
pub mod check_kernels;
pub mod generate;
pub mod merge;
pub mod plan;
mod random;
pub mod ranks;
pub mod sft;
pub mod train_bpe;
