//! One answer of a model in full, as it is stored in a blob.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// How a sample was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits.
    pub temperature: f64,
    /// Only the smallest set of tokens with at least this probability is drawn from.
    pub top_p: f64,
    /// Only this many most probable tokens are drawn from; 0 is no limit.
    pub top_k: u32,
}

/// An answer: what was asked, what was drawn, how probable each token was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The user message.
    pub prompt: String,
    /// The prompt after the chat template, as token ids.
    pub prompt_tokens: Vec<u32>,
    /// The answer's text, without the end token.
    pub text: String,
    /// The answer's token ids, the end token included.
    pub tokens: Vec<u32>,
    /// Log-probability of each token under the full softmax at `sampling.temperature`.
    pub logprobs: Vec<f32>,
    /// The same after top-k and top-p.
    pub truncated_logprobs: Vec<f32>,
    /// How it was drawn.
    pub sampling: Sampling,
}

/// A [`Sample`] as an audit reads it: its text, and how many numbers there are. It is refused wherever
/// a [`Sample`] is.
#[derive(Debug, Deserialize)]
pub struct Glance<'a> {
    /// The user message.
    #[serde(borrow)]
    pub prompt: Cow<'a, str>,
    #[serde(rename = "prompt_tokens")]
    _prompt_tokens: Count<u32>,
    /// The answer's text, without the end token.
    #[serde(borrow)]
    pub text: Cow<'a, str>,
    /// The answer's tokens, the end token included.
    pub tokens: Count<u32>,
    /// Log-probabilities of them.
    pub logprobs: Count<f32>,
    #[serde(rename = "truncated_logprobs")]
    _truncated: Count<f32>,
    /// How it was drawn.
    pub sampling: Sampling,
}

/// What a stored sample begins and ends with where its prompt and its sampling are known. Most of a sample
/// is its prompt, and those of one group are the same, so it is compared and not read.
#[derive(Debug)]
pub struct Frame {
    begins: Vec<u8>,
    ends: Vec<u8>,
}

impl Frame {
    /// That of samples with this prompt and sampling.
    pub fn of(prompt: &str, sampling: &Sampling) -> serde_json::Result<Self> {
        let (prompt, sampling) = (serde_json::to_string(prompt)?, serde_json::to_string(sampling)?);
        let begins = format!("{{\"prompt\":{prompt},").into_bytes();
        Ok(Self { begins, ends: format!(",\"sampling\":{sampling}}}").into_bytes() })
    }

    /// What stands between in a stored sample, as an object by itself; `None` if it does not begin and end
    /// so, or is written in another way than this program writes it.
    pub fn inside(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let inside = stored.strip_prefix(&*self.begins)?.strip_suffix(&*self.ends)?;
        Some([b"{", inside, b"}"].concat())
    }
}

/// A [`Glance`] at what a [`Frame`] leaves.
#[derive(Debug, Deserialize)]
pub struct Inside<'a> {
    prompt: Option<IgnoredAny>,
    #[serde(rename = "prompt_tokens")]
    _prompt_tokens: Count<u32>,
    /// The answer's text, without the end token.
    #[serde(borrow)]
    pub text: Cow<'a, str>,
    /// The answer's tokens, the end token included.
    pub tokens: Count<u32>,
    /// Log-probabilities of them.
    pub logprobs: Count<f32>,
    #[serde(rename = "truncated_logprobs")]
    _truncated: Count<f32>,
    sampling: Option<IgnoredAny>,
}

impl<'a> Inside<'a> {
    /// Reads it; `None` if it is no such thing. Then the whole sample tells what is wrong.
    pub fn read(inside: &'a [u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(inside).ok()?;
        // Twice is once too often.
        (read.prompt.is_none() && read.sampling.is_none()).then_some(read)
    }
}

/// How many values of a kind stood in a list.
#[derive(Clone, Copy, Debug)]
pub struct Count<T>(pub usize, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Count<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Counter(PhantomData))
    }
}

struct Counter<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Counter<T> {
    type Value = Count<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Count<T>, A::Error> {
        let mut count = 0;
        while list.next_element::<T>()?.is_some() {
            count += 1;
        }
        Ok(Count(count, PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glance_sees_what_a_sample_holds_and_refuses_what_is_none() {
        let sample = Sample {
            prompt: "a \"b\"\n".into(),
            prompt_tokens: vec![1, 2],
            text: "```\nx\n```".into(),
            tokens: vec![3, 4, 5],
            logprobs: vec![-0.5, -0.25, 0.0],
            truncated_logprobs: vec![-0.5, -0.25, 0.0],
            sampling: Sampling { temperature: 0.8, top_p: 0.95, top_k: 20 },
        };
        let text = serde_json::to_string(&sample).unwrap();
        let glance: Glance<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!((&*glance.prompt, &*glance.text), (&*sample.prompt, &*sample.text));
        assert_eq!((glance.tokens.0, glance.logprobs.0), (3, 3));
        assert_eq!(glance.sampling, sample.sampling);
        let frame = Frame::of(&sample.prompt, &sample.sampling).unwrap();
        let inside = frame.inside(text.as_bytes()).unwrap();
        let read = Inside::read(&inside).unwrap();
        assert_eq!((&*read.text, read.tokens.0, read.logprobs.0), (&*sample.text, 3, 3));
        let other = Sampling { top_k: 21, ..sample.sampling };
        assert!(Frame::of("a \"b\"", &sample.sampling).unwrap().inside(text.as_bytes()).is_none());
        assert!(Frame::of(&sample.prompt, &other).unwrap().inside(text.as_bytes()).is_none());
        for twice in ["\"prompt\":\"x\",", "\"sampling\":{},", "\"text\":\"x\","] {
            let begins = frame.begins.len();
            let wrong = format!("{}{twice}{}", &text[..begins], &text[begins..]);
            assert!(Inside::read(&frame.inside(wrong.as_bytes()).unwrap()).is_none(), "{twice}");
            assert!(serde_json::from_str::<Glance<'_>>(&wrong).is_err(), "{twice}");
        }
        for (from, to) in [
            ("[1,2]", "[1,-2]"),
            ("[3,4,5]", "[3,4,\"5\"]"),
            ("[-0.5,", "[null,"),
            ("\"truncated_logprobs\"", "\"other\""),
            ("0.8", "\"0.8\""),
        ] {
            let wrong = text.replacen(from, to, 1);
            assert_ne!(wrong, text, "{from}");
            assert!(serde_json::from_str::<Glance<'_>>(&wrong).is_err(), "{wrong}");
            let inside = frame.inside(wrong.as_bytes());
            assert!(inside.is_none_or(|inside| Inside::read(&inside).is_none()), "{wrong}");
            assert!(serde_json::from_str::<Sample>(&wrong).is_err(), "{wrong}");
        }
    }
}
