//! Numbers that cannot be out of range.

use serde::{Deserialize, Serialize};

/// A whole number from 1 to 2³²−1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Positive(u32);

impl Positive {
    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<i64> for Positive {
    type Error = String;

    fn try_from(value: i64) -> Result<Self, String> {
        match u32::try_from(value) {
            Ok(number) if number > 0 => Ok(Self(number)),
            Ok(_) | Err(_) => Err(format!("{value} is not a whole number from 1 to {}", u32::MAX)),
        }
    }
}

impl From<Positive> for i64 {
    fn from(value: Positive) -> i64 {
        i64::from(value.0)
    }
}

/// A whole number from 0 to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct UpTo<const MAX: u64>(u64);

impl<const MAX: u64> UpTo<MAX> {
    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl<const MAX: u64> TryFrom<i64> for UpTo<MAX> {
    type Error = String;

    fn try_from(value: i64) -> Result<Self, String> {
        match u64::try_from(value) {
            Ok(number) if number <= MAX => Ok(Self(number)),
            Ok(_) | Err(_) => Err(format!("{value} is not a whole number from 0 to {MAX}")),
        }
    }
}

impl<const MAX: u64> From<UpTo<MAX>> for i64 {
    fn from(value: UpTo<MAX>) -> i64 {
        i64::try_from(value.0).unwrap_or(i64::MAX)
    }
}

/// A finite number from 0 to `MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Share<const MAX: u64>(f64);

impl<const MAX: u64> Share<MAX> {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl<const MAX: u64> TryFrom<f64> for Share<MAX> {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        if (0.0..=MAX as f64).contains(&value) {
            Ok(Self(value))
        } else {
            Err(format!("{value} is not a number from 0 to {MAX}"))
        }
    }
}

impl<const MAX: u64> From<Share<MAX>> for f64 {
    fn from(value: Share<MAX>) -> f64 {
        value.0
    }
}

/// A number from 0 to 1.
pub type Probability = Share<1>;
