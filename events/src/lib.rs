//! What can happen in a run ([`event`]), what it adds up to ([`state`]), and what must follow
//! ([`rules`]). Pure: no clock, no random source, no I/O; held by this crate's `clippy.toml`.

pub mod config;
pub mod event;
pub mod ids;
pub mod intent;
pub mod log;
pub mod needed;
pub mod outcome;
pub mod rules;
pub mod sample;
pub mod service;
pub mod state;
