//! The engine as a child process: requests on stdin, replies on stdout, logs on stderr.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use serde_json::Value;
use tch::{Cuda, Device};

use crate::error::{Error, Result};
use crate::generate::{Limits, Listener, Prompt, Sample, Stops};
use crate::link::Link;
use crate::policy::Policy;
use crate::protocol::{Ask, Generate, Request};
use crate::ranks::Ranks;
use crate::reply::{Answer, Answers, Body, Failure, Outcome, Reply, Streamed, finish_word};
use crate::sampling::Sampling;
use crate::slot::Slot;
use crate::spread::Spread;
use crate::together::empty;

/// All models in memory, by slot; of each other rank, too, under the same names.
pub struct Server {
    pub(crate) slots: BTreeMap<String, Slot>,
    pub(crate) ranks: Ranks,
    /// The device that `load` must name, if it was said beforehand.
    pub(crate) device: Option<String>,
}

impl Default for Server {
    fn default() -> Self {
        Self::among(Ranks::alone(Device::Cpu), None)
    }
}

impl Server {
    /// One of several ranks, the first of which computes on `device`.
    pub fn among(ranks: Ranks, device: Option<String>) -> Self {
        Server { slots: BTreeMap::new(), ranks, device }
    }

    /// Serves until `input` ends, which is when the parent has gone.
    ///
    /// # Errors
    /// Those of the two streams. A failed request is answered; after one that ended the ranks there is
    /// nothing left to serve with.
    pub fn run(&mut self, input: impl BufRead + Send + 'static, output: impl Write) -> Result<()> {
        let io = |source| Error::Io { path: "stdin or stdout".into(), source };
        let mut link = Link::new(input, output);
        while let Some(line) = link.next().map_err(io)? {
            if line.trim().is_empty() {
                continue;
            }
            let (reply, end) = self.answer(&line, &mut link);
            link.send(&reply).map_err(io)?;
            if let Some(end) = end {
                return Err(end);
            }
        }
        Ok(())
    }

    fn answer(&mut self, line: &str, link: &mut Link<impl Write>) -> (Reply, Option<Error>) {
        link.id = None;
        let result = parse(line).and_then(|(id, request)| {
            link.id = id;
            let all = request.of_all();
            // A slot is out of the map while it trains, so a panic loses it and no other.
            let handled = catch_unwind(AssertUnwindSafe(|| self.handle(request, line, link)));
            handled.unwrap_or_else(|payload| {
                let panicked = Err(panicked(&*payload));
                if all { self.ranks.or_end(panicked) } else { panicked }
            })
        });
        let id = link.id.take();
        match result {
            Err(e) if e.ends_ranks() => {
                let error = Failure { kind: e.kind(), message: e.to_string() };
                (Reply { id, outcome: Outcome::Error { error } }, Some(e))
            }
            result => (Reply { id, outcome: Outcome::from(result) }, None),
        }
    }

    fn handle(
        &mut self,
        request: Request,
        line: &str,
        link: &mut Link<impl Write>,
    ) -> Result<Body> {
        if request.of_all() {
            self.ranks.tell(line)?;
        }
        match request {
            Request::Generate(g) => {
                let slot = self.slots.get_mut(&g.slot).ok_or_else(|| empty(&g.slot))?;
                if slot.policy.model.adapter.is_some() {
                    self.ranks.agree(slot.policy.model.merge())?;
                }
                answers(&mut self.ranks, &slot.policy, g, link)
            }
            Request::Info => self.info(),
            // What was under way when it came has ended by now.
            Request::Ping | Request::Cancel => Ok(Body::Done {}),
            request => self.together(request),
        }
    }

    fn info(&self) -> Result<Body> {
        let slots = self.slots.iter().map(|(n, s)| s.describe(n)).collect::<Result<_>>()?;
        let cuda_devices = if Cuda::is_available() { Cuda::device_count() } else { 0 };
        let version = env!("CARGO_PKG_VERSION");
        Ok(Body::Info { version, cuda_devices, threads: tch::get_num_threads(), slots })
    }
}

/// The `id` of a line, if it has one, and what it asks for.
pub(crate) fn parse(line: &str) -> Result<(Option<Value>, Request)> {
    let malformed = |e: serde_json::Error| Error::Request(format!("request: {e}"));
    let mut value: Value = serde_json::from_str(line).map_err(malformed)?;
    let id = value.as_object_mut().and_then(|o| o.remove("id"));
    Ok((id, serde_json::from_value(value).map_err(malformed)?))
}

fn panicked(payload: &(dyn Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    Error::Panic(text.unwrap_or_else(|| "no message".into()))
}

pub(crate) fn prompt(policy: &Policy, ask: Ask) -> Result<Prompt> {
    let tokens = match (ask.text, ask.tokens) {
        (Some(text), None) => policy.text.encode_chat(&text)?,
        (None, Some(tokens)) => tokens,
        _ => return Err(Error::Request("a prompt has either `text` or `tokens`".into())),
    };
    Ok(Prompt { tokens, seeds: ask.seeds })
}

/// Keeps the answers, or sends each as it is finished if that was asked for.
struct Collect<'a, W> {
    policy: &'a Policy,
    prompts: &'a [Prompt],
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
            let prompt_tokens = &self.prompts[prompt].tokens;
            let line = Streamed { id: &id, prompt, index, prompt_tokens, sample: &answer };
            return self.link.send(&line).map_err(Error::io("stdout".as_ref()));
        }
        self.answers[prompt][index] = Some(answer);
        Ok(())
    }

    fn cancelled(&mut self) -> bool {
        self.link.cancelled()
    }
}

fn answers(
    ranks: &mut Ranks,
    policy: &Policy,
    g: Generate,
    link: &mut Link<impl Write>,
) -> Result<Body> {
    let began = Instant::now();
    let prompts: Vec<Prompt> =
        g.prompts.into_iter().map(|ask| prompt(policy, ask)).collect::<Result<_>>()?;
    let sampling = Sampling { temperature: g.temperature, top_k: g.top_k, top_p: g.top_p };
    let limits = Limits { max_new_tokens: g.max_new_tokens, max_batch: g.max_batch };
    let text = Some(&policy.text);
    let stops = Stops { tokens: &policy.text.stop, strings: &g.stop, text };
    let answers = prompts.iter().map(|p| p.seeds.iter().map(|_| None).collect()).collect();
    let stream = g.stream;
    let mut collect = Collect { policy, prompts: &prompts, link, stream, answers, tokens: 0 };
    let job = Spread { model: &policy.model, stops: &stops, prompts: &prompts, sampling, limits };
    job.hear(ranks, &mut collect)?;
    let (answers, tokens) = (collect.answers, collect.tokens);
    let one = |(p, list): (Prompt, Vec<Option<Answer>>)| Answers {
        prompt_tokens: p.tokens,
        samples: list.into_iter().flatten().collect(),
    };
    let prompts = prompts.into_iter().zip(answers).map(one).collect();
    Ok(Body::Generated { prompts, tokens, seconds: began.elapsed().as_secs_f64() })
}
