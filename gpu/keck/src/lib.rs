//! Keck, the judge: static rules, builds, sandboxed runs and measurements.

mod cache;
mod compile;
mod config;
mod device;
mod doctor;
mod error;
mod fault;
mod judge;
mod measure;
mod poll;
mod purity;
mod reference;
pub mod rules;
mod scratch;
mod session;
mod stats;
mod tensors;
mod timing;
mod toolchain;
mod validate;
mod wire;
mod zygote;

pub use compile::{Build, BuildJob};
pub use config::{Config, Isolation};
pub use doctor::{Check, doctor};
pub use error::Error;
pub use judge::Judge;
pub use measure::MeasureJob;
pub use purity::POLICY_VERSION;
pub use validate::ValidateJob;
