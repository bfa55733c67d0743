//! The state of one module under construction.

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use crate::op::{Mag, Need, Op, Shape, Sign};
use crate::text::{expand, fill};

/// A named value and what is known of it.
#[derive(Clone, Debug)]
pub struct Val {
    pub name: String,
    /// Bit for bit an element of an input.
    pub raw: bool,
    /// Largest magnitude for inputs scaled by 8.
    pub hi: f32,
    /// Typical magnitude for standard inputs.
    pub typ: f32,
    pub sign: Sign,
    /// How many offset functions it went through since it was last multiplied by an input.
    pub flat: u8,
    /// Has a fixed sum or norm along the row.
    pub normed: bool,
    /// Was multiplied by one number a row, which a norm does not see.
    pub scaled: bool,
    /// One number a row.
    pub col: bool,
}

/// One line of `forward` with its kernel lines.
#[derive(Clone, Debug)]
pub struct Line {
    pub py: String,
    pub tl: Vec<String>,
    /// Comes after the loop over rows.
    pub post: bool,
}

/// One input of `forward`.
#[derive(Clone, Debug)]
pub struct Input {
    pub name: &'static str,
    pub shape: Vec<usize>,
    /// How `M, N` follow from its shape.
    pub dims: String,
    /// A plain `[M, N]` input.
    pub plain: bool,
}

/// The module under construction.
pub struct Builder {
    pub rng: ChaCha8Rng,
    pub m: usize,
    pub n: usize,
    pub axis: &'static str,
    pub vals: Vec<Val>,
    pub loose: Vec<usize>,
    pub anchor: usize,
    /// An input kept as the target of a loss.
    pub target: Option<usize>,
    pub inputs: Vec<Input>,
    pub loads: Vec<String>,
    pub lines: Vec<Line>,
    pub init: Vec<String>,
    pub params: Vec<(&'static str, &'static str, Shape)>,
    pub labels: Vec<&'static str>,
    pub uses_w: bool,
    pub flat_ok: bool,
    pub accs: Vec<String>,
    names: usize,
}

impl Builder {
    pub fn new(rng: ChaCha8Rng) -> Self {
        Self {
            rng,
            m: 0,
            n: 0,
            axis: "-1",
            vals: Vec::new(),
            loose: Vec::new(),
            anchor: 0,
            target: None,
            inputs: Vec::new(),
            loads: Vec::new(),
            lines: Vec::new(),
            init: Vec::new(),
            params: Vec::new(),
            labels: Vec::new(),
            uses_w: false,
            flat_ok: true,
            accs: Vec::new(),
            names: 0,
        }
    }

    /// The next variable name: a, b, c, ...
    pub fn fresh(&mut self) -> String {
        const NAMES: &[u8] = b"abcdefghijklmnopqrst";
        let i = self.names;
        self.names += 1;
        let letter = char::from(NAMES[i % NAMES.len()]);
        if i < NAMES.len() { letter.to_string() } else { format!("{letter}{}", i / NAMES.len()) }
    }

    pub fn push(&mut self, val: Val) -> usize {
        self.vals.push(val);
        self.vals.len() - 1
    }

    /// A value that is a view of an input.
    pub fn raw(&mut self, name: String) -> usize {
        self.push(Val {
            name,
            raw: true,
            hi: 40.0,
            typ: 1.0,
            sign: Sign::Any,
            flat: 0,
            normed: false,
            scaled: false,
            col: false,
        })
    }

    pub fn name(&self, v: usize) -> String {
        self.vals[v].name.clone()
    }

    pub fn coin(&mut self, p: f64) -> bool {
        self.rng.random_bool(p)
    }

    /// One of the constants of an API, as (`k`, `j`).
    pub fn consts(&mut self, op: &Op) -> (String, String) {
        let pick = op.consts.choose(&mut self.rng).copied().unwrap_or("");
        let (k, j) = pick.split_once('|').unwrap_or((pick, ""));
        (k.to_owned(), j.to_owned())
    }

    /// A line made of Python operators only: the same text in module and kernel.
    pub fn free(&mut self, expr: &str, val: Val) -> usize {
        let name = self.fresh();
        let text = format!("{name} = {expr}");
        self.lines.push(Line { py: text.clone(), tl: vec![text], post: false });
        self.push(Val { name, raw: false, ..val })
    }

    /// A line that calls an API; returns the name of its result.
    pub fn call(&mut self, op: &'static Op, args: &[usize], extra: Option<&str>) -> String {
        let o = self.fresh();
        let (k, j) = self.consts(op);
        let names: Vec<String> = args.iter().map(|&v| self.name(v)).collect();
        let mut fills = vec![("{j}", j.as_str()), ("{k}", k.as_str()), ("{o}", o.as_str())];
        fills.push(("{d}", self.axis));
        for (key, name) in ["{0}", "{1}", "{2}"].iter().zip(&names) {
            fills.push((key, name));
        }
        if let Some(w) = extra {
            fills.insert(0, ("{1}", w));
        }
        let py = format!("{o} = {}", fill(op.call, &fills));
        let tl = op.tl.iter().map(|t| expand(&fill(t, &fills))).collect();
        if !op.init.is_empty() {
            self.init.push(fill(op.init, &fills));
            self.params.extend_from_slice(op.params);
        }
        let rowwise = ["mask", "SUM(", "MAX(", "MIN("];
        if op.rowidx || op.tl.iter().any(|t| rowwise.iter().any(|w| t.contains(w))) {
            self.flat_ok = false;
        }
        self.labels.push(op.label());
        self.lines.push(Line { py, tl, post: false });
        o
    }

    /// Magnitudes of a result.
    pub fn mag(&self, mag: Mag, hi: f32, typ: f32) -> (f32, f32) {
        let n = self.n as f32;
        match mag {
            Mag::Same => (hi, typ),
            Mag::To(h, t) => (h, t),
            Mag::Mul(f) => (hi * f, typ * f),
            Mag::Sq => (hi * hi, typ * typ),
            Mag::Exp => (hi.min(10.0).exp(), 1.0),
            Mag::Width => (hi * n * 0.5, typ * n.sqrt()),
            Mag::MatMul => (hi * 15.0, typ * 0.7),
            Mag::Mean => (hi, typ * 2.0 / n.sqrt()),
        }
    }

    /// Makes a value fit for an operand: sign, magnitude, offset.
    pub fn prep(&mut self, v: usize, need: Need, lim: f32, fresh: bool) -> usize {
        let mut v = v;
        let val = &self.vals[v];
        let signed = need == Need::Signed && val.sign != Sign::Any;
        let flat = val.flat >= 2 || (fresh && (val.flat >= 1 || val.normed));
        if !val.raw && !val.col && (signed || flat) {
            v = self.remix(v);
        }
        if fresh && self.vals[v].scaled {
            let val = self.vals[v].clone();
            let expr = format!("{} + {}", val.name, self.vals[self.anchor].name);
            v = self.free(&expr, Val { hi: val.hi + 40.0, typ: 1.0, scaled: false, ..val });
        }
        if self.vals[v].typ < 0.1 && self.vals[v].hi * 10.0 <= lim {
            v = self.scale(v, "10.0", 10.0);
        }
        if self.vals[v].typ >= 3.0 && lim <= 100.0 && !self.vals[v].raw {
            v = self.scale(v, "0.2", 0.2);
        }
        if self.vals[v].hi > lim {
            v = self.shrink(v, lim);
        }
        self.positive(v, need)
    }

    /// Multiplies by an input, which gives it both signs and no offset.
    pub fn remix(&mut self, v: usize) -> usize {
        let (val, a) = (self.vals[v].clone(), self.name(self.anchor));
        let expr = format!("{} * {a}", val.name);
        let hi = val.hi * 40.0;
        self.free(&expr, Val { hi, sign: Sign::Any, flat: 0, normed: false, ..val })
    }

    /// Multiplies by a constant.
    pub fn scale(&mut self, v: usize, text: &str, by: f32) -> usize {
        let val = self.vals[v].clone();
        let expr = format!("{} * {text}", val.name);
        let sign = if val.sign == Sign::Pos && by < 1.0 { Sign::NonNeg } else { val.sign };
        self.free(&expr, Val { hi: val.hi * by, typ: val.typ * by, sign, ..val })
    }

    fn shrink(&mut self, v: usize, lim: f32) -> usize {
        let val = self.vals[v].clone();
        let steps = [("0.5", 0.5), ("0.2", 0.2), ("0.1", 0.1), ("0.05", 0.05), ("0.01", 0.01)];
        let fit = steps.iter().find(|(_, c)| val.hi * c <= lim && val.typ * c >= 0.09);
        if let Some((text, c)) = fit {
            return self.scale(v, text, *c);
        }
        let expr = format!("{0} / ({0} * {0} + 1.0)", val.name);
        let sign = if val.sign == Sign::Pos { Sign::NonNeg } else { val.sign };
        self.free(&expr, Val { hi: 0.5, typ: 0.4, sign, ..val })
    }

    fn positive(&mut self, v: usize, need: Need) -> usize {
        let val = self.vals[v].clone();
        let c = if self.coin(0.5) { "0.1" } else { "0.5" };
        let name = &val.name;
        let flat = val.flat.max(1);
        match (need, val.sign) {
            (Need::Pos, Sign::Pos) | (Need::NonNeg, Sign::Pos | Sign::NonNeg) => v,
            (Need::Pos, Sign::NonNeg) => {
                let expr = format!("{name} + {c}");
                self.free(&expr, Val { sign: Sign::Pos, flat, normed: false, ..val })
            }
            (Need::Pos, _) => {
                let expr = format!("{name} * {name} + {c}");
                let hi = val.hi * val.hi;
                self.free(&expr, Val { sign: Sign::Pos, flat, normed: false, hi, ..val })
            }
            (Need::NonNeg, _) => {
                let expr = format!("{name} * {name}");
                let hi = val.hi * val.hi;
                self.free(&expr, Val { sign: Sign::NonNeg, normed: false, hi, ..val })
            }
            _ => v,
        }
    }
}
