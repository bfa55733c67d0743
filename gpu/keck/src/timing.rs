//! Device times of a candidate and its reference, in turns.

use std::time::{Duration, Instant};

use events::config::Rules;
use events::outcome::{Failure, FailureKind, Sides, Times, Timing, Trial};
use events::rules::speed::speed;
use serde_json::{Value, json};

use crate::answer::{Stop, compare_outputs, heard};
use crate::error::Error;
use crate::judge::Judge;
use crate::measure::MeasureJob;
use crate::reference::{Reference, ReferenceTrial, derive};
use crate::session::{Answer, Reply, Session};

/// Calls in a turn.
const CALLS: usize = 3;
/// Turns that each side gets at least and at most.
const TURNS: std::ops::Range<usize> = 10..40;
/// Half-width of the speed-up's interval, relative to it, at which no more turns are taken.
const NARROW: f64 = 0.015;
/// Time after which no more turns are taken.
const BUDGET: Duration = Duration::from_millis(1500);
/// Inputs that take turns, as long as together they are not larger than this many bytes.
const ROTATING: usize = 3;
const ROTATING_BYTES: usize = 1 << 30;
/// Only tasks with a shorter reference are also replayed as graphs.
const SHORT_NS: u64 = 100_000;
/// What a device may still do after the end of a call beyond what the reference shows, in ns.
const TAIL_NS: u64 = 50_000;
/// Calls of the two loops whose wall times the judge itself compares.
const WALL_CALLS: [usize; 2] = [2, 8];
/// Only references that take this long are held to the wall clock: below, launches dominate it.
const WALL_FROM_NS: u64 = 1_000_000;

/// Both sides, ready to be timed on the same inputs.
struct Bench<'a> {
    judge: &'a Judge,
    candidate: &'a mut Session,
    baseline: &'a mut Session,
    reference: &'a Reference,
    trials: Vec<ReferenceTrial>,
    /// Which results are asked for is not known to anyone before the call is over.
    seed: u64,
    checked: Vec<Trial>,
    /// For how long the device stayed busy after the calls: candidate, reference.
    tails: [Vec<u64>; 2],
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
        let mut baseline = self.worker("module")?;
        let load = json!({ "do": "load", "seed": derive(job.seed, "init", 0) });
        let source = [("source", job.module_source.as_bytes())];
        trusted(self.ask(&mut baseline, load, &source, self.config.import_timeout)?)?;
        let size = reference.trials.first().map_or(0, |trial| trial.inputs.len());
        let count = (ROTATING_BYTES / size.max(1)).clamp(1, ROTATING);
        let mut trials = Vec::with_capacity(count);
        for index in 0..count {
            trials.push(self.timed_trial(&mut baseline, derive(job.seed, "timed", index))?);
        }
        let _exclusive = self.exclusive();
        let mut bench = Bench {
            judge: self,
            candidate,
            baseline: &mut baseline,
            reference,
            trials,
            seed: job.seed,
            checked: Vec::new(),
            tails: Default::default(),
        };
        bench.open()?;
        let times = bench.times()?;
        Ok((Timing::Taken(times), bench.checked))
    }

    /// Inputs of the task as it is given, and the reference's outputs for them.
    fn timed_trial(&self, baseline: &mut Session, seed: u64) -> Result<ReferenceTrial, Error> {
        let question = json!({
            "do": "trial", "seed": seed, "scale": "plain", "perturb": false, "twice": false,
            "wide": false,
        });
        let mut reply = trusted(self.ask(baseline, question, &[], self.config.trial_timeout)?)?;
        let mut take = |name: &str| reply.take(name).unwrap_or_default();
        Ok(ReferenceTrial {
            seed,
            varied: "timed".to_owned(),
            products: false,
            wall: Duration::ZERO,
            inputs: take("inputs"),
            state: take("state"),
            outputs: take("first"),
            after: take("after"),
        })
    }
}

impl Bench<'_> {
    fn candidate(&mut self, question: Value, blobs: &[(&str, &[u8])]) -> Result<Reply, Stop> {
        let timeout = self.judge.config.trial_timeout;
        heard(self.judge.ask(self.candidate, question, blobs, timeout)?)
    }

    fn baseline(&mut self, question: Value, blobs: &[(&str, &[u8])]) -> Result<Reply, Error> {
        let timeout = self.judge.config.trial_timeout;
        trusted(self.judge.ask(self.baseline, question, blobs, timeout)?)
    }

    fn open(&mut self) -> Result<(), Stop> {
        let trials = std::mem::take(&mut self.trials);
        let names: Vec<String> = (0..trials.len()).map(|i| format!("inputs{i}")).collect();
        let mut blobs: Vec<(&str, &[u8])> =
            names.iter().zip(&trials).map(|(n, t)| (n.as_str(), t.inputs.as_slice())).collect();
        let question = json!({ "do": "time", "time": "open" });
        self.baseline(question.clone(), &blobs)?;
        blobs.push(("state", trials.first().map(|t| t.state.as_slice()).unwrap_or_default()));
        self.candidate(question, &blobs)?;
        self.trials = trials;
        Ok(())
    }

    fn times(&mut self) -> Result<Times, Stop> {
        for _ in 0..2 {
            self.turn("round", 1, 0)?;
        }
        let eager = self.sides("round")?;
        self.tail(&eager)?;
        self.wall(&eager)?;
        let short = median(&eager.reference_ns) < SHORT_NS;
        let graph = if short && self.captured()? { self.replayed()? } else { None };
        Ok(Times { calls: CALLS as u32, eager, graph })
    }

    /// Times of replays; none where the candidate's replays are not right. A kernel that is launched on
    /// another stream than the capturing one is not in the graph: no fault of an honest candidate.
    fn replayed(&mut self) -> Result<Option<Sides>, Stop> {
        let before = self.checked.len();
        let sides = self.sides("replay");
        let seen = self.checked.split_off(before);
        match sides {
            Ok(sides) if self.judge.worth_timing(&seen, 1, self.reference) => {
                self.checked.extend(seen);
                Ok(Some(sides))
            }
            Ok(_) | Err(Stop::Candidate(_)) => Ok(None),
            Err(world) => Err(world),
        }
    }

    /// Turns until the interval of the speed-up is narrow or the budget is spent.
    fn sides(&mut self, kind: &str) -> Result<Sides, Stop> {
        let start = Instant::now();
        let mut sides = Sides::default();
        for turn in 0..TURNS.end {
            let (mine, theirs) = self.turn(kind, CALLS, turn)?;
            sides.candidate_ns.extend(mine);
            sides.reference_ns.extend(theirs);
            // Any of the first calls, and of some later ones.
            if turn < 2 || turn % 8 == 7 {
                self.look(kind, turn)?;
            }
            if turn + 1 >= TURNS.start && (start.elapsed() > BUDGET || narrow(&sides)) {
                break;
            }
        }
        Ok(sides)
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
        self.tails[0].extend(list(&mine["tails"]));
        self.tails[1].extend(list(&theirs["tails"]));
        let (mine, theirs) = (list(&mine["ns"]), list(&theirs["ns"]));
        if mine.len() != calls || theirs.len() != calls || mine.contains(&0) {
            return Err(suspicious("a call has no time"));
        }
        Ok((mine, theirs))
    }

    /// Looks at the result of one call of the last turn.
    fn look(&mut self, kind: &str, turn: usize) -> Result<(), Stop> {
        let index = derive(self.seed, kind, turn) as usize % CALLS;
        let question = json!({ "do": "time", "time": "result", "index": index });
        let mut reply = self.candidate(question, &[])?;
        let outputs = reply.take("outputs").unwrap_or_default();
        let which = reply.value["inputs"].as_u64().and_then(|i| usize::try_from(i).ok());
        let expected = which.and_then(|i| self.trials.get(i));
        let trial = expected.ok_or_else(|| suspicious("a result of inputs that do not exist"))?;
        let outputs = compare_outputs(trial, &outputs)?;
        self.checked.push(Trial { seed: trial.seed, varied: format!("timed-{kind}"), outputs });
        Ok(())
    }

    /// Work on a stream that nobody waits for goes on after the call's own stream has ended, in most
    /// calls; that a process is not scheduled for a moment happens in few.
    fn tail(&self, eager: &Sides) -> Result<(), Stop> {
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
    fn wall(&mut self, eager: &Sides) -> Result<(), Stop> {
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

    /// Whether both sides can be replayed as graphs.
    fn captured(&mut self) -> Result<bool, Stop> {
        let question = json!({ "do": "time", "time": "capture" });
        let mine = self.candidate(question.clone(), &[])?.value["captured"] == true;
        Ok(mine && self.baseline(question, &[])?.value["captured"] == true)
    }
}

fn narrow(sides: &Sides) -> bool {
    let times = Times { calls: CALLS as u32, eager: sides.clone(), graph: None };
    speed(&Timing::Taken(times), Rules::Strict).is_some_and(|found| {
        let (low, high) = found.interval;
        (high - low) / 2.0 <= NARROW * found.ratio
    })
}

fn suspicious(why: &str) -> Stop {
    Stop::Candidate(Failure::new(FailureKind::SuspiciousTiming, why))
}

fn list(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

fn median(times: &[u64]) -> u64 {
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
