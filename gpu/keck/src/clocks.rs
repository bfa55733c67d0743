//! What bounds a clock that runs in the candidate's process.

use std::time::Instant;

use events::outcome::Sides;
use serde_json::json;

use crate::answer::Stop;
use crate::timing::{Bench, median, suspicious};

/// What a device may still do after the end of a call beyond what the reference shows, in ns.
const TAIL_NS: u64 = 50_000;
/// Calls of the two loops whose wall times the judge itself compares.
const WALL_CALLS: [usize; 2] = [2, 8];
/// Only references that take this long are held to the wall clock: below, launches dominate it.
const WALL_FROM_NS: u64 = 1_000_000;

impl Bench<'_> {
    /// Work on a stream that nobody waits for goes on after the call's own stream has ended, in most
    /// calls; that a process is not scheduled for a moment happens in few.
    pub(crate) fn tail(&self, eager: &Sides) -> Result<(), Stop> {
        let [tail, usual] = [0, 1].map(|side| median(&self.tails[side]));
        if tail > usual + TAIL_NS + median(&eager.candidate_ns) / 5 {
            return Err(suspicious(&format!(
                "hidden-work: the device was busy for {tail} ns after the end of the call's stream"
            )));
        }
        Ok(())
    }

    /// The judge's own clock over two loops of different length bounds what the device times may
    /// claim. Only long calls can be held to it.
    pub(crate) fn wall(&mut self, eager: &Sides) -> Result<(), Stop> {
        let claimed = median(&eager.candidate_ns);
        let reference = median(&eager.reference_ns);
        if reference < WALL_FROM_NS {
            return Ok(());
        }
        let mut per_call = [0.0; 2];
        for (side, seen) in per_call.iter_mut().enumerate() {
            let mut walls = [0.0; 2];
            for (wall, calls) in walls.iter_mut().zip(WALL_CALLS) {
                let question = json!({ "do": "time", "time": "round", "calls": calls });
                let start = Instant::now();
                if side == 0 {
                    self.candidate(question, &[])?;
                } else {
                    self.baseline(question, &[])?;
                }
                *wall = start.elapsed().as_nanos() as f64;
            }
            *seen = (walls[1] - walls[0]) / (WALL_CALLS[1] - WALL_CALLS[0]) as f64;
        }
        let saved = reference as f64 - claimed as f64;
        let seen = per_call[1] - per_call[0];
        if saved - seen > 0.3 * reference as f64 + 300_000.0 {
            return Err(suspicious(&format!(
                "wall-clock: {claimed} ns a call are claimed, {:.0} ns pass",
                per_call[0]
            )));
        }
        Ok(())
    }
}
