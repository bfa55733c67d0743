//! The language-model engine of KernelZero: opens Llama and Qwen2 folders, samples from
//! them, fine-tunes them, takes GRPO steps and writes checkpoints, all on libtorch.
//!
//! `config`, `files`, `params`, `tokenizer` read a model; `model`, `rope` compute it;
//! `generate` writes answers, with `cache`, `decode` and `sampling` on libtorch or with the crate
//! `kernels` on CUDA; `libtorch` reaches what tch does not offer; `batch`, `loss`, `optim`, `sft`, `grpo` train;
//! `checkpoint` saves and resumes; `serve` speaks JSON lines; `bpe` makes a tokenizer.

pub mod batch;
pub mod bpe;
pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod decode;
pub mod error;
pub mod files;
pub mod generate;
pub mod grpo;
pub mod libtorch;
mod link;
pub mod loss;
pub mod model;
pub mod optim;
pub mod params;
pub mod policy;
pub mod protocol;
pub mod reply;
pub mod rope;
pub mod sampling;
pub mod serve;
pub mod sft;
pub mod tokenizer;

pub use error::{Error, Result};
pub use policy::{Open, Policy};
