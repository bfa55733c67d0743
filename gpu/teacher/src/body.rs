//! The body of a module: one line after the other, with what keeps it sane in between.

use rand::Rng;
use rand::seq::SliceRandom;

use crate::op::{Kind, Op, Sign};
use crate::plan::Plan;
use crate::state::{Builder, Val};

/// Writes the lines of the body; leaves the remaining rows in `loose`.
pub fn build(b: &mut Builder, plan: &Plan) {
    let mut body = plan.body.clone();
    body.shuffle(&mut b.rng);
    for op in body {
        let v = pick(b);
        let out = apply(b, op, v);
        b.loose.push(out);
        extra(b, op);
    }
}

/// Takes one of the loose rows, most often the newest.
fn pick(b: &mut Builder) -> usize {
    let last = b.loose.len() - 1;
    let i = if b.coin(0.65) { last } else { b.rng.random_range(0..=last) };
    b.loose.remove(i)
}

/// A second operand: a loose row, else half an input.
pub fn second(b: &mut Builder) -> usize {
    if b.loose.is_empty() {
        let anchor = b.anchor;
        return b.scale(anchor, "0.5", 0.5);
    }
    let i = b.rng.random_range(0..b.loose.len());
    b.loose.remove(i)
}

/// Now and then one more line that uses operators only.
fn extra(b: &mut Builder, op: &Op) {
    let Some(&v) = b.loose.last() else { return };
    if b.vals[v].raw {
        return;
    }
    let joined = matches!(op.kind, Kind::Join2 | Kind::Join3 | Kind::Where | Kind::AddMm);
    // Not where the input is in the value already and might cancel.
    let joined = joined || op.label() == "neg";
    if !joined && b.vals[v].flat == 0 && b.coin(0.12) {
        let val = b.vals[v].clone();
        let expr = format!("{} + {}", val.name, b.vals[b.anchor].name);
        b.loose.pop();
        let hi = val.hi + 40.0;
        let new = b.free(&expr, Val { hi, sign: Sign::Any, normed: false, ..val });
        b.loose.push(new);
    } else if b.coin(0.08) {
        b.loose.pop();
        let (text, by) = [("0.5", 0.5), ("2.0", 2.0), ("0.3", 0.3)][b.rng.random_range(0..3)];
        let new = b.scale(v, text, by);
        b.loose.push(new);
    }
}

/// Applies one API to `v` and whatever else it needs.
pub fn apply(b: &mut Builder, op: &'static Op, v: usize) -> usize {
    match op.kind {
        Kind::Raw => raw(b, op, v),
        Kind::Join2 | Kind::Join3 | Kind::Where => join(b, op, v),
        Kind::Reduce | Kind::Reduce2 => {
            let (v, s) = reduce(b, op, v, true);
            broadcast(b, op, v, s)
        }
        Kind::AddMm => {
            let v = b.prep(v, op.need, op.lim, op.fresh);
            let c = second(b);
            let name = b.call(op, &[v, v, c], Some("w"));
            let hi = b.vals[v].hi * 15.0 + b.vals[c].hi;
            let val = Val { name, raw: false, hi, sign: Sign::Any, ..b.vals[v].clone() };
            b.push(Val { normed: false, typ: 1.0, ..val })
        }
        Kind::Linear => {
            let v = b.prep(v, op.need, op.lim, op.fresh);
            let extra = if op.init.is_empty() { Some("w") } else { None };
            let name = b.call(op, &[v], extra);
            result(b, op, v, name)
        }
        _ => {
            let v = b.prep(v, op.need, op.lim, op.fresh);
            let name = b.call(op, &[v], None);
            result(b, op, v, name)
        }
    }
}

/// The value of `name = op(v)`.
fn result(b: &mut Builder, op: &Op, v: usize, name: String) -> usize {
    let val = b.vals[v].clone();
    let (hi, typ) = b.mag(op.mag, val.hi, val.typ);
    let sign = match (op.sign, val.sign) {
        (Sign::Keep, Sign::Pos) => Sign::NonNeg,
        (Sign::Keep, s) => s,
        (Sign::Flip, Sign::NonNeg | Sign::Pos) => Sign::NonPos,
        (Sign::Flip, Sign::NonPos) => Sign::NonNeg,
        (Sign::Flip, s) => s,
        (s, _) => s,
    };
    let flat = val.flat + u8::from(op.flat);
    let raw = val.raw && op.rowidx;
    b.push(Val { name, raw, hi, typ, sign, flat, normed: op.normed, scaled: false, col: val.col })
}

/// A discontinuous API: exact only on an input, so applied to one and joined.
fn raw(b: &mut Builder, op: &'static Op, v: usize) -> usize {
    if b.vals[v].raw {
        let name = b.call(op, &[v], None);
        return result(b, op, v, name);
    }
    let a = b.anchor;
    let name = b.call(op, &[a], None);
    let o = result(b, op, a, name);
    let (val, other) = (b.vals[v].clone(), b.vals[o].clone());
    let sign = op.label() == "sign";
    let expr = format!("{} {} {}", val.name, if sign { "*" } else { "+" }, other.name);
    let hi = if sign { val.hi } else { val.hi + other.hi };
    let flat = if sign { 0 } else { val.flat };
    b.free(&expr, Val { hi, flat, sign: Sign::Any, normed: false, ..val })
}

fn join(b: &mut Builder, op: &'static Op, v: usize) -> usize {
    let v = b.prep(v, op.need, op.lim, op.fresh);
    let mut args = vec![v];
    let mut w = second(b);
    if op.label() == "sub" && b.vals[w].raw && !b.vals[v].raw {
        w = b.scale(w, "0.5", 0.5);
    }
    args.push(w);
    if op.kind == Kind::Join3 {
        let x = if b.loose.is_empty() || b.coin(0.5) { b.anchor } else { second(b) };
        args.push(x);
    }
    let last = args.len() - 1;
    for (i, arg) in args.iter_mut().enumerate().skip(1) {
        let need = if i == last { op.need2 } else { op.need };
        *arg = b.prep(*arg, need, op.lim, op.fresh);
    }
    if op.kind == Kind::Where {
        args.push(b.anchor);
    }
    let name = b.call(op, &args, None);
    let vals: Vec<Val> = args.iter().map(|&i| b.vals[i].clone()).collect();
    let hi = vals.iter().map(|v| v.hi).fold(0.0, f32::max);
    let typ = vals.iter().map(|v| v.typ).fold(0.0, f32::max);
    let (hi, typ) = b.mag(op.mag, hi, typ);
    let both = &vals[..2];
    let pos = |v: &Val| matches!(v.sign, Sign::NonNeg | Sign::Pos);
    let keeps =
        matches!(op.label(), "add" | "mul" | "div" | "maximum" | "minimum" | "where" | "lerp");
    let sign = if op.sign == Sign::Any && keeps && both.iter().all(pos) {
        Sign::NonNeg
    } else if keeps && both.iter().all(|v| v.sign == Sign::NonPos) {
        if op.label() == "mul" { Sign::NonNeg } else { Sign::NonPos }
    } else if op.label() == "mul" && both.iter().any(|v| v.sign == Sign::Any) {
        Sign::Any
    } else if keeps || op.label() == "sub" {
        mixed(op.label(), both)
    } else {
        op.sign
    };
    let flats = both.iter().map(|v| v.flat);
    let flat = if op.label() == "mul" { flats.min() } else { flats.max() };
    let flat = flat.unwrap_or(0) + u8::from(op.flat);
    let val =
        Val { name, raw: false, hi, typ, sign, flat, normed: false, scaled: false, col: false };
    b.push(val)
}

/// The sign of a join whose operands differ in sign.
fn mixed(label: &str, both: &[Val]) -> Sign {
    let pos = |v: &Val| matches!(v.sign, Sign::NonNeg | Sign::Pos);
    let (p, q) = (&both[0], &both[1]);
    match label {
        "maximum" if pos(p) || pos(q) => Sign::NonNeg,
        "minimum" if p.sign == Sign::NonPos || q.sign == Sign::NonPos => Sign::NonPos,
        "mul" | "div" if p.sign != Sign::Any && q.sign != Sign::Any => Sign::Unknown,
        "sub" if pos(p) && q.sign == Sign::NonPos => Sign::NonNeg,
        "sub" if p.sign == Sign::NonPos && pos(q) => Sign::NonPos,
        _ => Sign::Any,
    }
}

/// Reduces a row (with a second one for some APIs); returns the row and the number.
pub fn reduce(b: &mut Builder, op: &'static Op, v: usize, keep: bool) -> (usize, usize) {
    let v = b.prep(v, op.need, op.lim, op.fresh);
    let mut args = vec![v];
    if op.kind == Kind::Reduce2 {
        let w = second(b);
        args.push(b.prep(w, op.need, op.lim, op.fresh));
    }
    let name = b.call(op, &args, None);
    if let Some(line) = b.lines.last_mut() {
        if !keep {
            line.py = line.py.replace(", keepdim=True", "");
        } else if op.kind == Kind::Reduce2 {
            line.py.push_str("[:, None]");
        }
    }
    let s = result(b, op, v, name);
    b.vals[s].col = true;
    (v, s)
}

/// The sign of a value after a join that may have changed it.
fn vague(val: &Val) -> Sign {
    if val.sign == Sign::Any { Sign::Any } else { Sign::Unknown }
}

/// Joins a number per row with the row again.
fn broadcast(b: &mut Builder, op: &Op, v: usize, s: usize) -> usize {
    let (val, num) = (b.vals[v].clone(), b.vals[s].clone());
    let centre = matches!(op.label(), "mean" | "amax" | "amin");
    // A positive offset would drown the row in a sum.
    let offset = matches!(op.label(), "pairwise_distance" | "norm" | "std" | "var");
    let small = val.hi.max(num.hi) <= 200.0;
    // The sum of a row and its extreme lies mostly on one side.
    let extreme = matches!(op.label(), "amax" | "amin");
    let low = u8::from(extreme);
    let which = b.rng.random_range(low..if centre { 3 } else { 2 });
    let which = if extreme && !small { 2 } else { which };
    let expr = |sym: &str| format!("{} {sym} {}", val.name, num.name);
    if which == 2 {
        let sign = match op.label() {
            "amax" => Sign::NonPos,
            "amin" => Sign::NonNeg,
            _ => Sign::Any,
        };
        let normed = op.label() == "mean";
        let flat = u8::from(!normed);
        return b.free(&expr("-"), Val { hi: val.hi * 2.0, sign, normed, flat, ..val });
    }
    if which == 1 && small {
        let hi = val.hi * num.hi;
        let typ = (val.typ * num.typ).clamp(0.1, 10.0);
        return b.free(
            &expr("*"),
            Val { hi, typ, sign: vague(&val), normed: false, scaled: true, ..val },
        );
    }
    if offset {
        let expr = format!("{} / ({} + 1.0)", val.name, num.name);
        let typ = val.typ / (num.typ + 1.0);
        return b.free(&expr, Val { typ, sign: vague(&val), normed: false, scaled: true, ..val });
    }
    // What the sum adds is the same along the row, which norms and softmax do not see.
    let sym = if op.label() == "logsumexp" { "-" } else { "+" };
    let flat = val.flat.max(u8::from(op.flat));
    let hi = val.hi + num.hi;
    let sign = if op.flat { Sign::Unknown } else { vague(&val) };
    b.free(&expr(sym), Val { hi, sign, flat, normed: true, ..val })
}

/// Joins loose rows by operators until `keep` are left.
pub fn merge(b: &mut Builder, keep: usize) {
    while b.loose.len() > keep {
        let (Some(q), Some(p)) = (b.loose.pop(), b.loose.pop()) else { return };
        let (x, y) = (b.vals[p].clone(), b.vals[q].clone());
        let small = x.hi * y.hi <= 2000.0;
        let sym = if small && b.coin(0.5) { "*" } else { "+" };
        let times = sym == "*";
        let hi = if times { x.hi * y.hi } else { x.hi + y.hi };
        let typ = if times { x.typ * y.typ } else { x.typ.max(y.typ) };
        let flat = if times { x.flat.min(y.flat) } else { x.flat.max(y.flat) };
        let expr = format!("{} {sym} {}", x.name, y.name);
        let val = Val { hi, typ, flat, sign: Sign::Any, normed: false, ..x };
        let new = b.free(&expr, val);
        b.loose.push(new);
    }
}
