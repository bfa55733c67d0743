//! A recorded run scored by other rules, and what a cheat has fed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../cli/mod.rs"]
mod cli;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod exact;
mod from_clean;
mod taint;
mod unknown;
mod world;
