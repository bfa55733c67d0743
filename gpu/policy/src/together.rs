//! The requests that all ranks of an engine do together: each holds the models, and of what trains its
//! part of the masters and moments.

use std::path::Path;

use tch::Kind;

use crate::checkpoint;
use crate::error::{Error, Result};
use crate::footprint;
use crate::generate::{Limits, Stops};
use crate::grpo;
use crate::optim::Update;
use crate::policy;
use crate::protocol::{Generate, Grpo, Load, Request};
use crate::reply::Body;
use crate::sampling::Sampling;
use crate::serve::{Server, parse, prompt};
use crate::slot::Slot;
use crate::spread::Spread;

impl Server {
    /// What a rank other than 0 does: what it is told, until rank 0 ends. Its answers nobody reads.
    ///
    /// # Errors
    /// One that ends the ranks.
    pub fn follow(&mut self) -> Result<()> {
        while let Some(line) = self.ranks.hear()? {
            // Rank 0 has read the same line and found it to be a request of all.
            let (_, request) = parse(&line)?;
            match self.together(request) {
                Err(e) if e.ends_ranks() => return Err(e),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Does this rank's part of `request`. An error that does not end the ranks is one on all of them.
    pub(crate) fn together(&mut self, request: Request) -> Result<Body> {
        match request {
            Request::Load(load) => self.load(load),
            Request::Unload { slot } => {
                let gone = self.slots.remove(&slot);
                gone.map(|_| Body::Done {}).ok_or(empty(&slot))
            }
            Request::Generate(g) => self.lend_samples(g),
            Request::Grpo(g) => self.train(g),
            Request::Save { slot, dir, dtype, optimizer, shard_bytes } => {
                self.save(&slot, &dir, &dtype, optimizer, shard_bytes)
            }
            other => Err(Error::Request(format!("not for all ranks: {other:?}"))),
        }
    }

    fn load(&mut self, load: Load) -> Result<Body> {
        if let Some(first) = self.device.as_ref().filter(|first| **first != load.device) {
            let text = format!("device `{}`: the first of --ranks is {first}", load.device);
            return Err(Error::Request(text));
        }
        let loaded = Slot::load(&load, &self.ranks);
        let loaded = self.ranks.agree(loaded)?;
        let info = loaded.describe(&load.slot)?;
        self.slots.insert(load.slot, loaded);
        Ok(Body::Loaded(info))
    }

    /// Of a rank other than 0: draws its share of the samples.
    fn lend_samples(&mut self, g: Generate) -> Result<Body> {
        let slot = self.slots.get_mut(&g.slot).ok_or_else(|| empty(&g.slot))?;
        if slot.policy.model.adapter.is_some() {
            self.ranks.agree(slot.policy.model.merge())?;
        }
        let policy = &slot.policy;
        let prompts = g.prompts.into_iter().map(|ask| prompt(policy, ask));
        let prompts = prompts.collect::<Result<Vec<_>>>()?;
        let sampling = Sampling { temperature: g.temperature, top_k: g.top_k, top_p: g.top_p };
        let limits = Limits { max_new_tokens: g.max_new_tokens, max_batch: g.max_batch };
        let text = Some(&policy.text);
        let stops = Stops { tokens: &policy.text.stop, strings: &g.stop, text };
        let job =
            Spread { model: &policy.model, stops: &stops, prompts: &prompts, sampling, limits };
        job.lend(&mut self.ranks)?;
        Ok(Body::Done {})
    }

    fn save(
        &mut self,
        slot: &str,
        dir: &Path,
        dtype: &str,
        optimizer: bool,
        shard: u64,
    ) -> Result<Body> {
        let found = self.slots.get(slot).ok_or_else(|| empty(slot))?;
        let kind = policy::kind(dtype)?;
        if kind == Kind::Half {
            return Err(Error::Request("save as f32 or bf16".into()));
        }
        if optimizer && found.optim.is_none() {
            return Err(frozen(slot));
        }
        let optim = found.optim.as_ref().filter(|_| optimizer);
        checkpoint::save_among(&found.policy, optim, dir, kind, shard, &mut self.ranks)?;
        Ok(Body::Done {})
    }

    fn train(&mut self, g: Grpo) -> Result<Body> {
        // Out of the map while it changes, so that the reference can be borrowed from it.
        let mut slot = self.slots.remove(&g.slot).ok_or_else(|| empty(&g.slot))?;
        let result = self.train_slot(&mut slot, &g);
        self.slots.insert(g.slot, slot);
        result
    }

    /// Bytes that a pack of `tokens` may keep, beside everything that slots hold on its device.
    fn spare(&self, slot: &Slot, tokens: usize) -> Result<u64> {
        let here = slot.policy.model.device;
        let others = self.slots.values().filter(|s| s.policy.model.params.flat.device() == here);
        let resident = others.map(Slot::bytes).sum::<u64>() + slot.bytes();
        footprint::spare(&slot.policy.model, tokens, resident)
    }

    fn train_slot(&mut self, slot: &mut Slot, g: &Grpo) -> Result<Body> {
        let ready = slot.policy.model.unmerge();
        let memory = ready.and_then(|()| self.spare(slot, g.micro_tokens));
        let memory = self.ranks.agree(memory)?;
        let optim = slot.optim.as_mut().ok_or_else(|| frozen(&g.slot))?;
        let reference = match &g.reference_slot {
            Some(name) => Some(&self.slots.get(name).ok_or_else(|| empty(name))?.policy.model),
            None => None,
        };
        let update = Update { lr: g.lr, weight_decay: g.weight_decay, grad_clip: g.grad_clip };
        let options = grpo::Options {
            update,
            objective: g.objective,
            temperature: g.temperature,
            micro_tokens: g.micro_tokens,
            old: g.old_logprobs,
            memory,
        };
        let (model, ranks) = (&mut slot.policy.model, &mut self.ranks);
        grpo::step_among(model, optim, reference, &g.samples, &options, ranks).map(Body::Trained)
    }
}

pub(crate) fn empty(slot: &str) -> Error {
    Error::Slot { slot: slot.into(), problem: "holds no model: load one first" }
}

fn frozen(slot: &str) -> Error {
    Error::Slot { slot: slot.into(), problem: "was not loaded with `trainable`" }
}
