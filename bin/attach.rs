//! Attached actors: the socket in a run's folder, the process on its other side, and the actors that
//! are built in.

use std::sync::Arc;

use actors::attached::{Attached, built_in};
use events::config::BuiltIn;
use events::intent::ActorName;
use events::log::Blobs;

pub mod client;
mod mirror;
mod place;
pub mod residents;
pub mod socket;
mod tap;

/// The built-in actor that a config or a command asks for. `blobs`: those of the run.
pub fn make(
    name: ActorName,
    wanted: &BuiltIn,
    blobs: Arc<dyn Blobs>,
) -> Result<Box<dyn Attached>, String> {
    match wanted {
        BuiltIn::Tap { file, events } => Ok(Box::new(tap::Tap::open(file, events.clone())?)),
        BuiltIn::Mirror { judge, percent } => {
            Ok(Box::new(mirror::Mirror::new(judge, percent.get(), blobs)))
        }
        other => built_in(name, other).ok_or_else(|| format!("there is no actor {other:?}")),
    }
}
