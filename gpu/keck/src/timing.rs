//! Device times of a candidate and its reference, in turns.

use std::time::{Duration, Instant};

use events::outcome::{Failure, FailureKind, Sides, Times, Timing, Trial};
use events::rules::speed::{between_processes, within};
use serde_json::{Value, json};

use crate::answer::{Stop, heard};
use crate::error::Error;
use crate::judge::Judge;
use crate::looks::Look;
use crate::measure::MeasureJob;
use crate::reference::{AtFault, Reference};
use crate::session::{Answer, Reply, Session};
use crate::wire::Handed;

/// Kinds of calls: as anyone makes them, with launches ahead of the device, and replays of a graph,
/// ahead of it too. The latter two take the time of the work alone.
const ROUND: &str = "round";
const AHEAD: &str = "ahead";
const REPLAY: &str = "replay";
/// Calls in a turn.
pub(crate) const CALLS: usize = 3;
/// Turns of calls as anyone makes them.
const FIRST_TURNS: usize = 5;
/// Turns that count at most, unless more are asked for.
const TURNS: usize = 60;
/// No more turns are taken when the half-width of the speed-up's interval within this measurement is this
/// share of what it is between processes: no number of turns makes that less, and together they are a
/// fifth wider.
const NARROW: f64 = 0.67;
/// Time after which no more turns are taken.
const BUDGET: Duration = Duration::from_millis(1500);
/// Only tasks with a shorter reference are also replayed as graphs.
const SHORT_NS: u64 = 100_000;

/// Both sides, ready to be timed on the same inputs.
pub(crate) struct Bench<'a> {
    pub judge: &'a Judge,
    candidate: &'a mut Session,
    baseline: &'a mut Session,
    pub reference: &'a Reference,
    /// Which results are asked for is not known to anyone before the call is over.
    pub seed: u64,
    /// Results that the candidate's worker keeps, and how many it has kept in all.
    pub looks: Vec<Look>,
    pub kept: usize,
    /// Calls of the last turn that were not launched ahead of the device; of the side with more.
    late: u64,
    /// For how long the device stayed busy after the calls: candidate, reference.
    pub tails: [Vec<u64>; 2],
}

impl Judge {
    /// Times both sides in turns, so that both see the same clocks, on inputs that rotate, while
    /// nothing else uses the device. Also gives the comparisons of the results that were looked at.
    /// Not taken on a CPU.
    pub(crate) fn timing(
        &self,
        job: &MeasureJob,
        candidate: &mut Session,
        reference: &Reference,
    ) -> Result<(Timing, Vec<Trial>), Stop> {
        if !job.timing || self.device.kind() == "cpu" {
            return Ok((Timing::NotTaken, Vec::new()));
        }
        self.beside(job, candidate, reference, |bench| bench.take())
    }

    /// Does something with a candidate and its reference on the same inputs, side by side.
    pub(crate) fn beside<T>(
        &self,
        job: &MeasureJob,
        candidate: &mut Session,
        reference: &Reference,
        act: impl FnOnce(&mut Bench<'_>) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let mut baseline = match self.parked.take(&reference.key) {
            Some(parked) => parked,
            None => match self.load_reference(&job.module_source, job.seed)? {
                Ok((session, _)) => session,
                Err(AtFault(_, text)) => return Err(Error::WorkerDied(text).into()),
            },
        };
        let mut bench = Bench {
            judge: self,
            candidate,
            baseline: &mut baseline,
            reference,
            seed: job.seed,
            looks: Vec::new(),
            kept: 0,
            late: 0,
            tails: Default::default(),
        };
        let done = bench.open().and_then(|()| act(&mut bench));
        if !matches!(done, Err(Stop::World(_))) {
            self.park(reference.key, baseline)?;
        }
        done
    }
}

impl Bench<'_> {
    /// Only the calls need the device alone. Their results are looked at afterwards, in copies that
    /// were made between the calls.
    fn take(&mut self) -> Result<(Timing, Vec<Trial>), Stop> {
        let exclusive = self.judge.device_alone();
        let mut times = self.times()?;
        drop(exclusive);
        self.roofline(&times)?;
        let mut checked = Vec::new();
        let mut replayed = Vec::new();
        for look in std::mem::take(&mut self.looks) {
            match self.show(look) {
                Ok(trial) if look.kind == REPLAY => replayed.push(trial),
                Ok(trial) => checked.push(trial),
                Err(Stop::Candidate(_)) if look.kind == REPLAY => times.graph = None,
                Err(stop) => return Err(stop),
            }
        }
        if !replayed.is_empty() && !self.judge.worth_timing(&replayed, 1, self.reference) {
            times.graph = None;
        } else if times.graph.is_some() {
            checked.extend(replayed);
        }
        Ok((Timing::Taken(Box::new(times)), checked))
    }

    pub fn candidate(
        &mut self,
        question: Value,
        blobs: &[(&str, Handed<'_>)],
    ) -> Result<Reply, Stop> {
        let timeout = self.judge.config.trial_timeout;
        heard(self.judge.ask(self.candidate, question, blobs, timeout)?)
    }

    pub fn baseline(
        &mut self,
        question: Value,
        blobs: &[(&str, Handed<'_>)],
    ) -> Result<Reply, Error> {
        let timeout = self.judge.config.trial_timeout;
        trusted(self.judge.ask(self.baseline, question, blobs, timeout)?)
    }

    fn open(&mut self) -> Result<(), Stop> {
        let _shared = self.judge.lease.shared();
        let trials = &self.reference.timed;
        let names: Vec<String> = (0..trials.len()).map(|i| format!("inputs{i}")).collect();
        let mut blobs: Vec<(&str, Handed<'_>)> =
            names.iter().zip(trials).map(|(n, t)| (n.as_str(), t.inputs.handed())).collect();
        let question = json!({ "do": "time", "time": "open" });
        self.baseline(question.clone(), &blobs)?;
        blobs.push(("state", trials.first().map_or(Handed::Bytes(&[]), |t| t.state.handed())));
        self.candidate(question, &blobs)?;
        Ok(())
    }

    /// Calls as anyone makes them, then the work alone where it can be had.
    fn times(&mut self) -> Result<Times, Stop> {
        for _ in 0..2 {
            self.turn(ROUND, 1, 0)?;
        }
        let mut eager = Sides::default();
        self.turns(ROUND, &mut eager, FIRST_TURNS..FIRST_TURNS)?;
        // Only of calls that are not ahead of the device can it be told what they leave behind.
        self.tail(&eager)?;
        let enough = self.enough();
        let mut alone = Sides::default();
        self.turns(AHEAD, &mut alone, 2..2)?;
        if self.late == CALLS as u64 {
            // One side waits for the device in each call, so that its launches cannot be ahead.
            self.turns(ROUND, &mut eager, enough)?;
            self.wall(&eager)?;
            return Ok(Times { calls: CALLS as u32, eager, graph: None });
        }
        let short = median(&alone.reference_ns) < SHORT_NS;
        let replayed = if short && self.captured()? { self.replayed()? } else { None };
        let work = match replayed {
            Some(sides) => sides,
            None => {
                self.turns(AHEAD, &mut alone, enough)?;
                alone
            }
        };
        self.wall(&eager)?;
        Ok(Times { calls: CALLS as u32, eager, graph: Some(work) })
    }

    /// Turns that are taken at least and at most.
    fn enough(&self) -> std::ops::Range<usize> {
        let least = self.judge.config.turns;
        least..TURNS.max(least)
    }

    /// Times of replays; none where the candidate's replays are not right. A kernel that is launched on
    /// another stream than the capturing one is not in the graph: no fault of an honest candidate. The
    /// result of its one call then stands in the output, and may be right for one of the inputs.
    fn replayed(&mut self) -> Result<Option<Sides>, Stop> {
        let before = self.looks.len();
        self.turn(REPLAY, CALLS, 0)?;
        for index in 0..CALLS {
            self.look_at(REPLAY, index)?;
        }
        for look in self.looks.split_off(before) {
            match self.show(look) {
                Ok(seen)
                    if self.judge.worth_timing(std::slice::from_ref(&seen), 1, self.reference) => {}
                Ok(_) | Err(Stop::Candidate(_)) => return Ok(None),
                Err(world) => return Err(world),
            }
        }
        let mut sides = Sides::default();
        self.turns(REPLAY, &mut sides, self.enough())?;
        Ok(Some(sides))
    }

    /// More turns until the interval of the speed-up is narrow or the budget is spent.
    fn turns(
        &mut self,
        kind: &'static str,
        sides: &mut Sides,
        range: std::ops::Range<usize>,
    ) -> Result<(), Stop> {
        let start = Instant::now();
        for turn in sides.candidate_ns.len() / CALLS..range.end {
            let (mine, theirs) = self.turn(kind, CALLS, turn)?;
            sides.candidate_ns.extend(mine);
            sides.reference_ns.extend(theirs);
            // Any of the first calls, and of some later ones.
            if turn < 2 || turn % 8 == 7 {
                self.look(kind, turn)?;
            }
            if turn + 1 >= range.start && (start.elapsed() > BUDGET || narrow(sides)) {
                break;
            }
        }
        Ok(())
    }

    /// One turn of each side; who begins changes.
    fn turn(
        &mut self,
        kind: &str,
        calls: usize,
        turn: usize,
    ) -> Result<(Vec<u64>, Vec<u64>), Stop> {
        let question = json!({ "do": "time", "time": kind, "calls": calls });
        let (mine, theirs);
        if turn.is_multiple_of(2) {
            mine = self.candidate(question.clone(), &[])?.value;
            theirs = self.baseline(question, &[])?.value;
        } else {
            theirs = self.baseline(question.clone(), &[])?.value;
            mine = self.candidate(question, &[])?.value;
        }
        if kind == ROUND {
            self.tails[0].extend(list(&mine["tails"]));
            self.tails[1].extend(list(&theirs["tails"]));
        }
        let late = |side: &Value| side["late"].as_u64().unwrap_or(0);
        self.late = late(&mine).max(late(&theirs));
        let (mine, theirs) = (list(&mine["ns"]), list(&theirs["ns"]));
        if mine.len() != calls || theirs.len() != calls || mine.contains(&0) {
            return Err(suspicious("a call has no time"));
        }
        Ok((mine, theirs))
    }

    /// Whether both sides can be replayed as graphs.
    fn captured(&mut self) -> Result<bool, Stop> {
        let question = json!({ "do": "time", "time": "capture" });
        let mine = self.candidate(question.clone(), &[])?.value["captured"] == true;
        Ok(mine && self.baseline(question, &[])?.value["captured"] == true)
    }
}

/// Whether more turns would no longer tell much.
fn narrow(sides: &Sides) -> bool {
    let Some((ratio, (low, high))) = within(sides, CALLS as u32) else { return false };
    between_processes(sides).is_some_and(|between| (high - low) / 2.0 <= NARROW * between * ratio)
}

pub(crate) fn suspicious(why: &str) -> Stop {
    Stop::Candidate(Failure::new(FailureKind::SuspiciousTiming, why))
}

fn list(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

pub(crate) fn median(times: &[u64]) -> u64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

/// The reference ran a moment ago; if it does not now, the machine is at fault.
fn trusted(answer: Answer) -> Result<Reply, Error> {
    match answer {
        Answer::Said(reply) if reply.value["failed"].is_null() => Ok(reply),
        Answer::Said(reply) => {
            Err(Error::WorkerDied(format!("timing the reference: {}", reply.value["message"])))
        }
        _ => Err(Error::WorkerDied("timing the reference: no answer".to_owned())),
    }
}
