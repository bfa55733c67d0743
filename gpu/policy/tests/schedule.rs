//! The scheduler with a model that is a hash: whatever the memory, the batch and the order of events,
//! each sample says what it would say alone.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::VecDeque;

use policy::generate::backend::{Backend, Capacity, Row, Sequence};
use policy::generate::blocks::{BLOCK, needed};
use policy::generate::{Finish, Limits, Listener, Plan, Prompt, Sample, Stops, schedule};
use policy::sampling::Choice;
use policy::{Error, Result};
use proptest::prelude::*;

/// The draw after `tokens`: a hash of them, the seed and the index.
fn next(tokens: &[u32], seed: u64, index: usize) -> u32 {
    let mix = |state: u64, x: u64| {
        let z = (state ^ x).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (z ^ (z >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    };
    let state = tokens.iter().fold(mix(seed, index as u64), |s, &t| mix(s, u64::from(t)));
    (state >> 40) as u32 % 20
}

/// Remembers what was written into each place of its cache, and draws from what it reads there.
struct Fake {
    capacity: Capacity,
    /// Token and position, by block and place.
    cache: Vec<[Option<(u32, usize)>; BLOCK]>,
    last: Vec<Option<u32>>,
    launched: VecDeque<Vec<Choice>>,
    prefilled: usize,
    copies: usize,
    rows: usize,
}

impl Fake {
    fn new(blocks: usize, rows: usize, ahead: usize, prefill_tokens: usize) -> Self {
        Fake {
            capacity: Capacity { blocks, rows, ahead, prefill_tokens },
            cache: vec![[None; BLOCK]; blocks],
            last: vec![None; rows],
            launched: VecDeque::new(),
            prefilled: 0,
            copies: 0,
            rows: 0,
        }
    }
}

impl Backend for Fake {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn prefill(&mut self, sequences: &[Sequence]) -> Result<()> {
        let total: usize = sequences.iter().map(|s| s.tokens.len()).sum();
        assert!(sequences.len() == 1 || total <= self.capacity.prefill_tokens);
        for s in sequences {
            assert!(!s.tokens.is_empty() && s.table.len() == needed(s.tokens.len()));
            for (p, &token) in s.tokens.iter().enumerate() {
                self.cache[s.table[p / BLOCK] as usize][p % BLOCK] = Some((token, p));
            }
        }
        self.prefilled += total;
        Ok(())
    }

    fn copy(&mut self, from: u32, to: u32) -> Result<()> {
        assert_ne!(from, to);
        self.cache[to as usize] = self.cache[from as usize];
        self.copies += 1;
        Ok(())
    }

    fn launch(&mut self, rows: &[Row]) -> Result<()> {
        assert!(!rows.is_empty() && rows.len() <= self.capacity.rows);
        assert!(self.launched.len() <= self.capacity.ahead);
        self.rows = self.rows.max(rows.len());
        let mut slots: Vec<u32> = rows.iter().map(|r| r.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), rows.len(), "two rows share a slot");
        let mut choices = Vec::new();
        for r in rows {
            let token = r.token.or(self.last[r.slot as usize]).expect("a token");
            let block = r.table[r.position / BLOCK] as usize;
            self.cache[block][r.position % BLOCK] = Some((token, r.position));
        }
        // All writes come before all reads, so a place that two rows share would show.
        for r in rows {
            let seen: Vec<u32> = (0..=r.position)
                .map(|p| {
                    let (token, at) = self.cache[r.table[p / BLOCK] as usize][p % BLOCK].unwrap();
                    assert_eq!(at, p, "a block holds another position");
                    token
                })
                .collect();
            let token = next(&seen, r.seed, r.index);
            self.last[r.slot as usize] = Some(token);
            choices.push(Choice { token, logprob: -(r.index as f32), truncated: 0.0 });
        }
        self.launched.push_back(choices);
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<Choice>> {
        Ok(self.launched.pop_front().expect("a step"))
    }
}

#[derive(Default)]
struct Taker {
    samples: Vec<(usize, usize, Sample)>,
    cancel_after: Option<usize>,
}

impl Listener for Taker {
    fn finished(&mut self, prompt: usize, index: usize, sample: Sample) -> Result<()> {
        self.samples.push((prompt, index, sample));
        Ok(())
    }

    fn cancelled(&mut self) -> bool {
        self.cancel_after.is_some_and(|n| self.samples.len() >= n)
    }
}

const CONTEXT: usize = 120;
const STOP: [u32; 1] = [7];

fn alone(p: &Prompt, seed: u64, room: usize) -> Sample {
    let mut all = p.tokens.clone();
    let mut finish = Finish::Length;
    for index in 0..room {
        all.push(next(&all, seed, index));
        if all.last() == Some(&STOP[0]) {
            finish = Finish::Stop;
            break;
        }
    }
    let tokens = all[p.tokens.len()..].to_vec();
    let logprobs = (0..tokens.len()).map(|i| -(i as f32)).collect();
    Sample { truncated: vec![0.0; tokens.len()], tokens, logprobs, finish }
}

fn prompts() -> impl Strategy<Value = Vec<Prompt>> {
    let tokens = prop::collection::vec(0_u32..20, 1..70);
    let seeds = prop::collection::vec(any::<u64>(), 0..6);
    let one = (tokens, seeds).prop_map(|(tokens, seeds)| Prompt { tokens, seeds });
    prop::collection::vec(one, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_sample_says_what_it_would_say_alone(
        prompts in prompts(),
        max_new_tokens in 1_usize..60,
        max_batch in 1_usize..9,
        spare in 0_usize..12,
        ahead in 0_usize..2,
        prefill_tokens in 1_usize..100,
    ) {
        let plan = Plan::new(&prompts, Limits { max_new_tokens, max_batch }, CONTEXT);
        let mut backend = Fake::new(plan.longest + spare, max_batch, ahead, prefill_tokens);
        let stops = Stops { tokens: &STOP, ..Stops::default() };
        let mut taker = Taker::default();
        schedule(&mut backend, &stops, &prompts, &plan, &mut taker).unwrap();
        prop_assert!(backend.launched.is_empty(), "a step was left behind");
        taker.samples.sort_by_key(|s| (s.0, s.1));
        let mut found = taker.samples.into_iter();
        for (p, prompt) in prompts.iter().enumerate() {
            for (i, &seed) in prompt.seeds.iter().enumerate() {
                prop_assert_eq!(found.next(), Some((p, i, alone(prompt, seed, plan.room[p]))));
            }
        }
        prop_assert_eq!(found.next(), None);
    }
}

fn group(length: usize, samples: u64) -> Vec<Prompt> {
    vec![Prompt { tokens: (0..length as u32).collect(), seeds: (0..samples).collect() }]
}

#[test]
fn a_prompt_is_read_once_and_only_its_last_block_is_copied() {
    let prompts = group(41, 5);
    let plan = Plan::new(&prompts, Limits { max_new_tokens: 30, max_batch: 2 }, 200);
    let mut backend = Fake::new(plan.most, 2, 1, 1000);
    let mut taker = Taker::default();
    schedule(&mut backend, &Stops::default(), &prompts, &plan, &mut taker).unwrap();
    assert_eq!(taker.samples.len(), 5);
    // 40 tokens are two full blocks and a half; the last sample takes the prompt's own.
    assert_eq!((backend.prefilled, backend.copies, backend.rows), (40, 4, 2));
}

#[test]
fn a_sample_that_can_never_fit_is_refused_before_anything_is_done() {
    let prompts = group(100, 1);
    let plan = Plan::new(&prompts, Limits { max_new_tokens: 60, max_batch: 4 }, 200);
    let mut backend = Fake::new(plan.longest - 1, 4, 0, 1000);
    let mut taker = Taker::default();
    let error = schedule(&mut backend, &Stops::default(), &prompts, &plan, &mut taker).unwrap_err();
    assert!(matches!(error, Error::DoesNotFit { .. }), "{error}");
    assert_eq!(backend.prefilled, 0);
}

#[test]
fn finished_samples_come_at_once_and_cancelling_ends_the_rest() {
    let prompts = group(5, 20);
    let plan = Plan::new(&prompts, Limits { max_new_tokens: 30, max_batch: 4 }, 200);
    let mut backend = Fake::new(plan.most, 4, 1, 1000);
    let mut taker = Taker { cancel_after: Some(3), ..Taker::default() };
    let stops = Stops { tokens: &STOP, ..Stops::default() };
    let error = schedule(&mut backend, &stops, &prompts, &plan, &mut taker).unwrap_err();
    assert_eq!(error.kind(), "cancelled");
    assert!((3..8).contains(&taker.samples.len()), "{}", taker.samples.len());
}
