//! The language-model engine of KernelZero: opens Llama, Qwen2 and Qwen3 models, samples from
//! them, fine-tunes them, takes GRPO steps and writes checkpoints, all on libtorch.
//!
//! `config`, `files`, `gguf`, `weights`, `layout`, `params`, `tokenizer` read a model; `model`, `rope`
//! compute it; `generate` writes answers, with `cache`, `decode` and `sampling` on libtorch or with the
//! crate `kernels` on CUDA; `libtorch` and `dispatch` reach what tch does not offer.
//!
//! Training: `batch` packs sequences, `attention`, `block`, `linear`, `layer`, `train` go through the layers
//! forward and back, `loss` through the vocabulary, `optim` and `master` update; `lora` trains an
//! adapter instead; `sft` and `grpo` say what is minimised.
//!
//! Several ranks: `ranks` is what they do together, `shard` what each has of the masters, `share` of the
//! packs.
//!
//! `checkpoint` saves and resumes; `serve` speaks JSON lines; `bpe` makes a tokenizer.

pub mod attention;
pub mod batch;
mod block;
pub mod bpe;
pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod decode;
mod dispatch;
pub mod error;
mod exact;
pub mod files;
mod fill;
pub mod footprint;
mod fused;
pub mod generate;
pub mod gguf;
pub mod gradients;
pub mod grpo;
pub mod layer;
pub mod layout;
pub mod libtorch;
mod linear;
mod link;
pub mod lora;
pub mod lora_file;
pub mod loss;
pub mod master;
pub mod metrics;
pub mod model;
mod moves;
pub mod objective;
pub mod optim;
pub mod params;
pub mod planner;
pub mod policy;
pub mod protocol;
pub mod ranks;
pub mod reply;
pub mod rope;
pub mod sampling;
pub mod serve;
pub mod sft;
pub mod shapes;
pub mod shard;
mod share;
mod slot;
mod spread;
mod together;
pub mod tokenizer;
pub mod train;
mod weights;

pub use error::{Error, Result};
pub use policy::{Open, Policy};
