//! The judge's service as its clients see it: the real program, the real judge.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../cli/mod.rs"]
mod cli;
mod document;
mod served;

mod access;
mod bad_requests;
mod client;
mod jobs;
mod restarts;
mod world;
