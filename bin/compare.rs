//! Runs beside each other: figures by step, and paired differences where they no longer share a log.

mod interval;
mod svg;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use anyhow::Result;
use events::event::{Event, Scores, Validity, Verdict};
use events::ids::{RunId, Seq, StepRef};
use serde::Serialize;
use store::FileLog;

pub use interval::Difference;
pub use svg::drawing;

/// What is compared, with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Share of valid modules among those proposed in the step.
    Valid,
    /// Share of right kernels among those judged in the step.
    Right,
    /// Mean reward of the step's samples.
    Reward,
    /// Mean speed-up over eager of the step's right kernels that were timed.
    Speedup,
    /// Share of groups with a signal.
    Signal,
    /// KL to the reference, nats per token.
    Kl,
    /// Entropy of the policy, nats per token.
    Entropy,
    /// Global gradient norm before clipping.
    GradNorm,
}

impl Figure {
    /// All of them, in the order of tables.
    pub const ALL: [Figure; 8] = [
        Figure::Valid,
        Figure::Right,
        Figure::Reward,
        Figure::Speedup,
        Figure::Signal,
        Figure::Kl,
        Figure::Entropy,
        Figure::GradNorm,
    ];

    /// As tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Valid => "valid modules",
            Figure::Right => "right kernels",
            Figure::Reward => "mean reward",
            Figure::Speedup => "speed-up",
            Figure::Signal => "groups with signal",
            Figure::Kl => "KL",
            Figure::Entropy => "entropy",
            Figure::GradNorm => "gradient norm",
        }
    }
}

/// The figures of one step; absent where there was nothing to take a mean of.
pub type Figures = BTreeMap<Figure, f64>;

/// A run by steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// Each step that was taken: where, and its figures.
    pub steps: BTreeMap<StepRef, (Seq, Figures)>,
    /// The run and its branches: each with its first own event.
    pub branches: Vec<(RunId, Seq)>,
}

#[derive(Default)]
struct Mean {
    sum: f64,
    of: u64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.of += 1;
    }
}

impl Course {
    /// Reads a run.
    pub fn read(log: &FileLog) -> Result<Self> {
        let (mut course, mut open) = (Self::default(), BTreeMap::new());
        log.scan(Seq(1), |recorded, _| {
            course.see(recorded.seq, &recorded.event, &mut open);
            ControlFlow::Continue(())
        })?;
        Ok(course)
    }

    fn see(&mut self, seq: Seq, event: &Event, open: &mut BTreeMap<Figure, Mean>) {
        let mut add = |figure, value| open.entry(figure).or_default().add(value);
        match event {
            Event::RunStarted { run, .. } | Event::RunForked { run, .. } => {
                self.branches.push((*run, seq));
            }
            Event::ModuleValidated { validity, .. } => {
                add(Figure::Valid, f64::from(u8::from(*validity == Validity::Valid)));
            }
            Event::GroupScored { scores, .. } => {
                add(Figure::Signal, f64::from(u8::from(scores.has_signal())));
                scored(scores, &mut add);
            }
            Event::StepTaken { step, update, .. } => {
                if let Some(update) = update {
                    add(Figure::Kl, update.kl);
                    add(Figure::Entropy, update.entropy);
                    add(Figure::GradNorm, update.grad_norm);
                }
                let means = std::mem::take(open).into_iter();
                let figures = means.map(|(figure, mean)| (figure, mean.sum / mean.of as f64));
                self.steps.insert(*step, (seq, figures.collect()));
            }
            _ => {}
        }
    }

    /// Where two runs part: the first event that they do not share, `Some(Seq(1))` if they share nothing.
    /// `None` if they are one.
    pub fn parts_from(&self, other: &Self) -> Option<Seq> {
        let mut pairs = self.branches.iter().zip(&other.branches);
        let shared = pairs.by_ref().take_while(|(a, b)| a == b).count();
        let next = [self, other].map(|course| course.branches.get(shared).map(|(_, seq)| *seq));
        next.into_iter().flatten().min()
    }
}

fn scored(scores: &Scores, add: &mut impl FnMut(Figure, f64)) {
    let verdict = |verdict: &Verdict, add: &mut dyn FnMut(Figure, f64)| {
        if verdict.is_judged() {
            add(Figure::Right, f64::from(u8::from(verdict.is_correct())));
        }
        if let Verdict::Correct { speedup: Some(speedup) } = verdict {
            add(Figure::Speedup, *speedup);
        }
    };
    match scores {
        Scores::Modules(scores) => {
            for score in scores {
                score.verdicts.iter().for_each(|v| verdict(v, add));
                // Nobody is scored where no kernel was judged; an invalid module has no kernels.
                let rewarded =
                    score.verdicts.is_empty() || score.verdicts.iter().any(Verdict::is_judged);
                if rewarded {
                    add(Figure::Reward, score.reward);
                }
            }
        }
        Scores::Kernels(scores) => {
            for score in scores {
                verdict(&score.verdict, add);
                if score.verdict.is_judged() {
                    add(Figure::Reward, score.reward);
                }
            }
        }
    }
}

/// Two runs side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Comparison {
    /// The first event that they do not share; none if they are one.
    pub parts_at: Option<Seq>,
    /// Steps of both that lie before it: they are the same, so they are not compared.
    pub shared_steps: u64,
    /// Steps that only one of them took.
    pub alone: (u64, u64),
    /// The figures of each step that both took after they parted.
    pub steps: Vec<(StepRef, Figures, Figures)>,
    /// The mean of each figure in both, and of the differences: second minus first, paired by step.
    pub differences: BTreeMap<Figure, Difference>,
}

/// Compares two runs.
pub fn compare(a: &Course, b: &Course) -> Comparison {
    let parts_at = a.parts_from(b);
    let is_shared = |seq: Seq| parts_at.is_none_or(|at| seq < at);
    let (mut shared_steps, mut steps) = (0, Vec::new());
    let mut alone = (0, 0);
    for (step, (seq, figures)) in &a.steps {
        match b.steps.get(step) {
            Some((other, _)) if is_shared(*seq) && is_shared(*other) => shared_steps += 1,
            Some((_, others)) => steps.push((*step, figures.clone(), others.clone())),
            None => alone.0 += 1,
        }
    }
    alone.1 = b.steps.keys().filter(|step| !a.steps.contains_key(step)).count() as u64;
    let of = |figure: Figure| {
        let both =
            |(_, a, b): &(StepRef, Figures, Figures)| Some((*a.get(&figure)?, *b.get(&figure)?));
        Difference::of(&steps.iter().filter_map(both).collect::<Vec<_>>()).map(|d| (figure, d))
    };
    let differences = Figure::ALL.into_iter().filter_map(of).collect();
    Comparison { parts_at, shared_steps, alone, steps, differences }
}
