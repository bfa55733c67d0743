//! What one API is to the composer: its texts and the properties that keep a module sane.

/// How an API takes part in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Element by element, row to row.
    Elem,
    /// Element by element, but discontinuous: applied to an input only.
    Raw,
    /// Row to row with a reduction inside (softmax, norms).
    Row,
    /// Two operands to one row.
    Join2,
    /// Three operands to one row.
    Join3,
    /// `torch.where` on the sign of an input.
    Where,
    /// Row to one number.
    Reduce,
    /// Two rows to one number.
    Reduce2,
    /// A linear map of the row (`nn.Linear` or a weight given as an input).
    Linear,
    /// `torch.addmm`: a linear map plus a row.
    AddMm,
    /// A view of an input (flip, roll, narrow, pad, squeeze).
    View,
    /// Splits an input in two halves.
    Halve,
    /// `F.glu`: splits an input and gates one half.
    Glu,
    /// `torch.cat`.
    Cat,
    /// `torch.stack`.
    Stack,
    /// Swaps rows and columns.
    Transpose,
    /// `torch.flatten`.
    Flatten,
    /// `torch.unsqueeze`.
    Unsqueeze,
    /// Two rows to one scalar for the whole module.
    Loss,
}

/// What an operand must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Anything.
    None,
    /// Values of both signs.
    Signed,
    /// Values of at least about 0.1.
    Pos,
    /// Values of at least 0.
    NonNeg,
}

/// Known sign of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Both signs occur.
    Any,
    /// At least 0.
    NonNeg,
    /// At least about 0.1.
    Pos,
    /// At most 0.
    NonPos,
    /// One sign or nearly so, not known which.
    Unknown,
    /// As the operand (only as a rule of an operation).
    Keep,
    /// Opposite to the operand (only as a rule of an operation).
    Flip,
}

/// How an operation changes magnitudes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mag {
    /// Not at all.
    Same,
    /// To a fixed largest and typical magnitude.
    To(f32, f32),
    /// By a factor.
    Mul(f32),
    /// Squares it.
    Sq,
    /// Takes its exponential.
    Exp,
    /// Multiplies by the row width (largest) and its root (typical).
    Width,
    /// A product with a matrix that is itself an input.
    MatMul,
    /// Divides the typical magnitude by the root of the row width.
    Mean,
}

/// One parameter that an `nn` module holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One number.
    One,
    /// One number a column.
    Vec,
    /// A square matrix.
    Mat,
}

/// One API: texts of the module and of the kernel, and its properties.
///
/// Placeholders: `{o}` result, `{0}` `{1}` `{2}` operands, `{k}` `{j}` chosen constants, `{d}` the
/// last axis, `SUM(..)`, `MAX(..)`, `MIN(..)` masked row reductions.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Full name, as in the prompt.
    pub name: &'static str,
    /// Role in a module.
    pub kind: Kind,
    /// The Python call.
    pub call: &'static str,
    /// The line of `__init__`, or nothing.
    pub init: &'static str,
    /// Parameters: attribute path, kernel name, shape.
    pub params: &'static [(&'static str, &'static str, Shape)],
    /// The kernel lines.
    pub tl: &'static [&'static str],
    /// Choices of constants, `k` or `k|j`.
    pub consts: &'static [&'static str],
    /// What the first operand must be.
    pub need: Need,
    /// What the last operand must be.
    pub need2: Need,
    /// Largest magnitude the operands may have.
    pub lim: f32,
    /// Change of magnitude.
    pub mag: Mag,
    /// Sign of the result.
    pub sign: Sign,
    /// Whether the result is offset from zero, so that small inputs leave it nearly constant.
    pub flat: bool,
    /// Whether the operand must be neither offset nor normalised.
    pub fresh: bool,
    /// Whether the result has a fixed sum or norm along the row.
    pub normed: bool,
    /// Whether the kernel text needs the row index.
    pub rowidx: bool,
}

impl Op {
    /// An operation with default properties.
    pub const fn new(
        name: &'static str,
        kind: Kind,
        call: &'static str,
        tl: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            kind,
            call,
            init: "",
            params: &[],
            tl,
            consts: &[],
            need: Need::None,
            need2: Need::None,
            lim: 2000.0,
            mag: Mag::Same,
            sign: Sign::Any,
            flat: false,
            fresh: false,
            normed: false,
            rowidx: false,
        }
    }

    /// Held by the module: its `__init__` line.
    pub const fn init(mut self, line: &'static str) -> Self {
        self.init = line;
        self
    }

    /// Its parameters.
    pub const fn params(mut self, p: &'static [(&'static str, &'static str, Shape)]) -> Self {
        self.params = p;
        self
    }

    /// Choices of constants.
    pub const fn consts(mut self, c: &'static [&'static str]) -> Self {
        self.consts = c;
        self
    }

    /// What the first operand must be.
    pub const fn need(mut self, need: Need) -> Self {
        self.need = need;
        self
    }

    /// What the last operand must be.
    pub const fn need2(mut self, need: Need) -> Self {
        self.need2 = need;
        self
    }

    /// Largest operand.
    pub const fn lim(mut self, lim: f32) -> Self {
        self.lim = lim;
        self
    }

    /// Change of magnitude.
    pub const fn mag(mut self, mag: Mag) -> Self {
        self.mag = mag;
        self
    }

    /// Sign of the result.
    pub const fn sign(mut self, sign: Sign) -> Self {
        self.sign = sign;
        self
    }

    /// The result is offset from zero.
    pub const fn flat(mut self) -> Self {
        self.flat = true;
        self
    }

    /// The operand must be neither offset nor normalised.
    pub const fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }

    /// The result has a fixed sum or norm.
    pub const fn normed(mut self) -> Self {
        self.normed = true;
        self
    }

    /// The kernel needs the row index.
    pub const fn rowidx(mut self) -> Self {
        self.rowidx = true;
        self
    }

    /// The last part of the name.
    pub fn label(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }
}
