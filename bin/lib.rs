//! What the two programs share: ports wired to adapters, and the commands.

pub mod attach;
pub mod audit;
pub mod branch;
pub mod cli;
pub mod compare;
pub mod daemon;
pub mod effects;
pub mod engine;
pub mod exit;
pub mod host;
pub mod judge;
pub mod kept;
pub mod logging;
pub mod parallel;
pub mod plan;
pub mod rescore;
pub mod runs;
pub mod service;
pub mod shown;
pub mod summary;
