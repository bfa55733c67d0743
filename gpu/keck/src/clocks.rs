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
const WALL_FROM_NS: f64 = 1_000_000.0;
/// So often must more time pass than is claimed.
const WALL_TRIES: usize = 3;

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

    /// The judge's own clock over two loops of different length bounds what the device times may claim.
    /// Only long calls can be held to it. What is hidden is hidden each time; what else takes time (new
    /// memory, a processor that is taken away) is not there each time.
    pub(crate) fn wall(&mut self, eager: &Sides) -> Result<(), Stop> {
        let claimed = median(&eager.candidate_ns) as f64;
        let reference = median(&eager.reference_ns) as f64;
        if reference < WALL_FROM_NS {
            return Ok(());
        }
        // So that both sides hold the memory that so many results need.
        self.side(0, WALL_CALLS[1])?;
        self.side(1, WALL_CALLS[1])?;
        let mut passed = 0.0;
        for _ in 0..WALL_TRIES {
            passed = self.per_call(0)?;
            let seen = self.per_call(1)? - passed;
            if (reference - claimed) - seen <= 0.3 * reference + 300_000.0 {
                return Ok(());
            }
        }
        Err(suspicious(&format!(
            "wall-clock: {claimed} ns a call are claimed, {passed:.0} ns pass"
        )))
    }

    /// What a call takes by the judge's own clock, in ns: the longer loop without the shorter one.
    fn per_call(&mut self, side: usize) -> Result<f64, Stop> {
        let [few, many] = WALL_CALLS;
        let short = self.side(side, few)?;
        Ok((self.side(side, many)? - short) / (many - few) as f64)
    }

    /// Wall time of so many calls of the candidate (0) or the reference (1), in ns.
    fn side(&mut self, side: usize, calls: usize) -> Result<f64, Stop> {
        let question = json!({ "do": "time", "time": "round", "calls": calls });
        let start = Instant::now();
        match side {
            0 => self.candidate(question, &[])?,
            _ => self.baseline(question, &[])?,
        };
        Ok(start.elapsed().as_nanos() as f64)
    }
}
