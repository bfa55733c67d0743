//! How the APIs of a set share the parts of a module: front, body, loss, store.

use rand::Rng;
use rand::seq::IndexedRandom;

use crate::op::{Kind, Need, Op};
use crate::state::Builder;

/// The parts of a module.
#[derive(Default)]
pub struct Plan {
    pub halves: Vec<&'static Op>,
    pub glu: Option<&'static Op>,
    pub cat_front: Option<&'static Op>,
    pub views: Vec<&'static Op>,
    pub body: Vec<&'static Op>,
    /// The reducer that ends the module, and what follows it on the one number of a row.
    pub collapse: Option<&'static Op>,
    pub after: Option<&'static Op>,
    pub losses: Vec<&'static Op>,
    /// `cat`, `stack` or a transposition at the store.
    pub store: Option<&'static Op>,
    pub flatten: Option<&'static Op>,
    pub unsqueeze: Option<&'static Op>,
    pub two_rows: bool,
}

const WIDTHS: [usize; 10] = [24, 32, 36, 40, 48, 56, 64, 80, 96, 100];
const LINEAR_WIDTHS: [usize; 7] = [16, 24, 32, 36, 40, 48, 64];
const TRIANGLE_WIDTHS: [usize; 4] = [24, 32, 36, 40];
const TRIANGLE_HEIGHTS: [usize; 4] = [12, 16, 24, 32];
const HEIGHTS: [usize; 10] = [4, 4, 6, 6, 8, 8, 12, 16, 24, 32];

/// Chooses sizes and assigns each API its part.
pub fn plan(b: &mut Builder, ops: &[&'static Op]) -> Plan {
    let mut p = Plan::default();
    let has = |k: Kind| ops.iter().any(|op| op.kind == k);
    let linear = has(Kind::Linear) || has(Kind::AddMm);
    let widths: &[usize] = if linear { &LINEAR_WIDTHS } else { &WIDTHS };
    b.n = widths.choose(&mut b.rng).copied().unwrap_or(32);
    b.m = HEIGHTS.choose(&mut b.rng).copied().unwrap_or(8);
    if ops.iter().any(|op| op.rowidx) {
        // A triangle of a wide row is nearly empty.
        b.n = TRIANGLE_WIDTHS.choose(&mut b.rng).copied().unwrap_or(24);
        b.m = TRIANGLE_HEIGHTS.choose(&mut b.rng).copied().unwrap_or(16);
    }
    b.axis = if b.coin(0.7) { "-1" } else { "1" };
    b.uses_w = ops
        .iter()
        .any(|op| op.kind == Kind::AddMm || (op.kind == Kind::Linear && op.init.is_empty()));
    let loss = has(Kind::Loss);
    for &op in ops {
        match op.kind {
            Kind::Loss => p.losses.push(op),
            Kind::Halve => p.halves.push(op),
            Kind::Glu => p.glu = Some(op),
            Kind::View => p.views.push(op),
            Kind::Stack => p.store = Some(op),
            Kind::Flatten => p.flatten = Some(op),
            Kind::Unsqueeze => p.unsqueeze = Some(op),
            Kind::Cat | Kind::Transpose => {}
            _ => p.body.push(op),
        }
    }
    let many = p.halves.len() + usize::from(p.glu.is_some()) >= 2;
    for &op in ops {
        if op.kind != Kind::Cat && op.kind != Kind::Transpose {
            continue;
        }
        let cat = op.kind == Kind::Cat;
        if !loss && p.store.is_none() && ((cat && many) || b.coin(0.5)) {
            p.store = Some(op);
        } else if cat {
            p.cat_front = Some(op);
        } else {
            p.views.push(op);
        }
    }
    collapse(b, &mut p);
    let two = |op: &&Op| {
        matches!(
            op.kind,
            Kind::Join2 | Kind::Join3 | Kind::Where | Kind::Reduce2 | Kind::AddMm | Kind::Loss
        )
    };
    p.two_rows =
        ops.iter().any(two) || p.store.is_some_and(|op| matches!(op.kind, Kind::Stack | Kind::Cat));
    p
}

/// Decides whether a reducer ends the module.
fn collapse(b: &mut Builder, p: &mut Plan) {
    let reducers: Vec<usize> = (0..p.body.len())
        .filter(|&i| matches!(p.body[i].kind, Kind::Reduce | Kind::Reduce2))
        .collect();
    if reducers.is_empty() || !p.losses.is_empty() || p.store.is_some() || !b.coin(0.5) {
        return;
    }
    let i = reducers[b.rng.random_range(0..reducers.len())];
    p.collapse = Some(p.body.remove(i));
    let after = (0..p.body.len()).find(|&i| {
        let op = p.body[i];
        op.kind == Kind::Elem
            && op.need != Need::Signed
            && !op.fresh
            && !op.rowidx
            && op.params.is_empty()
    });
    if let Some(i) = after
        && b.coin(0.3)
    {
        p.after = Some(p.body.remove(i));
    }
}
