//! Static rules: pure functions of a source text.
//!
//! The first line of defence, and the one that explains itself: an allowlist on the syntax tree,
//! imports and aliases resolved, so that words in comments, docstrings and strings never count.
//! What they cannot see (values, operators on names of unknown type, what a table holds) the
//! dynamic rules of a checked call do.

mod cpp;
mod cuda;
mod cuda_tables;
mod everywhere;
mod kernel;
mod module;
mod names;
mod reach;
mod syntax;
mod tables;
mod types;
mod work;

pub use cuda::{includes, inspect as inspect_cuda, kernel_names, of_std, words};
pub use kernel::inspect_kernel;
pub use module::inspect_module;
