//! Names of things. An id comes from where the thing stands in the run (branch, kind, indices), so
//! a redo after a crash gives the same id. Only runs are named by time.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};
use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeTupleStruct;
use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

/// A position in the log: 1, 2, 3, without gaps.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A BLAKE3 digest: of a blob, of a record, of weights.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// What a digest is called in a format that is not for people: 32 bytes without a length.
    pub const NAME: &'static str = "Digest";

    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// 64 lower-case hexadecimal digits.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// The first 12 hexadecimal digits, for people.
    pub fn short(&self) -> String {
        self.hex()[..12].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

/// The text is not what a digest or an id looks like.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct BadId {
    /// What was given.
    pub text: String,
    /// What would be right.
    pub expected: &'static str,
}

impl FromStr for Digest {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let hash = blake3::Hash::from_hex(text).map_err(|_| BadId {
            text: text.to_owned(),
            expected: "a digest of 64 hexadecimal digits",
        })?;
        Ok(Self(*hash.as_bytes()))
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&self.hex())
        } else {
            let mut bytes = serializer.serialize_tuple_struct(Self::NAME, 32)?;
            self.0.iter().try_for_each(|byte| bytes.serialize_field(byte))?;
            bytes.end()
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        } else {
            deserializer.deserialize_tuple_struct(Self::NAME, 32, Bytes)
        }
    }
}

/// The bytes of a digest: one by one, or at once from a format that knows [`Digest::NAME`].
struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Digest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a digest of 32 bytes")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Digest, E> {
        let whole = bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))?;
        Ok(Digest(whole))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Digest, A::Error> {
        let mut digest = Digest::default();
        for (at, byte) in digest.0.iter_mut().enumerate() {
            let next = list.next_element()?;
            *byte = next.ok_or_else(|| serde::de::Error::invalid_length(at, &self))?;
        }
        Ok(digest)
    }
}

/// Large data stored by its hash.
pub type BlobId = Digest;

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                let expected = "an id of 32 hexadecimal digits in groups";
                let bad = |_| BadId { text: text.to_owned(), expected };
                Uuid::parse_str(text).map(Self).map_err(bad)
            }
        }
    )+};
}

uuid_ids! {
    /// One experiment, or one branch of it. UUIDv7: sorts by time.
    RunId,
    /// The APIs that one Proposer prompt asks for.
    ApiSetId,
    /// One proposed reference program.
    ModuleId,
    /// One candidate kernel.
    KernelId,
    /// The samples drawn for one prompt, compared with each other.
    GroupId,
    /// One job of the judge's service.
    JobId,
}

impl JobId {
    /// A new job, named by the given time and random bits.
    pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
        Self(Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid())
    }

    /// The job that a client calls `name`: the same name is the same job.
    pub fn named(name: &str) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("kernelzero 2026-12 job named by a client");
        hasher.update(name.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(Builder::from_custom_bytes(bytes).into_uuid())
    }
}

impl RunId {
    /// A new run, named by the given time and random bits.
    pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
        Self(Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid())
    }
}

/// Which of the two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Writes modules.
    Proposer,
    /// Writes kernels.
    Coder,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Proposer => "proposer",
            Role::Coder => "coder",
        })
    }
}

/// One optimizer step: the `step`-th (from 0) of the `role`'s phase in `round` (from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepRef {
    /// From 1.
    pub round: u32,
    /// Whose phase.
    pub role: Role,
    /// From 0 within the phase.
    pub step: u32,
}

impl fmt::Display for StepRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {} {} step {}", self.round, self.role, self.step + 1)
    }
}

/// Which weights: those of `role` after `steps` of its optimizer steps; 0 are the initial ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyVersion {
    /// Whose.
    pub role: Role,
    /// Optimizer steps taken since the run began.
    pub steps: u32,
}

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.role, self.steps)
    }
}

/// What makes these hashes other than all others: derived once, since every id and seed needs it.
static COORDINATES: LazyLock<ContextKey> =
    LazyLock::new(|| hash_derive_key_context("kernelzero 2026-11 coordinates"));

/// Coordinates as bytes for ids and seeds: each field at a fixed width, so that no two
/// coordinates share an encoding.
pub(crate) fn coordinate_hash(kind: &str, parent: &[u8], step: StepRef, index: u32) -> [u8; 32] {
    let role = match step.role {
        Role::Proposer => 0,
        Role::Coder => 1,
    };
    // At once: so many small parts would cost more than their hash.
    let bytes: [&[u8]; 8] = [
        &(kind.len() as u64).to_le_bytes(),
        kind.as_bytes(),
        &(parent.len() as u64).to_le_bytes(),
        parent,
        &step.round.to_le_bytes(),
        &[role],
        &step.step.to_le_bytes(),
        &index.to_le_bytes(),
    ];
    let mut hasher = blake3::Hasher::new_from_context_key(&COORDINATES);
    hasher.update(&bytes.concat());
    *hasher.finalize().as_bytes()
}

fn coordinate_uuid(kind: &str, parent: &[u8], step: StepRef, index: u32) -> Uuid {
    let hash = coordinate_hash(kind, parent, step, index);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Builder::from_custom_bytes(bytes).into_uuid()
}

impl ApiSetId {
    /// The `index`-th API set of `step` in `branch`.
    pub fn at(branch: RunId, step: StepRef, index: u32) -> Self {
        Self(coordinate_uuid("api-set", branch.0.as_bytes(), step, index))
    }
}

impl ModuleId {
    /// The `index`-th module proposed for `set` in `step`.
    pub fn at(set: ApiSetId, step: StepRef, index: u32) -> Self {
        Self(coordinate_uuid("module", set.0.as_bytes(), step, index))
    }
}

impl KernelId {
    /// The `index`-th kernel written for `module` in `step` of `branch`.
    pub fn at(branch: RunId, module: ModuleId, step: StepRef, index: u32) -> Self {
        let parent = [branch.0.into_bytes(), module.0.into_bytes()].concat();
        Self(coordinate_uuid("kernel", &parent, step, index))
    }
}

impl GroupId {
    /// The group of modules that answers `set`.
    pub fn of_modules(set: ApiSetId, step: StepRef) -> Self {
        Self(coordinate_uuid("module-group", set.0.as_bytes(), step, 0))
    }

    /// The group of kernels that answers `module` in `step` of `branch`.
    pub fn of_kernels(branch: RunId, module: ModuleId, step: StepRef) -> Self {
        let parent = [branch.0.into_bytes(), module.0.into_bytes()].concat();
        Self(coordinate_uuid("kernel-group", &parent, step, 0))
    }
}

/// A seed from coordinates, never from a generator's history. `index` counts inside `step`.
pub fn seed_at(run_seed: u64, purpose: &str, step: StepRef, index: u32) -> u64 {
    let hash = coordinate_hash(purpose, &run_seed.to_le_bytes(), step, index);
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: StepRef = StepRef { round: 1, role: Role::Proposer, step: 0 };

    #[test]
    fn coordinates_name_things_the_same_way_twice_and_apart() {
        let run = RunId::new(1, [7; 10]);
        let set = ApiSetId::at(run, STEP, 3);
        assert_eq!(set, ApiSetId::at(run, STEP, 3));
        assert_ne!(set, ApiSetId::at(run, STEP, 4));
        assert_ne!(set, ApiSetId::at(RunId::new(2, [7; 10]), STEP, 3));
        assert_ne!(set.0, ModuleId::at(set, STEP, 3).0);
        let coder = StepRef { role: Role::Coder, ..STEP };
        assert_ne!(seed_at(1, "sample", STEP, 0), seed_at(1, "sample", coder, 0));
        assert_ne!(seed_at(1, "sample", STEP, 0), seed_at(2, "sample", STEP, 0));
        assert_ne!(seed_at(1, "sample", STEP, 0), seed_at(1, "inputs", STEP, 0));
    }

    #[test]
    fn digests_survive_text() {
        let digest = Digest::of(b"x");
        assert_eq!(digest.hex().parse::<Digest>().unwrap(), digest);
        assert!("xyz".parse::<Digest>().is_err());
    }
}
