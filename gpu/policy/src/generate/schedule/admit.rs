//! Which waiting samples come into flight, and where.

use super::{Place, Scheduler};
use crate::error::{Error, Result};
use crate::generate::backend::Sequence;
use crate::generate::blocks::{BLOCK, needed};

impl Scheduler<'_> {
    /// Brings waiting samples into flight while rows and blocks last.
    pub(super) fn admit(&mut self, prefill_tokens: usize) -> Result<()> {
        let (mut reads, mut copies, mut tokens) = (Vec::new(), Vec::new(), 0);
        while let Some(&id) = self.waiting.front() {
            let cost = self.cost(id);
            if self.slots.is_empty() || (tokens > 0 && tokens + cost.tokens > prefill_tokens) {
                break;
            }
            // Every sample in flight may want a block soon.
            if self.blocks.free() < cost.blocks + self.running.len() {
                // A sample that goes on has no use for its prompt's blocks.
                let own = self.samples[id].as_ref().filter(|w| w.sample.tokens.is_empty());
                let own = own.map(|w| w.prompt);
                if !self.running.is_empty() || !self.give_up_prompt(own) {
                    break;
                }
                continue;
            }
            let place = self.place(id, &mut reads, &mut copies)?;
            tokens += cost.tokens;
            self.waiting.pop_front();
            self.running.push(id);
            self.sample(id)?.place = Some(place);
        }
        if !reads.is_empty() {
            self.backend.prefill(&reads)?;
        }
        copies.into_iter().try_for_each(|(from, to)| self.backend.copy(from, to))
    }

    fn cost(&self, id: usize) -> Cost {
        let Some(w) = &self.samples[id] else { return Cost { tokens: 0, blocks: 0 } };
        let read = self.prompts[w.prompt].tokens.len() - 1;
        if !w.sample.tokens.is_empty() {
            let read = read + w.sample.tokens.len();
            return Cost { tokens: read, blocks: needed(read) + 1 };
        }
        let read = if self.groups[w.prompt].cached { 0 } else { read };
        Cost { tokens: read, blocks: needed(read) + 1 }
    }

    /// Blocks and a slot for a sample; what must be read and copied first.
    fn place(
        &mut self,
        id: usize,
        reads: &mut Vec<Sequence>,
        copies: &mut Vec<(u32, u32)>,
    ) -> Result<Place> {
        let lost = || Error::Panic(format!("no block, slot or sample for sample {id}"));
        let w = self.samples[id].as_ref().ok_or_else(lost)?;
        let prompt = &self.prompts[w.prompt].tokens;
        let group = &mut self.groups[w.prompt];
        let mut table = Vec::new();
        if !w.sample.tokens.is_empty() {
            // Preempted: all that was read is read again, into blocks of its own.
            let mut tokens = prompt.clone();
            tokens.extend(&w.sample.tokens);
            tokens.pop();
            for _ in 0..needed(tokens.len()) {
                table.push(self.blocks.take().ok_or_else(lost)?);
            }
            reads.push(Sequence { tokens, table: table.clone() });
        } else {
            let tokens = &prompt[..prompt.len() - 1];
            if !group.cached {
                for _ in 0..needed(tokens.len()) {
                    group.blocks.push(self.blocks.take().ok_or_else(lost)?);
                }
                group.cached = true;
                if !tokens.is_empty() {
                    let (tokens, table) = (tokens.to_vec(), group.blocks.clone());
                    reads.push(Sequence { tokens, table });
                }
            }
            group.waiting -= 1;
            if group.waiting == 0 {
                // The last one takes the blocks over.
                table = std::mem::take(&mut group.blocks);
                group.cached = false;
            } else {
                let full = tokens.len() / BLOCK;
                table.extend(&group.blocks[..full]);
                self.blocks.share(&table);
                if let Some(&partial) = group.blocks.get(full) {
                    let own = self.blocks.take().ok_or_else(lost)?;
                    copies.push((partial, own));
                    table.push(own);
                }
            }
        }
        let launched = w.sample.tokens.len();
        let slot = self.slots.pop().ok_or_else(lost)?;
        Ok(Place { slot, table, launched, fresh: true })
    }

    /// Frees the blocks that are held for samples yet to come of one prompt other than `but`.
    pub(super) fn give_up_prompt(&mut self, but: Option<usize>) -> bool {
        let held = |(p, g): &(usize, &mut super::Group)| {
            g.cached && !g.blocks.is_empty() && Some(*p) != but
        };
        match self.groups.iter_mut().enumerate().rev().find(held) {
            None => false,
            Some((_, group)) => {
                group.cached = false;
                self.blocks.release(std::mem::take(&mut group.blocks));
                true
            }
        }
    }
}

/// What admitting a sample takes.
struct Cost {
    /// To read.
    tokens: usize,
    /// To have free.
    blocks: usize,
}
