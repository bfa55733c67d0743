//! The subcommands that work on files.

pub mod generate;
pub mod sft;
pub mod train_bpe;
