//! The front of a module: its inputs and the views taken of them.

use rand::Rng;
use rand::seq::SliceRandom;

use crate::op::{Kind, Op, Sign};
use crate::plan::Plan;
use crate::state::{Builder, Input, Line, Val};
use crate::text::fill;
use crate::views::{self, Step};

const NAMES: [&str; 4] = ["x", "y", "z", "u"];

/// What an input is for.
#[derive(Clone, Copy)]
enum Use {
    Plain,
    Half(&'static Op),
    Glu(&'static Op),
    Piece(&'static Op, usize),
}

struct Slot {
    name: &'static str,
    role: Use,
    views: Vec<&'static Op>,
}

/// Chooses the inputs, writes the lines of their views and leaves the rows in `loose`.
pub fn build(b: &mut Builder, plan: &Plan) {
    let mut slots = slots(b, plan);
    for op in &plan.views {
        let bare: Vec<usize> = (0..slots.len()).filter(|&i| slots[i].views.is_empty()).collect();
        let i = match bare.as_slice() {
            [] => b.rng.random_range(0..slots.len()),
            some => some[b.rng.random_range(0..some.len())],
        };
        slots[i].views.push(op);
    }
    let mut piece: Option<(String, String)> = None;
    for slot in &mut slots {
        slot.views.sort_by_key(|op| match (op.name, op.kind) {
            ("torch.squeeze", _) => 0,
            (_, Kind::Transpose) => 1,
            _ => 2,
        });
        let (mut steps, cur) = view_lines(b, slot);
        if let Some(half) = use_rows(b, slot, &mut steps, &cur, piece.take()) {
            piece = Some(half);
        }
        let dims = views::dims(slot.name, &steps);
        b.flat_ok &= steps.is_empty();
        b.inputs.push(Input {
            name: slot.name,
            shape: views::shape(&steps, b.m, b.n),
            plain: steps.is_empty(),
            dims,
        });
    }
    b.anchor = b.loose.iter().copied().find(|&v| b.vals[v].raw).unwrap_or(0);
    if !plan.losses.is_empty() && b.loose.len() >= 2 {
        let i = b.rng.random_range(0..b.loose.len());
        if b.vals[b.loose[i]].raw {
            let t = b.loose.remove(i);
            b.target = Some(t);
            b.anchor = b.loose.iter().copied().find(|&v| b.vals[v].raw).unwrap_or(t);
        }
    }
    if b.uses_w {
        let shape = vec![b.n, b.n];
        b.inputs.push(Input { name: "w", shape, dims: String::new(), plain: false });
        b.flat_ok = false;
    }
}

fn slots(b: &mut Builder, plan: &Plan) -> Vec<Slot> {
    let mut groups: Vec<Vec<Use>> = Vec::new();
    let mut raws = 0;
    for op in &plan.halves {
        groups.push(vec![Use::Half(op)]);
        raws += 2;
    }
    let glu = usize::from(plan.glu.is_some());
    if let Some(op) = plan.glu {
        groups.push(vec![Use::Glu(op)]);
    }
    if let Some(op) = plan.cat_front {
        groups.push(vec![Use::Piece(op, 0), Use::Piece(op, 1)]);
        raws += 1;
    }
    let mut plain = usize::from(raws == 0);
    if plan.two_rows && raws + glu + plain < 2 {
        plain += 1;
    }
    let total: usize = groups.iter().map(Vec::len).sum::<usize>() + plain + usize::from(b.uses_w);
    if total < 3 && b.coin(0.25) {
        plain += 1;
    }
    groups.extend((0..plain).map(|_| vec![Use::Plain]));
    groups.shuffle(&mut b.rng);
    let uses = groups.into_iter().flatten();
    uses.zip(NAMES).map(|(role, name)| Slot { name, role, views: Vec::new() }).collect()
}

/// Writes the lines of the plain views of an input; returns the steps and the last name.
fn view_lines(b: &mut Builder, slot: &Slot) -> (Vec<Step>, String) {
    let mut steps = Vec::new();
    let mut cur = slot.name.to_owned();
    for op in &slot.views {
        let (k, j) = b.consts(op);
        let o = b.fresh();
        let fills =
            [("{0}", cur.as_str()), ("{k}", k.as_str()), ("{j}", j.as_str()), ("{d}", b.axis)];
        line(b, op, format!("{o} = {}", fill(op.call, &fills)));
        let (k, j) = (k.parse().unwrap_or(0), j.parse().unwrap_or(0));
        steps.push(match op.label() {
            "squeeze" => Step::Squeeze,
            "flip" => Step::Flip,
            "roll" => Step::Roll(k),
            "narrow" => Step::Narrow(k, j),
            "pad" => Step::Pad(k),
            _ => Step::Swap,
        });
        cur = o;
    }
    (steps, cur)
}

fn line(b: &mut Builder, op: &'static Op, py: String) {
    b.labels.push(op.label());
    b.lines.push(Line { py, tl: Vec::new(), post: false });
}

/// Adds the rows that an input yields. Returns the first piece of a concatenation.
fn use_rows(
    b: &mut Builder,
    slot: &Slot,
    steps: &mut Vec<Step>,
    cur: &str,
    first: Option<(String, String)>,
) -> Option<(String, String)> {
    let axis = b.axis;
    let with = |steps: &[Step], last: Step| {
        let mut all = steps.to_vec();
        all.push(last);
        views::load(slot.name, &all)
    };
    match slot.role {
        Use::Plain => {
            b.loads.push(format!("{cur} = {}", views::load(slot.name, steps)));
            let v = b.raw(cur.to_owned());
            b.loose.push(v);
        }
        Use::Half(op) => {
            let (p, q) = (b.fresh(), b.fresh());
            let call = fill(op.call, &[("{0}", cur), ("{d}", axis)]);
            line(b, op, format!("{p}, {q} = {call}"));
            for (i, name) in [p, q].into_iter().enumerate() {
                b.loads.push(format!("{name} = {}", with(steps, Step::Half(i))));
                let v = b.raw(name);
                b.loose.push(v);
            }
            steps.push(Step::Half(0));
        }
        Use::Glu(op) => {
            let o = b.fresh();
            let call = fill(op.call, &[("{0}", cur), ("{d}", axis)]);
            b.loads.push(format!("{o}_l = {}", with(steps, Step::Half(0))));
            b.loads.push(format!("{o}_r = {}", with(steps, Step::Half(1))));
            b.labels.push(op.label());
            let tl = vec![format!("{o} = {o}_l * tl.sigmoid({o}_r)")];
            b.lines.push(Line { py: format!("{o} = {call}"), tl, post: false });
            let v = b.raw(o);
            b.vals[v] = Val { raw: false, typ: 0.5, sign: Sign::Any, ..b.vals[v].clone() };
            b.loose.push(v);
            steps.push(Step::Half(0));
        }
        Use::Piece(_, 0) => {
            let load = with(steps, Step::Piece(0));
            steps.push(Step::Piece(0));
            return Some((cur.to_owned(), load));
        }
        Use::Piece(op, _) => {
            let (one, left) = first.unwrap_or_default();
            let o = b.fresh();
            let call = fill(op.call, &[("{0}", one.as_str()), ("{1}", cur), ("{d}", axis)]);
            line(b, op, format!("{o} = {call}"));
            b.loads.push(format!("{o} = {left} + {}", with(steps, Step::Piece(1))));
            let v = b.raw(o);
            b.loose.push(v);
            steps.push(Step::Piece(1));
        }
    }
    None
}
