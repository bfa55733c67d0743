//! The seven actors, run control, and the bus between them. Each actor is a thin shell: ask the
//! state what is wanted, do it through a port, append what happened. They share nothing else.

pub mod attached;
pub mod bus;
pub mod desk;
pub mod ports;
pub mod shells;
pub mod system;

pub use bus::{Bus, Error};
pub use desk::Desk;
pub use shells::{Shell, Shells};
