//! A template teacher for a cold start: from a seed it writes an API set, a `PyTorch` module that
//! uses exactly this set, and a Triton kernel that computes the same, one line after the other.
//!
//! [`draw`] draws a set of 1 to 4 APIs from the co-occurrence table, [`pair`] writes the module and
//! the kernel for a set. Both depend on nothing but their arguments. [`is_held_out`] and
//! [`is_held_out_signature`] tell which sets and which module structures are kept for tests.

mod body;
mod cooc;
mod emit;
mod finish;
mod front;
mod op;
mod plan;
mod split;
mod state;
mod table;
mod text;
mod views;

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

pub use cooc::{CoOccurrence, co_occurrence, draw};
pub use op::Kind;
use op::Op;
pub use split::{Split, is_held_out, is_held_out_signature, split_of};
use state::Builder;

/// Most APIs in one set.
pub const MAX_APIS: usize = 4;

/// One API that the teacher can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiInfo {
    /// Full name, such as `torch.nn.functional.gelu`.
    pub name: &'static str,
    /// Its part in a module.
    pub role: Kind,
}

/// One example: a set of APIs, a module and its kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Sorted; all tracked APIs that the module uses.
    pub apis: Vec<String>,
    /// Source of the module.
    pub module: String,
    /// The Proposer's answer: a short plan and the module in a fenced block.
    pub proposer_answer: String,
    /// Source of the kernel.
    pub kernel: String,
    /// The Coder's answer: four lines of reasoning and the kernel in a fenced block.
    pub coder_answer: String,
    /// The structure of the module without numbers and shapes.
    pub signature: String,
}

/// A set that the teacher cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An API that the teacher does not know.
    #[error("the teacher does not know the API {0}")]
    Unknown(String),
    /// No API, too many, or one twice.
    #[error("a set holds 1 to {MAX_APIS} different APIs, not {0}")]
    Size(usize),
}

fn ops() -> impl Iterator<Item = &'static Op> {
    table::COMPUTE.iter().chain(table::SHAPE)
}

/// All APIs that the teacher can use.
pub fn apis() -> &'static [ApiInfo] {
    static ALL: std::sync::LazyLock<Vec<ApiInfo>> = std::sync::LazyLock::new(|| {
        ops().map(|op| ApiInfo { name: op.name, role: op.kind }).collect()
    });
    &ALL
}

fn find(name: &str) -> Option<&'static Op> {
    static BY_NAME: std::sync::LazyLock<BTreeMap<&str, &Op>> =
        std::sync::LazyLock::new(|| ops().map(|op| (op.name, op)).collect());
    BY_NAME.get(name).copied()
}

/// Writes the module and the kernel for a set of APIs (order does not matter).
///
/// # Errors
///
/// If an API is unknown, or the set is empty, larger than [`MAX_APIS`] or names one API twice.
pub fn pair(seed: u64, apis: &[&str]) -> Result<Pair, Error> {
    let mut names: Vec<&str> = apis.to_vec();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() || names.len() != apis.len() || names.len() > MAX_APIS {
        return Err(Error::Size(apis.len()));
    }
    let ops: Vec<&'static Op> = names
        .iter()
        .map(|n| find(n).ok_or_else(|| Error::Unknown((*n).to_owned())))
        .collect::<Result<_, _>>()?;
    let mut b = Builder::new(ChaCha8Rng::seed_from_u64(seed));
    let plan = plan::plan(&mut b, &ops);
    front::build(&mut b, &plan);
    body::build(&mut b, &plan);
    let out = finish::build(&mut b, &plan);
    let module = emit::module(&b, &out);
    let kernel = emit::kernel(&b, &out);
    Ok(Pair {
        apis: names.iter().map(|n| (*n).to_owned()).collect(),
        proposer_answer: format!("{}```python\n{module}```", emit::plan_text(&b, &out)),
        coder_answer: format!("{}```python\n{kernel}```", emit::kernel_text(&b, &out)),
        signature: emit::signature(&b, &out),
        module,
        kernel,
    })
}

/// The Proposer's user message for a set, in the order given.
pub fn proposer_prompt(apis: &[&str]) -> String {
    format!("{PROPOSER_PREFIX}{}", apis.join(", "))
}

/// The Coder's user message for a module.
pub fn coder_prompt(module: &str) -> String {
    format!("{CODER_PREFIX}{module}{CODER_SUFFIX}")
}

/// What comes before the API names in the Proposer's user message.
pub const PROPOSER_PREFIX: &str = "APIs: ";
/// What comes before the module in the Coder's user message.
pub const CODER_PREFIX: &str = "Triton:\n```python\n";
/// What comes after the module in the Coder's user message.
pub const CODER_SUFFIX: &str = "```";

/// The names of a set in an order that depends on the seed.
pub fn shuffled<'a>(seed: u64, apis: &[&'a str]) -> Vec<&'a str> {
    let mut names = apis.to_vec();
    names.shuffle(&mut ChaCha8Rng::seed_from_u64(seed ^ 0x5ee_d0fd));
    names
}

#[cfg(test)]
mod tests;
