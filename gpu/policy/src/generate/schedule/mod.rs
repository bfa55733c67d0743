//! Which samples are in flight, in which blocks, and what the next step reads.
//!
//! Samples are admitted in order while rows and blocks last. When blocks run out in the middle,
//! prompts that only wait are given up first, then the youngest sample is preempted: its blocks are
//! freed and it is read again, with what it has said, when there is room. The oldest is never
//! preempted and fits alone, so there is always progress. Everything here is a function of the
//! draws, so it can be tested without a model.

mod admit;

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::generate::backend::{Backend, Row};
use crate::generate::blocks::{BLOCK, Blocks};
use crate::generate::{Finish, Plan, Prompt, Sample, Stops};
use crate::sampling::Choice;

/// Who takes the samples.
pub trait Listener {
    /// Sample `index` of `prompt` is finished.
    ///
    /// # Errors
    /// Ends everything with that error.
    fn finished(&mut self, prompt: usize, index: usize, sample: Sample) -> Result<()>;

    /// Asked before every step; `true` ends everything with [`Error::Cancelled`].
    fn cancelled(&mut self) -> bool {
        false
    }
}

/// A prompt whose samples are not all admitted. Its blocks hold all its tokens but the last.
#[derive(Default)]
struct Group {
    blocks: Vec<u32>,
    cached: bool,
    /// Samples not yet admitted for the first time.
    waiting: usize,
}

/// A sample that is not finished.
struct Writing {
    prompt: usize,
    index: usize,
    seed: u64,
    sample: Sample,
    /// In flight: its slot and blocks, and draws launched, those collected included.
    place: Option<Place>,
}

struct Place {
    slot: u32,
    table: Vec<u32>,
    launched: usize,
    /// The first step reads a token that the host names.
    fresh: bool,
}

impl Writing {
    /// The position that it reads next.
    fn position(&self, place: &Place, prompts: &[Prompt]) -> usize {
        prompts[self.prompt].tokens.len() - 1 + place.launched
    }

    /// Its row of the next step, if it is in flight.
    fn row(&self, prompts: &[Prompt]) -> Option<Row<'_>> {
        let place = self.place.as_ref()?;
        let last = self.sample.tokens.last().or(prompts[self.prompt].tokens.last());
        Some(Row {
            slot: place.slot,
            token: last.copied().filter(|_| place.fresh),
            position: self.position(place, prompts),
            table: &place.table,
            seed: self.seed,
            index: place.launched,
        })
    }
}

struct Scheduler<'a> {
    backend: &'a mut dyn Backend,
    stops: &'a Stops<'a>,
    prompts: &'a [Prompt],
    plan: &'a Plan,
    blocks: Blocks,
    slots: Vec<u32>,
    groups: Vec<Group>,
    /// By number, the order of admission; `None` is finished.
    samples: Vec<Option<Writing>>,
    /// Not in flight, the next one first.
    waiting: VecDeque<usize>,
    /// In flight, the oldest first.
    running: Vec<usize>,
    /// The rows of each step not collected.
    launched: VecDeque<Vec<usize>>,
}

/// Writes all samples of `prompts`.
///
/// # Errors
/// A sample too long for the backend's memory, before anything is computed; the backend's, the
/// listener's; [`Error::Cancelled`].
pub fn schedule(
    backend: &mut dyn Backend,
    stops: &Stops,
    prompts: &[Prompt],
    plan: &Plan,
    listener: &mut dyn Listener,
) -> Result<()> {
    let capacity = backend.capacity();
    if plan.longest > capacity.blocks {
        return Err(Error::DoesNotFit {
            tokens: plan.longest * BLOCK,
            room: capacity.blocks * BLOCK,
        });
    }
    let empty = || Sample {
        tokens: Vec::new(),
        logprobs: Vec::new(),
        truncated: Vec::new(),
        finish: Finish::Length,
    };
    let mut samples = Vec::new();
    for (prompt, p) in prompts.iter().enumerate() {
        for (index, &seed) in p.seeds.iter().enumerate() {
            samples.push(Some(Writing { prompt, index, seed, sample: empty(), place: None }));
        }
    }
    let group = |p: &Prompt| Group { waiting: p.seeds.len(), ..Group::default() };
    let mut scheduler = Scheduler {
        stops,
        prompts,
        plan,
        blocks: Blocks::new(capacity.blocks),
        slots: (0..capacity.rows.min(plan.max_batch) as u32).rev().collect(),
        groups: prompts.iter().map(group).collect(),
        waiting: (0..samples.len()).collect(),
        samples,
        running: Vec::new(),
        launched: VecDeque::new(),
        backend,
    };
    scheduler.run(capacity.ahead, capacity.prefill_tokens, listener)
}

impl Scheduler<'_> {
    fn run(
        &mut self,
        ahead: usize,
        prefill_tokens: usize,
        listener: &mut dyn Listener,
    ) -> Result<()> {
        while !(self.waiting.is_empty() && self.running.is_empty()) {
            if listener.cancelled() {
                return Err(Error::Cancelled);
            }
            self.admit(prefill_tokens)?;
            if self.running.is_empty() {
                return Err(Error::Panic("nothing can be admitted".into()));
            }
            let launched = self.launch(listener)?;
            let keep = if launched { ahead } else { 0 };
            while self.launched.len() > keep {
                self.collect(listener)?;
            }
        }
        // What is still under way is of samples that have ended.
        while !self.launched.is_empty() {
            self.collect(listener)?;
        }
        Ok(())
    }

    fn sample(&mut self, id: usize) -> Result<&mut Writing> {
        let lost = || Error::Panic(format!("sample {id} is in flight and finished"));
        self.samples[id].as_mut().ok_or_else(lost)
    }

    /// Starts a step of all samples that may still draw; `false` if there is none.
    fn launch(&mut self, listener: &mut dyn Listener) -> Result<bool> {
        let mut at = 0;
        while at < self.running.len() {
            let id = self.running[at];
            if self.wants_block(id) && !self.give_block(id, listener)? {
                // Somebody was preempted or has finished, perhaps this one or one before it.
                at = 0;
                continue;
            }
            at += 1;
        }
        let ids: Vec<usize> = self.running.iter().copied().filter(|&i| self.may_draw(i)).collect();
        if ids.is_empty() {
            return Ok(false);
        }
        let row = |&id: &usize| self.samples[id].as_ref()?.row(self.prompts);
        let rows: Vec<Row> = ids.iter().filter_map(row).collect();
        self.backend.launch(&rows)?;
        for &id in &ids {
            if let Some(place) = self.sample(id)?.place.as_mut() {
                place.launched += 1;
                place.fresh = false;
            }
        }
        self.launched.push_back(ids);
        Ok(true)
    }

    fn may_draw(&self, id: usize) -> bool {
        let of = |w: &Writing| Some(w.place.as_ref()?.launched < self.plan.room[w.prompt]);
        self.samples[id].as_ref().and_then(of).unwrap_or(false)
    }

    fn wants_block(&self, id: usize) -> bool {
        let of = |w: &Writing| {
            let place = w.place.as_ref()?;
            Some(w.position(place, self.prompts) / BLOCK >= place.table.len())
        };
        self.may_draw(id) && self.samples[id].as_ref().and_then(of).unwrap_or(false)
    }

    /// A block for a sample; `false` if others had to go first.
    fn give_block(&mut self, id: usize, listener: &mut dyn Listener) -> Result<bool> {
        if let Some(block) = self.blocks.take() {
            if let Some(place) = self.sample(id)?.place.as_mut() {
                place.table.push(block);
            }
            return Ok(true);
        }
        if !self.launched.is_empty() {
            // A sample may have finished; and who is preempted must have nothing under way.
            while !self.launched.is_empty() {
                self.collect(listener)?;
            }
        } else if !self.give_up_prompt(None) {
            let youngest = self.running.pop();
            let youngest = youngest.ok_or_else(|| Error::Panic("no sample to preempt".into()))?;
            self.leave(youngest)?;
            self.waiting.push_front(youngest);
            let w = self.sample(youngest)?;
            if w.sample.tokens.is_empty() {
                let prompt = w.prompt;
                self.groups[prompt].waiting += 1;
            }
        }
        Ok(false)
    }

    /// Frees what a sample holds.
    fn leave(&mut self, id: usize) -> Result<()> {
        if let Some(place) = self.sample(id)?.place.take() {
            self.blocks.release(place.table);
            self.slots.push(place.slot);
        }
        Ok(())
    }

    /// Takes the draws of the oldest step.
    fn collect(&mut self, listener: &mut dyn Listener) -> Result<()> {
        let Some(ids) = self.launched.pop_front() else { return Ok(()) };
        for (id, choice) in ids.into_iter().zip(self.backend.collect()?) {
            // A sample that has ended was drawn once more before the host knew.
            if self.samples[id].is_some() {
                self.take(id, &choice, listener)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, id: usize, choice: &Choice, listener: &mut dyn Listener) -> Result<()> {
        let (stops, plan) = (self.stops, self.plan);
        let w = self.sample(id)?;
        w.sample.tokens.push(choice.token);
        w.sample.logprobs.push(choice.logprob);
        w.sample.truncated.push(choice.truncated);
        if stops.hit(&w.sample.tokens)? {
            w.sample.finish = Finish::Stop;
        } else if w.sample.tokens.len() < plan.room[w.prompt] {
            return Ok(());
        }
        self.leave(id)?;
        self.running.retain(|&r| r != id);
        match self.samples[id].take() {
            Some(w) => listener.finished(w.prompt, w.index, w.sample),
            None => Ok(()),
        }
    }
}
