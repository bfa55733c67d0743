//! Which sets and structures are kept for tests.

/// The part of the data a pair belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// For training: neither its set nor its structure is kept for tests.
    Train,
    /// For tests: nothing that is trained on has its set, and nothing has its structure.
    HeldOut,
    /// For neither: only one of set and structure is kept for tests.
    Neither,
}

fn tenth(kind: &str, text: &str) -> bool {
    let hash = blake3::hash(format!("{kind}\n{text}").as_bytes());
    let mut first = [0; 4];
    first.copy_from_slice(&hash.as_bytes()[..4]);
    u32::from_le_bytes(first) % 10 == 0
}

/// Whether a set of APIs is kept for tests: one in ten, whatever the order of the names.
pub fn is_held_out(apis: &[&str]) -> bool {
    let mut names = apis.to_vec();
    names.sort_unstable();
    tenth("apis", &names.join(","))
}

/// Whether a module structure is kept for tests: one in ten.
pub fn is_held_out_signature(signature: &str) -> bool {
    tenth("signature", signature)
}

/// The part that a pair belongs to.
pub fn split_of(apis: &[&str], signature: &str) -> Split {
    match (is_held_out(apis), is_held_out_signature(signature)) {
        (false, false) => Split::Train,
        (true, true) => Split::HeldOut,
        _ => Split::Neither,
    }
}
