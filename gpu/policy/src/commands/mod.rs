//! The subcommands that work on files.

pub mod bench_train;
pub mod generate;
pub mod merge;
pub mod plan;
pub mod sft;
pub mod train_bpe;
