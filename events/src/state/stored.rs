//! What it takes to keep a state: serde's derives, the config as its canonical text (its own form
//! leaves fields out, which a binary encoding cannot), and the name of the fold.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::config::RunConfig;

/// Changes with any change of this crate's source: a state that another fold made is not this one's.
pub const FOLD: u64 = parse(env!("KERNELZERO_FOLD"));

const fn parse(digits: &str) -> u64 {
    let (digits, mut at, mut number) = (digits.as_bytes(), 0, 0u64);
    while at < digits.len() {
        number = number * 10 + (digits[at] - b'0') as u64;
        at += 1;
    }
    number
}

pub(super) fn serialize<S: Serializer>(
    config: &Option<RunConfig>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let text = config.as_ref().map(RunConfig::to_text).transpose();
    text.map_err(ser::Error::custom)?.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<RunConfig>, D::Error> {
    let text: Option<String> = Deserialize::deserialize(deserializer)?;
    text.as_deref().map(RunConfig::parse).transpose().map_err(de::Error::custom)
}
