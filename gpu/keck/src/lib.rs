//! Keck, the judge: static rules, builds, sandboxed runs and measurements.
//!
//! It takes a reference module and a candidate kernel, both written by models and hostile until
//! proven otherwise, and returns facts ([`events::outcome`]) from which rules elsewhere make
//! verdicts. Nothing that decides runs where their code runs:
//!
//! - [`rules`] read the sources and explain themselves.
//! - One warm Python process (torch loaded, no CUDA yet) forks a worker for each job. A reference
//!   and a candidate never share a process. Each worker is process 1 of its own pid namespace,
//!   with its own mounts, network and IPC, no capabilities, a system call filter and limits;
//!   [`Judge::layers`] says what is really up.
//! - Inputs, state and outputs cross as raw bytes in memory files. The candidate gets a trial's
//!   inputs only after its answer to the one before was read, and never sees the reference. What
//!   a worker says beside its outputs can only speak against the candidate.
//! - The comparison is made here, in Rust, over all elements.
//!
//! **Trials.** Trial 0 is the task as it is given. All others have fresh inputs and parameters
//! plus noise of N(0, 0.3); from the third on the float inputs are also changed: times 30, plus
//! 2.5, times 0.05, times 1e5, times 8, and so on. A changed trial falls back to noise alone, then
//! to fresh inputs alone, where the reference raises, is not finite, or differs from its own run
//! in double precision by more than 5e-6 of the output's scale. All seeds are derived from the
//! job's, so that no well-known seed is ever used.
//!
//! **Faults.** Whatever the candidate does is an `Ok` with its failure; an [`Error`] is the
//! world's and never a verdict. Deadlines do not count time in which a worker was ready to run but
//! got no processor.
//!
//! **CUDA builds.** Candidates include torch's headers, which take most of a minute. A small set
//! of our own stands in for them ([`Headers::Fast`]); what it cannot serve is built with the real
//! ones, and the result says which.
//!
//! Not covered yet: contents that rotate while timing, guard regions around GPU memory, a clock
//! outside of the candidate's process.

mod answer;
mod baseline;
mod blame;
mod cache;
mod clocks;
mod compile;
mod compilers;
mod config;
mod device;
mod doctor;
mod error;
mod evidence;
mod fault;
mod headers;
mod judge;
mod lease;
mod looks;
mod measure;
mod memory;
mod places;
mod poll;
mod probe;
mod purity;
mod reference;
mod roofline;
pub mod rules;
mod scratch;
mod session;
mod stats;
mod strain;
mod tensors;
mod timing;
mod toolchain;
mod trial;
mod validate;
mod wire;
mod zygote;

pub use compile::{Build, BuildJob};
pub use config::{Config, Isolation, LAYERS};
pub use doctor::{Check, doctor};
pub use error::Error;
pub use evidence::{Evidence, KernelSeen, Side};
pub use headers::{Headers, HeadersPolicy};
pub use judge::Judge;
pub use measure::MeasureJob;
pub use probe::Rates;
pub use purity::POLICY_VERSION;
pub use scratch::Scratch;
pub use validate::ValidateJob;
