//! Attached actors: the socket in a run's folder, the process on its other side, and the actors that
//! are built in.

pub mod client;
mod place;
pub mod socket;
