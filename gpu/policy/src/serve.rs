//! The engine as a child process: requests on stdin, replies on stdout, logs on stderr.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use serde_json::Value;
use tch::{Cuda, Kind};

use crate::checkpoint;
use crate::error::{Error, Result};
use crate::footprint;
use crate::generate::{self, Limits, Listener, Prompt, Sample, Stops};
use crate::grpo;
use crate::link::Link;
use crate::optim::Update;
use crate::policy::{self, Policy};
use crate::protocol::{Ask, Generate, Grpo, Request};
use crate::reply::{Answer, Answers, Body, Outcome, Reply, Streamed, finish_word};
use crate::sampling::Sampling;
use crate::slot::Slot;

/// All models in memory, by slot.
#[derive(Default)]
pub struct Server {
    slots: BTreeMap<String, Slot>,
}

impl Server {
    /// Serves until `input` ends, which is when the parent has gone.
    ///
    /// # Errors
    /// Only those of the two streams; a failed request is answered.
    pub fn run(
        &mut self,
        input: impl BufRead + Send + 'static,
        output: impl Write,
    ) -> std::io::Result<()> {
        let mut link = Link::new(input, output);
        while let Some(line) = link.next()? {
            if line.trim().is_empty() {
                continue;
            }
            let reply = self.answer(&line, &mut link);
            link.send(&reply)?;
        }
        Ok(())
    }

    fn answer(&mut self, line: &str, link: &mut Link<impl Write>) -> Reply {
        let malformed = |e: serde_json::Error| Error::Request(format!("request: {e}"));
        link.id = None;
        let result = serde_json::from_str(line).map_err(malformed).and_then(|mut value: Value| {
            link.id = value.as_object_mut().and_then(|o| o.remove("id"));
            let request = serde_json::from_value(value).map_err(malformed)?;
            // A slot is out of the map while it trains, so a panic loses it and no other.
            let handled = catch_unwind(AssertUnwindSafe(|| self.handle(request, link)));
            handled.unwrap_or_else(|payload| Err(panicked(&*payload)))
        });
        Reply { id: link.id.take(), outcome: Outcome::from(result) }
    }

    fn handle(&mut self, request: Request, link: &mut Link<impl Write>) -> Result<Body> {
        match request {
            Request::Load(load) => {
                let loaded = Slot::load(&load)?;
                let info = loaded.describe(&load.slot)?;
                self.slots.insert(load.slot, loaded);
                Ok(Body::Loaded(info))
            }
            Request::Unload { slot } => {
                let gone = self.slots.remove(&slot);
                gone.map(|_| Body::Done {}).ok_or(empty(&slot))
            }
            Request::Generate(g) => {
                let slot = self.slots.get_mut(&g.slot).ok_or_else(|| empty(&g.slot))?;
                if slot.policy.model.adapter.is_some() {
                    slot.policy.model.merge()?;
                }
                answers(&slot.policy, g, link)
            }
            Request::Grpo(g) => self.train(g),
            Request::Save { slot, dir, dtype, optimizer } => {
                let found = self.slots.get(&slot).ok_or_else(|| empty(&slot))?;
                let kind = policy::kind(&dtype)?;
                if kind == Kind::Half {
                    return Err(Error::Request("save as f32 or bf16".into()));
                }
                if optimizer && found.optim.is_none() {
                    return Err(frozen(&slot));
                }
                let optim = found.optim.as_ref().filter(|_| optimizer);
                checkpoint::save(&found.policy, optim, &dir, kind)?;
                Ok(Body::Done {})
            }
            Request::Info => self.info(),
            // What was under way when it came has ended by now.
            Request::Ping | Request::Cancel => Ok(Body::Done {}),
        }
    }

    fn info(&self) -> Result<Body> {
        let slots = self.slots.iter().map(|(n, s)| s.describe(n)).collect::<Result<_>>()?;
        let cuda_devices = if Cuda::is_available() { Cuda::device_count() } else { 0 };
        let version = env!("CARGO_PKG_VERSION");
        Ok(Body::Info { version, cuda_devices, threads: tch::get_num_threads(), slots })
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

    fn train_slot(&self, slot: &mut Slot, g: &Grpo) -> Result<Body> {
        slot.policy.model.unmerge()?;
        let memory = self.spare(slot, g.micro_tokens)?;
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
        grpo::step(&mut slot.policy.model, optim, reference, &g.samples, &options)
            .map(Body::Trained)
    }
}

fn panicked(payload: &(dyn Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    Error::Panic(text.unwrap_or_else(|| "no message".into()))
}

fn empty(slot: &str) -> Error {
    Error::Slot { slot: slot.into(), problem: "holds no model: load one first" }
}

fn frozen(slot: &str) -> Error {
    Error::Slot { slot: slot.into(), problem: "was not loaded with `trainable`" }
}

fn prompt(policy: &Policy, ask: Ask) -> Result<Prompt> {
    let tokens = match (ask.text, ask.tokens) {
        (Some(text), None) => policy.text.encode_chat(&text)?,
        (None, Some(tokens)) => tokens,
        _ => return Err(Error::Request("a prompt has either `text` or `tokens`".into())),
    };
    Ok(Prompt { tokens, seeds: ask.seeds })
}

/// Keeps the answers, and sends each as it is finished if that was asked for.
struct Collect<'a, W> {
    policy: &'a Policy,
    link: &'a mut Link<W>,
    stream: bool,
    answers: Vec<Vec<Option<Answer>>>,
    tokens: usize,
}

impl<W: Write> Listener for Collect<'_, W> {
    fn finished(&mut self, prompt: usize, index: usize, s: Sample) -> Result<()> {
        self.tokens += s.tokens.len();
        let answer = Answer {
            text: self.policy.text.decode(&s.tokens)?,
            tokens: s.tokens,
            logprobs: s.logprobs,
            truncated_logprobs: s.truncated,
            finish: finish_word(s.finish),
        };
        if self.stream {
            let id = self.link.id.clone();
            let line = Streamed { id: &id, prompt, index, sample: &answer };
            self.link.send(&line).map_err(Error::io("stdout".as_ref()))?;
        }
        self.answers[prompt][index] = Some(answer);
        Ok(())
    }

    fn cancelled(&mut self) -> bool {
        self.link.cancelled()
    }
}

fn answers(policy: &Policy, g: Generate, link: &mut Link<impl Write>) -> Result<Body> {
    let began = Instant::now();
    let prompts: Vec<Prompt> =
        g.prompts.into_iter().map(|ask| prompt(policy, ask)).collect::<Result<_>>()?;
    let sampling = Sampling { temperature: g.temperature, top_k: g.top_k, top_p: g.top_p };
    let limits = Limits { max_new_tokens: g.max_new_tokens, max_batch: g.max_batch };
    let text = Some(&policy.text);
    let stops = Stops { tokens: &policy.text.stop, strings: &g.stop, text };
    let answers = prompts.iter().map(|p| p.seeds.iter().map(|_| None).collect()).collect();
    let mut collect = Collect { policy, link, stream: g.stream, answers, tokens: 0 };
    generate::stream(&policy.model, &stops, &prompts, &sampling, limits, &mut collect)?;
    let (answers, tokens) = (collect.answers, collect.tokens);
    let one = |(p, list): (Prompt, Vec<Option<Answer>>)| Answers {
        prompt_tokens: p.tokens,
        samples: list.into_iter().flatten().collect(),
    };
    let prompts = prompts.into_iter().zip(answers).map(one).collect();
    Ok(Body::Generated { prompts, tokens, seconds: began.elapsed().as_secs_f64() })
}
