//! Sampling: the cache changes nothing, and neither do the neighbours.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use policy::generate::{Finish, Limits, Prompt, Sample, generate};
use policy::model::Model;
use policy::sampling::Sampling;
use tch::Tensor;

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 };
const WARM: Sampling = Sampling { temperature: 0.8, top_k: 20, top_p: 0.95 };

fn prompt(tokens: &[u32], seeds: &[u64]) -> Prompt {
    Prompt { tokens: tokens.to_vec(), seeds: seeds.to_vec() }
}

fn sample(model: &Model, prompts: &[Prompt], s: &Sampling, max_batch: usize) -> Vec<Vec<Sample>> {
    let limits = Limits { max_new_tokens: 40, max_batch };
    generate(model, &[3], prompts, s, limits).unwrap()
}

/// Greedy decoding that reads the whole sequence again for every token.
fn without_cache(model: &Model, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens: Vec<i64> = prompt.iter().map(|&t| i64::from(t)).collect();
    for _ in 0..count {
        let ids = Tensor::from_slice(&tokens).view([1, -1]);
        let hidden = tch::no_grad(|| model.hidden(&ids).unwrap());
        let last = hidden.select(1, tokens.len() as i64 - 1);
        let next = model.logits(&last).unwrap().argmax(1, false).int64_value(&[0]);
        tokens.push(next);
    }
    tokens[prompt.len()..].iter().map(|&t| t as u32).collect()
}

#[test]
fn greedy_with_cache_is_greedy_without() {
    let model = common::tiny_model(1);
    let prompts =
        [prompt(&[5, 9, 11], &[0]), prompt(&[7], &[0]), prompt(&[8, 2, 4, 6, 1, 90, 33], &[0])];
    for (p, samples) in prompts.iter().zip(sample(&model, &prompts, &GREEDY, 8)) {
        let found = &samples[0];
        assert_eq!(found.tokens, without_cache(&model, &p.tokens, found.tokens.len()));
        let stopped = found.tokens.last() == Some(&3);
        assert_eq!(found.finish == Finish::Stop, stopped);
        assert!(stopped || found.tokens.len() == 40);
    }
}

#[test]
fn a_seed_says_the_same_among_any_neighbours() {
    let model = common::tiny_model(2);
    let alone = sample(&model, &[prompt(&[5, 9], &[77])], &WARM, 1);
    let crowd = [
        prompt(&[5, 9], &[1, 77, u64::MAX]),
        prompt(&[6, 1, 1, 1, 1, 1, 1, 1], &[77, 5]),
        prompt(&[4], &[9, 9]),
    ];
    for max_batch in [2, 64] {
        let together = sample(&model, &crowd, &WARM, max_batch);
        assert_eq!(together[0][1].tokens, alone[0][0].tokens);
        assert_eq!(together[2][0].tokens, together[2][1].tokens);
        for (a, b) in together[0][1].logprobs.iter().zip(&alone[0][0].logprobs) {
            assert!((a - b).abs() < 1e-4);
        }
    }
}

#[test]
fn logprobs_are_those_of_the_softmax_at_the_temperature() {
    let model = common::tiny_model(3);
    let all = sample(&model, &[prompt(&[5, 9], &[1, 2, 3])], &WARM, 8);
    for s in &all[0] {
        let tokens: Vec<i64> = [5, 9].iter().chain(&s.tokens).map(|&t| i64::from(t)).collect();
        let hidden = tch::no_grad(|| model.hidden(&Tensor::from_slice(&tokens).view([1, -1])));
        let logits = model.logits(&hidden.unwrap().squeeze_dim(0)).unwrap() / 0.8;
        let scores = logits.log_softmax(-1, tch::Kind::Float);
        for (i, &token) in s.tokens.iter().enumerate() {
            let wanted = scores.double_value(&[i as i64 + 1, i64::from(token)]);
            assert!((f64::from(s.logprobs[i]) - wanted).abs() < 1e-4);
            assert!(s.truncated[i] >= s.logprobs[i] && s.truncated[i] <= 0.0);
        }
    }
}

#[test]
fn the_context_ends_an_answer() {
    let model = common::tiny_model(4);
    let tokens: Vec<u32> = (10..70).collect();
    let all = sample(&model, &[prompt(&tokens, &[1, 2])], &WARM, 8);
    assert!(all[0].iter().all(|s| s.tokens.len() <= 4));
    let limits = Limits { max_new_tokens: 1, max_batch: 1 };
    let error = generate(&model, &[3], &[prompt(&[5; 64], &[1])], &WARM, limits).unwrap_err();
    assert_eq!(error.kind(), "prompt_too_long");
}
