//! The end of a module: reducer, losses, and the form in which the result is stored.

use rand::Rng;

use crate::body::{merge, reduce, second};
use crate::op::{Kind, Op, Sign};
use crate::plan::Plan;
use crate::state::{Builder, Line, Val};
use crate::text::fill;

/// How the kernel leaves its result.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Offset and name of each store.
    pub stores: Vec<(String, String)>,
    /// Shape of the result, as texts.
    pub shape: Vec<String>,
    /// One number a row.
    pub col: bool,
    /// One number in all.
    pub scalar: bool,
    /// The variable that `forward` returns.
    pub ret: String,
}

/// Ends the module.
pub fn build(b: &mut Builder, plan: &Plan) -> Output {
    let mut out = if plan.losses.is_empty() { rows(b, plan) } else { loss(b, plan) };
    if let Some(op) = plan.flatten {
        out.ret = shape_line(b, op, &[&out.ret], "");
        let dims: Vec<&str> = out.shape.iter().map(String::as_str).filter(|d| *d != "1").collect();
        out.shape = vec![if dims.is_empty() { "1".to_owned() } else { dims.join(" * ") }];
    }
    if let Some(op) = plan.unsqueeze {
        let k = if out.shape.is_empty() || b.coin(0.5) { 0 } else { 1 };
        out.ret = shape_line(b, op, &[&out.ret], &k.to_string());
        out.shape.insert(k, "1".to_owned());
    }
    if !out.shape.is_empty() && (plan.flatten.is_some() || plan.unsqueeze.is_some()) {
        b.flat_ok = false;
    }
    out
}

/// A line that only changes the form of a value; returns its result.
fn shape_line(b: &mut Builder, op: &'static Op, args: &[&str], k: &str) -> String {
    let o = b.fresh();
    let mut fills = vec![("{k}", k), ("{d}", b.axis)];
    fills.extend(["{0}", "{1}"].into_iter().zip(args.iter().copied()));
    let py = format!("{o} = {}", fill(op.call, &fills));
    b.labels.push(op.label());
    b.lines.push(Line { py, tl: Vec::new(), post: false });
    o
}

fn texts(dims: &[&str]) -> Vec<String> {
    dims.iter().map(|d| (*d).to_owned()).collect()
}

fn rows(b: &mut Builder, plan: &Plan) -> Output {
    if let Some(op) = plan.collapse {
        return number(b, plan, op);
    }
    let pair = plan.store.filter(|op| matches!(op.kind, Kind::Stack | Kind::Cat));
    merge(b, if pair.is_some() { 2 } else { 1 });
    let p = settle(b);
    let Some(op) = plan.store else {
        let ret = b.name(p);
        let at = "row * N + cols".to_owned();
        return Output {
            stores: vec![(at, ret.clone())],
            shape: texts(&["M", "N"]),
            ret,
            ..Output::default()
        };
    };
    b.flat_ok = false;
    let one = b.name(p);
    if op.kind == Kind::Transpose {
        let ret = shape_line(b, op, &[&one], "");
        let stores = vec![("cols * M + row".to_owned(), one)];
        return Output { stores, shape: texts(&["N", "M"]), ret, ..Output::default() };
    }
    let q = if b.loose.is_empty() { second(b) } else { settle(b) };
    let two = b.name(q);
    let cat = op.kind == Kind::Cat;
    let k = if b.coin(0.5) { "0" } else { "1" };
    let ret = shape_line(b, op, &[&one, &two], k);
    let (first, last, shape) = if cat {
        ("row * N * 2 + cols", "row * N * 2 + N + cols", texts(&["M", "N * 2"]))
    } else if k == "1" {
        ("row * N * 2 + cols", "row * N * 2 + N + cols", texts(&["M", "2", "N"]))
    } else {
        ("row * N + cols", "(M + row) * N + cols", texts(&["2", "M", "N"]))
    };
    let stores = vec![(first.to_owned(), one), (last.to_owned(), two)];
    Output { stores, shape, ret, ..Output::default() }
}

/// Takes the newest loose row and makes it fit for a result.
fn settle(b: &mut Builder) -> usize {
    let mut v = b.loose.pop().unwrap_or(b.anchor);
    if b.vals[v].flat >= 2 {
        v = b.remix(v);
    }
    if b.vals[v].raw && b.labels.is_empty() | b.lines.iter().all(|l| l.tl.is_empty()) {
        v = b.scale(v, "2.0", 2.0);
    }
    if b.vals[v].typ < 0.1 {
        v = b.scale(v, "10.0", 10.0);
    }
    v
}

/// Ends with one number a row.
fn number(b: &mut Builder, plan: &Plan, op: &'static Op) -> Output {
    merge(b, if op.kind == Kind::Reduce2 { 2 } else { 1 });
    let v = b.loose.pop().unwrap_or(b.anchor);
    let keep = op.kind == Kind::Reduce && b.coin(0.4);
    let (_, mut s) = reduce(b, op, v, keep);
    if let Some(op) = plan.after {
        s = b.prep(s, op.need, op.lim, false);
        s = crate::body::apply(b, op, s);
    }
    let ret = b.name(s);
    Output {
        stores: vec![("row".to_owned(), ret.clone())],
        shape: texts(if keep { &["M", "1"] } else { &["M"] }),
        col: true,
        scalar: false,
        ret,
    }
}

fn loss(b: &mut Builder, plan: &Plan) -> Output {
    b.flat_ok = false;
    let target = b.target.take();
    merge(b, if target.is_some() { 1 } else { 2 });
    if let Some(t) = target {
        b.loose.insert(0, t);
    }
    // The prediction is a computed row where there is one.
    if b.loose.len() == 2 && b.vals[b.loose[0]].raw == b.coin(0.1) {
        b.loose.swap(0, 1);
    }
    let p = b.loose.pop().unwrap_or(b.anchor);
    let t = second(b);
    let mut names: Vec<String> = Vec::new();
    for op in &plan.losses {
        let p = b.prep(p, op.need, op.lim, false);
        let t = b.prep(t, op.need2, 200.0, false);
        let name = b.call(op, &[p, t], None);
        if let Some(last) = b.lines.last_mut().and_then(|line| line.tl.pop()) {
            b.lines.push(Line { py: String::new(), tl: vec![last], post: true });
        }
        b.accs.push(name.clone());
        names.push(name);
    }
    let mut sum = names[0].clone();
    let stacked = plan.store.filter(|op| op.kind == Kind::Stack);
    let joined = if stacked.is_some() { 2 } else { 1 };
    while names.len() > joined {
        let last = names.pop().unwrap_or_default();
        let prev = names.pop().unwrap_or_default();
        sum = after_loop(b, &format!("{prev} + {last}"));
        names.push(sum.clone());
    }
    let Some(op) = stacked else {
        if b.rng.random_bool(0.15) {
            sum = after_loop(b, &format!("{sum} * 2.0"));
        }
        let stores = vec![(String::new(), sum.clone())];
        return Output { stores, shape: Vec::new(), col: false, scalar: true, ret: sum };
    };
    if names.len() == 1 {
        names.push(after_loop(b, &format!("{sum} * 0.5")));
    }
    let ret = shape_line(b, op, &[&names[0], &names[1]], "0");
    let stores = vec![(String::new(), names[0].clone()), ("1".to_owned(), names[1].clone())];
    Output { stores, shape: texts(&["2"]), col: false, scalar: true, ret }
}

/// A line of operators on scalars, after the loop over rows.
fn after_loop(b: &mut Builder, expr: &str) -> String {
    let val = Val { col: true, sign: Sign::Unknown, ..b.vals[b.anchor].clone() };
    let v = b.free(expr, val);
    if let Some(line) = b.lines.last_mut() {
        line.post = true;
    }
    b.name(v)
}
