//! Sampling by all ranks: each has all weights, so each draws for its share of the prompts, and sends
//! rank 0 every sample as soon as it is finished.
//!
//! A report is a sample, or the end of a rank's share: an empty one, or the reason why it failed. Rank 0
//! may call once to have the others stop, and says that all is over when all have ended.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::generate::{self, Finish, Limits, Listener, Prompt, Sample, Stops};
use crate::model::Model;
use crate::ranks::Ranks;
use crate::sampling::Sampling;

/// How long rank 0 waits at a time for reports of others when its own share is done.
const WAIT: Duration = Duration::from_millis(20);
/// The first word of reports.
const SAMPLE: u32 = 0;
const END: u32 = 1;

/// What is to be drawn, the same on all ranks.
pub(crate) struct Spread<'a> {
    pub(crate) model: &'a Model,
    pub(crate) stops: &'a Stops<'a>,
    pub(crate) prompts: &'a [Prompt],
    pub(crate) sampling: Sampling,
    pub(crate) limits: Limits,
}

impl Spread<'_> {
    /// Draws the share of this rank; `listener` knows prompts by their places in the share.
    fn draw(&self, own: &[usize], listener: &mut dyn Listener) -> Result<()> {
        let prompts: Vec<Prompt> = own.iter().map(|&i| self.prompts[i].clone()).collect();
        if prompts.is_empty() && !self.prompts.is_empty() {
            return Ok(());
        }
        generate::stream(self.model, self.stops, &prompts, &self.sampling, self.limits, listener)
    }

    /// The prompts of a rank: every so manyeth, so that those that are alike are divided.
    fn share(&self, ranks: &Ranks) -> Vec<usize> {
        (ranks.rank()..self.prompts.len()).step_by(ranks.world()).collect()
    }

    /// Of rank 0: draws its share and hands `listener` the samples of all.
    ///
    /// # Errors
    /// As [`generate::stream`], also of another rank's share; a rank that is lost.
    pub(crate) fn hear(&self, ranks: &mut Ranks, listener: &mut dyn Listener) -> Result<()> {
        let own = self.share(ranks);
        let open = ranks.world() - 1;
        let mut hub = Hub { ranks, own: &own, listener, open, called: false, failed: None };
        let drawn = self.draw(&own, &mut hub);
        if let Some(lost) = hub.failed.take_if(|e| e.ends_ranks()) {
            return Err(lost);
        }
        if drawn.is_err() {
            hub.call()?;
        }
        hub.wait()?;
        hub.ranks.tell("over")?;
        // Where another failed, that is the reason why this one was stopped.
        match hub.failed.take() {
            Some(failed) => Err(failed),
            None => drawn,
        }
    }

    /// Of another rank: draws its share and lends it to rank 0.
    ///
    /// # Errors
    /// Rank 0 is lost. What fails here is rank 0's to say.
    pub(crate) fn lend(&self, ranks: &mut Ranks) -> Result<()> {
        let own = self.share(ranks);
        let drawn = self.draw(&own, &mut Spoke { ranks, own: &own });
        let text = match drawn {
            Ok(()) | Err(Error::Cancelled) => String::new(),
            Err(e) if e.ends_ranks() => return Err(e),
            Err(e) => e.to_string(),
        };
        ranks.report(&[&END.to_le_bytes(), text.as_bytes()].concat())?;
        loop {
            match ranks.hear()?.as_deref() {
                None | Some("over") => return Ok(()),
                // It came too late.
                Some("stop") => {}
                Some(_) => {
                    return ranks.or_end(Err(Error::Request("not a word of sampling".into())));
                }
            }
        }
    }
}

/// Rank 0 between its own drawing and the others.
struct Hub<'a> {
    ranks: &'a mut Ranks,
    own: &'a [usize],
    listener: &'a mut dyn Listener,
    /// Others that have not ended.
    open: usize,
    /// The others were told to stop.
    called: bool,
    failed: Option<Error>,
}

impl Hub<'_> {
    /// Takes one report, if there is one within `time`; whether there was one.
    ///
    /// # Errors
    /// A rank is lost; everything else stops the others and is said in the end.
    fn take(&mut self, time: Duration) -> Result<bool> {
        let Some((rank, report)) = self.ranks.next_report(time)? else { return Ok(false) };
        let words: Vec<u32> =
            report.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        match words.first() {
            Some(&SAMPLE) => {
                let sample = decode(&words).ok_or_else(|| nonsense(rank));
                let taken = sample.and_then(|(p, i, sample)| self.listener.finished(p, i, sample));
                taken.or_else(|e| self.fail(e))?;
            }
            _ => {
                self.open -= 1;
                let text = String::from_utf8_lossy(report.get(4..).unwrap_or_default());
                if !text.is_empty() {
                    self.fail(Error::Rank { rank, problem: text.into_owned() })?;
                }
            }
        }
        Ok(true)
    }

    /// Stops all because of `failed`, if nothing else has before.
    fn fail(&mut self, failed: Error) -> Result<()> {
        self.failed.get_or_insert(failed);
        self.call()
    }

    /// Tells the others to stop, once.
    fn call(&mut self) -> Result<()> {
        if !self.called {
            self.called = true;
            self.ranks.tell("stop")?;
        }
        Ok(())
    }

    /// Waits until all others have ended.
    fn wait(&mut self) -> Result<()> {
        let mut heard = Instant::now();
        while self.open > 0 {
            if self.take(WAIT)? {
                heard = Instant::now();
            }
            if self.listener.cancelled() {
                self.fail(Error::Cancelled)?;
            }
            self.ranks.overdue(heard)?;
        }
        Ok(())
    }
}

impl Listener for Hub<'_> {
    fn finished(&mut self, prompt: usize, index: usize, sample: Sample) -> Result<()> {
        self.listener.finished(self.own[prompt], index, sample)
    }

    fn cancelled(&mut self) -> bool {
        while self.open > 0 {
            match self.take(Duration::ZERO) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    self.failed = Some(e);
                    return true;
                }
            }
        }
        self.failed.is_some() || self.listener.cancelled()
    }
}

/// Another rank.
struct Spoke<'a> {
    ranks: &'a mut Ranks,
    own: &'a [usize],
}

impl Listener for Spoke<'_> {
    fn finished(&mut self, prompt: usize, index: usize, sample: Sample) -> Result<()> {
        self.ranks.report(&encode(self.own[prompt], index, &sample))
    }

    fn cancelled(&mut self) -> bool {
        self.ranks.called()
    }
}

fn nonsense(rank: usize) -> Error {
    Error::Rank { rank, problem: "sent a sample of no sense".into() }
}

/// A sample as little-endian words: kind, prompt, index, whether it stopped, tokens and both scores.
fn encode(prompt: usize, index: usize, s: &Sample) -> Vec<u8> {
    let stopped = u32::from(s.finish == Finish::Stop);
    let head = [SAMPLE, prompt as u32, index as u32, stopped];
    let scores = s.logprobs.iter().chain(&s.truncated).map(|x| x.to_bits());
    let words = head.into_iter().chain(s.tokens.iter().copied()).chain(scores);
    words.flat_map(u32::to_le_bytes).collect()
}

fn decode(words: &[u32]) -> Option<(usize, usize, Sample)> {
    let [_, prompt, index, stopped, rest @ ..] = words else { return None };
    let n = rest.len() / 3;
    let floats = |words: &[u32]| words.iter().map(|&w| f32::from_bits(w)).collect();
    let finish = if *stopped == 1 { Finish::Stop } else { Finish::Length };
    let sample = Sample {
        tokens: rest.get(..n)?.to_vec(),
        logprobs: floats(rest.get(n..2 * n)?),
        truncated: floats(rest.get(2 * n..3 * n)?),
        finish,
    };
    (rest.len() == 3 * n).then_some((*prompt as usize, *index as usize, sample))
}
