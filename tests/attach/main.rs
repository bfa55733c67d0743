//! Actors that are attached to a running system: over the socket, as processes, by command.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod built_in;
#[path = "../cli/mod.rs"]
mod cli;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod daemon;
mod detaching;
mod freezing;
mod hall;
mod harm;
mod protocol;
mod settings;
