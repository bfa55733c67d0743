//! The table of APIs: element-wise operations, row operations, reducers and joiners.

use crate::op::{Kind, Mag, Need, Op, Shape, Sign};

const SIGMOID: &[&str] = &["{o} = tl.sigmoid({0})"];
const TANH: &[&str] = &[
    "{o} = tl.where(tl.abs({0}) < 0.05, {0} - {0} * {0} * {0} / 3.0, 2.0 * tl.sigmoid(2.0 * {0}) - 1.0)",
];
const RELU: &[&str] = &["{o} = tl.maximum({0}, 0.0)"];
const GELU: &[&str] = &["{o} = 0.5 * {0} * (1.0 + tl.erf({0} * 0.70710678))"];
const SILU: &[&str] = &["{o} = {0} * tl.sigmoid({0})"];
const ELU: &[&str] = &[
    "{o}_e = tl.where({0} > -0.05, {0} * (1.0 + {0} * (0.5 + {0} / 6.0)), tl.exp({0}) - 1.0)",
    "{o} = tl.where({0} > 0.0, {0}, {o}_e)",
];
const LEAKY: &[&str] = &["{o} = tl.where({0} > 0.0, {0}, {0} * {k})"];
const SOFTPLUS: &[&str] = &["{o} = tl.where({0} > 20.0, {0}, tl.log(1.0 + tl.exp({0})))"];
const SOFTSIGN: &[&str] = &["{o} = {0} / (1.0 + tl.abs({0}))"];
const MISH: &[&str] = &[
    "{o}_s = tl.where({0} > 20.0, {0}, tl.log(1.0 + tl.exp({0})))",
    "{o} = {0} * (2.0 * tl.sigmoid(2.0 * {o}_s) - 1.0)",
];
const CLAMP: &[&str] = &["{o} = tl.minimum(tl.maximum({0}, {k}), {j})"];
const HARDTANH: &[&str] = &["{o} = tl.minimum(tl.maximum({0}, -1.0), 1.0)"];
const HARDSWISH: &[&str] = &["{o} = {0} * tl.minimum(tl.maximum({0} + 3.0, 0.0), 6.0) / 6.0"];
const RELU6: &[&str] = &["{o} = tl.minimum(tl.maximum({0}, 0.0), 6.0)"];
const LOGSIGMOID: &[&str] = &["{o} = tl.minimum({0}, 0.0) - tl.log(1.0 + tl.exp(-tl.abs({0})))"];
const SOFTMAX: &[&str] =
    &["{o}_m = MAX({0})", "{o}_e = tl.exp({0} - {o}_m)", "{o} = {o}_e / SUM({o}_e)"];
const LOG_SOFTMAX: &[&str] =
    &["{o}_m = MAX({0})", "{o}_s = SUM(tl.exp({0} - {o}_m))", "{o} = {0} - {o}_m - tl.log({o}_s)"];
const LAYER_NORM: &[&str] = &[
    "{o}_m = SUM({0}) / N",
    "{o}_c = {0} - {o}_m",
    "{o}_v = SUM({o}_c * {o}_c) / N",
    "{o} = {o}_c * tl.rsqrt({o}_v + 1e-05)",
];
const LAYER_NORM_P: &[&str] = &[
    "{o}_m = SUM({0}) / N",
    "{o}_c = {0} - {o}_m",
    "{o}_v = SUM({o}_c * {o}_c) / N",
    "{o} = {o}_c * tl.rsqrt({o}_v + 1e-05) * norm_w + norm_b",
];
const GROUP_NORM_P: &[&str] = &[
    "{o}_m = SUM({0}) / N",
    "{o}_c = {0} - {o}_m",
    "{o}_v = SUM({o}_c * {o}_c) / N",
    "{o} = {o}_c * tl.rsqrt({o}_v + 1e-05) * gn_w + gn_b",
];
const RMS_NORM: &[&str] = &["{o}_v = SUM({0} * {0}) / N", "{o} = {0} * tl.rsqrt({o}_v + 1e-06)"];
const RMS_NORM_P: &[&str] =
    &["{o}_v = SUM({0} * {0}) / N", "{o} = {0} * tl.rsqrt({o}_v + 1e-06) * rms_w"];
const VAR: &[&str] = &["{o}_c = {0} - SUM({0}) / N", "{o} = SUM({o}_c * {o}_c) / (N - 1)"];
const STD: &[&str] = &["{o}_c = {0} - SUM({0}) / N", "{o} = tl.sqrt(SUM({o}_c * {o}_c) / (N - 1))"];
const ROW_W: &[&str] = &["{o} = tl.sum({1} * tl.where(mask, {0}, 0.0)[None, :], axis=1) * 0.1"];
const COL_W: &[&str] = &["{o} = tl.sum({1} * tl.where(mask, {0}, 0.0)[:, None], axis=0) * 0.1"];

const SLOPES: &[&str] = &["0.01", "0.1", "0.2"];
const SHRINK: &[&str] = &["0.1", "0.2", "0.3"];

const fn el(name: &'static str, call: &'static str, tl: &'static [&'static str]) -> Op {
    Op::new(name, Kind::Elem, call, tl)
}

const fn act(
    name: &'static str,
    call: &'static str,
    init: &'static str,
    tl: &'static [&'static str],
) -> Op {
    Op::new(name, Kind::Elem, call, tl).init(init)
}

const fn row(name: &'static str, call: &'static str, tl: &'static [&'static str]) -> Op {
    Op::new(name, Kind::Row, call, tl).fresh()
}

const fn red(name: &'static str, call: &'static str, tl: &'static [&'static str]) -> Op {
    Op::new(name, Kind::Reduce, call, tl).fresh()
}

const fn join(name: &'static str, call: &'static str, tl: &'static [&'static str]) -> Op {
    Op::new(name, Kind::Join2, call, tl)
}

const fn sig(op: Op) -> Op {
    op.lim(100.0).mag(Mag::To(1.0, 0.5)).sign(Sign::NonNeg).flat()
}

const fn relu(op: Op) -> Op {
    op.need(Need::Signed).sign(Sign::NonNeg)
}

const fn softmax(op: Op) -> Op {
    op.lim(80.0).mag(Mag::To(1.0, 0.02)).sign(Sign::NonNeg).flat().normed().fresh()
}

const fn log_softmax(op: Op) -> Op {
    op.lim(80.0).mag(Mag::To(90.0, 4.0)).sign(Sign::NonPos).flat().normed().fresh()
}

const fn norm(op: Op) -> Op {
    op.mag(Mag::To(8.0, 1.0)).normed().fresh()
}

/// APIs that work on rows in registers.
pub static COMPUTE: &[Op] = &[
    sig(el("torch.sigmoid", "torch.sigmoid({0})", SIGMOID)),
    el("torch.tanh", "torch.tanh({0})", TANH).sign(Sign::Keep).lim(100.0).mag(Mag::To(1.0, 0.6)),
    relu(el("torch.relu", "torch.relu({0})", RELU)),
    el("torch.exp", "torch.exp({0})", &["{o} = tl.exp({0})"])
        .lim(10.0)
        .mag(Mag::Exp)
        .sign(Sign::NonNeg)
        .flat(),
    el("torch.exp2", "torch.exp2({0})", &["{o} = tl.exp2({0})"])
        .lim(10.0)
        .mag(Mag::Exp)
        .sign(Sign::NonNeg)
        .flat(),
    el(
        "torch.expm1",
        "torch.expm1({0})",
        &["{o} = tl.where(tl.abs({0}) < 0.05, {0} * (1.0 + {0} * (0.5 + {0} / 6.0)), tl.exp({0}) - 1.0)"],
    )
    .lim(10.0)
    .sign(Sign::Keep)
    .mag(Mag::Exp),
    el("torch.log", "torch.log({0})", &["{o} = tl.log({0})"])
        .need(Need::Pos)
        .mag(Mag::To(8.0, 1.0))
        .sign(Sign::Unknown)
        .flat(),
    el(
        "torch.log1p",
        "torch.log1p({0})",
        &["{o}_u = 1.0 + {0}", "{o} = tl.log({o}_u) - ({o}_u - 1.0 - {0}) / {o}_u"],
    )
    .need(Need::NonNeg)
    .mag(Mag::To(10.0, 0.5))
    .sign(Sign::NonNeg),
    el("torch.sqrt", "torch.sqrt({0})", &["{o} = tl.sqrt({0})"])
        .need(Need::Pos)
        .mag(Mag::To(45.0, 1.0))
        .sign(Sign::Pos)
        .flat(),
    el("torch.rsqrt", "torch.rsqrt({0})", &["{o} = tl.rsqrt({0})"])
        .need(Need::Pos)
        .mag(Mag::To(3.0, 1.0))
        .sign(Sign::NonNeg)
        .flat(),
    el("torch.reciprocal", "torch.reciprocal({0})", &["{o} = 1.0 / {0}"])
        .need(Need::Pos)
        .mag(Mag::To(10.0, 1.0))
        .sign(Sign::NonNeg)
        .flat(),
    el("torch.square", "torch.square({0})", &["{o} = {0} * {0}"])
        .need(Need::Signed)
        .lim(100.0)
        .mag(Mag::Sq)
        .sign(Sign::NonNeg),
    el("torch.pow", "torch.pow({0}, {k})", &["{o} = {j}"])
        .need(Need::Signed)
        .sign(Sign::Unknown)
        .consts(&["2|{0} * {0}", "3|{0} * {0} * {0}"])
        .lim(50.0)
        .mag(Mag::Sq),
    el("torch.abs", "torch.abs({0})", &["{o} = tl.abs({0})"])
        .need(Need::Signed)
        .sign(Sign::NonNeg),
    el("torch.neg", "torch.neg({0})", &["{o} = -{0}"]).sign(Sign::Flip),
    el("torch.sin", "torch.sin({0})", &["{o} = tl.sin({0})"]).lim(20.0).mag(Mag::To(1.0, 0.6)),
    el("torch.cos", "torch.cos({0})", &["{o} = tl.cos({0})"])
        .lim(20.0)
        .mag(Mag::To(1.0, 0.6))
        .sign(Sign::Unknown)
        .flat(),
    el("torch.erf", "torch.erf({0})", &["{o} = tl.erf({0})"]).sign(Sign::Keep).lim(100.0).mag(Mag::To(1.0, 0.6)),
    el("torch.clamp", "torch.clamp({0}, {k}, {j})", CLAMP)
        .need(Need::Signed)
        .consts(&["-1.0|1.0", "-0.5|0.5", "-2.0|2.0", "-1.0|0.5", "-0.5|1.0"])
        .normed()
        .mag(Mag::To(2.0, 0.6)),
    Op::new(
        "torch.sign",
        Kind::Raw,
        "torch.sign({0})",
        &["{o} = tl.where({0} > 0.0, 1.0, tl.where({0} < 0.0, -1.0, 0.0))"],
    )
    .normed()
    .sign(Sign::Unknown)
    .mag(Mag::To(1.0, 1.0)),
    Op::new("torch.floor", Kind::Raw, "torch.floor({0})", &["{o} = tl.floor({0})"]),
    Op::new(
        "torch.nn.functional.hardshrink",
        Kind::Raw,
        "F.hardshrink({0}, {k})",
        &["{o} = tl.where(tl.abs({0}) > {k}, {0}, 0.0)"],
    )
    .consts(SHRINK),
    el("torch.tril", "torch.tril({0})", &["{o} = tl.where(cols <= row, {0}, 0.0)"]).rowidx(),
    el("torch.triu", "torch.triu({0})", &["{o} = tl.where(cols >= row, {0}, 0.0)"]).rowidx(),
    relu(el("torch.nn.functional.relu", "F.relu({0})", RELU)),
    el("torch.nn.functional.gelu", "F.gelu({0})", GELU).need(Need::Signed),
    el("torch.nn.functional.silu", "F.silu({0})", SILU).need(Need::Signed),
    el("torch.nn.functional.elu", "F.elu({0})", ELU).need(Need::Signed),
    el(
        "torch.nn.functional.selu",
        "F.selu({0})",
        &[
            "{o}_e = tl.where({0} > -0.05, {0} * (1.0 + {0} * (0.5 + {0} / 6.0)), tl.exp({0}) - 1.0)",
            "{o} = 1.050701 * tl.where({0} > 0.0, {0}, 1.6732632 * {o}_e)",
        ],
    )
    .need(Need::Signed)
    .mag(Mag::Mul(1.05)),
    el(
        "torch.nn.functional.celu",
        "F.celu({0}, {k})",
        &[
            "{o}_k = {0} / {k}",
            "{o}_e = tl.where({o}_k > -0.05, {o}_k * (1.0 + {o}_k * (0.5 + {o}_k / 6.0)), tl.exp({o}_k) - 1.0)",
            "{o} = tl.where({0} > 0.0, {0}, {k} * {o}_e)",
        ],
    )
    .need(Need::Signed)
    .consts(&["0.5", "2.0"]),
    el("torch.nn.functional.leaky_relu", "F.leaky_relu({0}, {k})", LEAKY)
        .need(Need::Signed)
        .consts(SLOPES),
    el("torch.nn.functional.softplus", "F.softplus({0})", SOFTPLUS).sign(Sign::NonNeg).flat(),
    el("torch.nn.functional.softsign", "F.softsign({0})", SOFTSIGN).sign(Sign::Keep).lim(100.0).mag(Mag::To(1.0, 0.5)),
    el("torch.nn.functional.mish", "F.mish({0})", MISH).need(Need::Signed),
    el("torch.nn.functional.hardtanh", "F.hardtanh({0})", HARDTANH)
        .normed()
        .need(Need::Signed)
        .mag(Mag::To(1.0, 0.6)),
    el("torch.nn.functional.hardswish", "F.hardswish({0})", HARDSWISH).need(Need::Signed),
    el(
        "torch.nn.functional.hardsigmoid",
        "F.hardsigmoid({0})",
        &["{o} = tl.minimum(tl.maximum({0} + 3.0, 0.0), 6.0) / 6.0"],
    )
    .need(Need::Signed)
    .mag(Mag::To(1.0, 0.5))
    .sign(Sign::NonNeg)
    .flat(),
    relu(el("torch.nn.functional.relu6", "F.relu6({0})", RELU6)).mag(Mag::To(6.0, 0.6)),
    el("torch.nn.functional.logsigmoid", "F.logsigmoid({0})", LOGSIGMOID)
        .lim(100.0)
        .sign(Sign::NonPos)
        .flat(),
    el(
        "torch.nn.functional.softshrink",
        "F.softshrink({0}, {k})",
        &["{o} = {0} - tl.minimum(tl.maximum({0}, -{k}), {k})"],
    )
    .need(Need::Signed)
    .consts(SHRINK),
    relu(act("torch.nn.ReLU", "self.relu({0})", "self.relu = nn.ReLU()", RELU)),
    act("torch.nn.GELU", "self.gelu({0})", "self.gelu = nn.GELU()", GELU).need(Need::Signed),
    act("torch.nn.SiLU", "self.silu({0})", "self.silu = nn.SiLU()", SILU).need(Need::Signed),
    act("torch.nn.ELU", "self.elu({0})", "self.elu = nn.ELU()", ELU).need(Need::Signed),
    act("torch.nn.LeakyReLU", "self.leaky({0})", "self.leaky = nn.LeakyReLU({k})", LEAKY)
        .need(Need::Signed)
        .consts(SLOPES),
    act("torch.nn.Softplus", "self.softplus({0})", "self.softplus = nn.Softplus()", SOFTPLUS)
        .sign(Sign::NonNeg)
        .flat(),
    act("torch.nn.Softsign", "self.softsign({0})", "self.softsign = nn.Softsign()", SOFTSIGN)
        .sign(Sign::Keep)
        .lim(100.0)
        .mag(Mag::To(1.0, 0.5)),
    act("torch.nn.Mish", "self.mish({0})", "self.mish = nn.Mish()", MISH).need(Need::Signed),
    act("torch.nn.Hardtanh", "self.hardtanh({0})", "self.hardtanh = nn.Hardtanh()", HARDTANH)
        .normed()
        .need(Need::Signed)
        .mag(Mag::To(1.0, 0.6)),
    act(
        "torch.nn.Hardswish",
        "self.hardswish({0})",
        "self.hardswish = nn.Hardswish()",
        HARDSWISH,
    )
    .need(Need::Signed),
    relu(act("torch.nn.ReLU6", "self.relu6({0})", "self.relu6 = nn.ReLU6()", RELU6))
        .mag(Mag::To(6.0, 0.6)),
    act(
        "torch.nn.LogSigmoid",
        "self.logsigmoid({0})",
        "self.logsigmoid = nn.LogSigmoid()",
        LOGSIGMOID,
    )
    .lim(100.0)
    .sign(Sign::NonPos)
    .flat(),
    act("torch.nn.Tanh", "self.tanh({0})", "self.tanh = nn.Tanh()", TANH)
        .sign(Sign::Keep)
        .lim(100.0)
        .mag(Mag::To(1.0, 0.6)),
    sig(act("torch.nn.Sigmoid", "self.sigmoid({0})", "self.sigmoid = nn.Sigmoid()", SIGMOID)),
    act(
        "torch.nn.PReLU",
        "self.prelu({0})",
        "self.prelu = nn.PReLU()",
        &["{o} = tl.where({0} > 0.0, {0}, {0} * prelu_w)"],
    )
    .need(Need::Signed)
    .sign(Sign::Unknown)
    .params(&[("prelu.weight", "prelu_w", Shape::One)]),
    softmax(row("torch.softmax", "torch.softmax({0}, dim={d})", SOFTMAX)),
    softmax(row("torch.nn.functional.softmax", "F.softmax({0}, dim={d})", SOFTMAX)),
    softmax(row("torch.nn.Softmax", "self.softmax({0})", SOFTMAX))
        .init("self.softmax = nn.Softmax(dim={d})"),
    log_softmax(row("torch.log_softmax", "torch.log_softmax({0}, dim={d})", LOG_SOFTMAX)),
    log_softmax(row("torch.nn.functional.log_softmax", "F.log_softmax({0}, dim={d})", LOG_SOFTMAX)),
    row(
        "torch.nn.functional.normalize",
        "F.normalize({0}, dim={d})",
        &["{o}_n = tl.sqrt(SUM({0} * {0}))", "{o} = {0} / tl.maximum({o}_n, 1e-12)"],
    )
    .mag(Mag::To(1.0, 0.15))
    .sign(Sign::Keep)
    .normed(),
    norm(row("torch.nn.functional.layer_norm", "F.layer_norm({0}, {0}.shape[-1:])", LAYER_NORM)),
    norm(row("torch.nn.functional.rms_norm", "F.rms_norm({0}, {0}.shape[-1:], eps=1e-06)", RMS_NORM)).sign(Sign::Keep),
    norm(row("torch.nn.LayerNorm", "self.norm({0})", LAYER_NORM_P))
        .init("self.norm = nn.LayerNorm(dim)")
        .params(&[("norm.weight", "norm_w", Shape::Vec), ("norm.bias", "norm_b", Shape::Vec)]),
    norm(row("torch.nn.RMSNorm", "self.rms({0})", RMS_NORM_P))
        .init("self.rms = nn.RMSNorm(dim, eps=1e-06)")
        .params(&[("rms.weight", "rms_w", Shape::Vec)])
        .sign(Sign::Keep),
    norm(row("torch.nn.GroupNorm", "self.gn({0})", GROUP_NORM_P))
        .init("self.gn = nn.GroupNorm(1, dim)")
        .params(&[("gn.weight", "gn_w", Shape::Vec), ("gn.bias", "gn_b", Shape::Vec)]),
    row(
        "torch.cumsum",
        "torch.cumsum({0}, dim={d})",
        &["{o} = tl.cumsum(tl.where(mask, {0}, 0.0), axis=0)"],
    )
    .sign(Sign::Keep)
    .mag(Mag::Width),
    red("torch.sum", "torch.sum({0}, dim={d}, keepdim=True)", &["{o} = SUM({0})"]).mag(Mag::Width),
    red("torch.mean", "torch.mean({0}, dim={d}, keepdim=True)", &["{o} = SUM({0}) / N"])
        .mag(Mag::Mean),
    red("torch.amax", "torch.amax({0}, dim={d}, keepdim=True)", &["{o} = MAX({0})"])
        .need(Need::Signed),
    red("torch.amin", "torch.amin({0}, dim={d}, keepdim=True)", &["{o} = MIN({0})"])
        .need(Need::Signed),
    red("torch.var", "torch.var({0}, dim={d}, keepdim=True)", VAR)
        .lim(100.0)
        .mag(Mag::Sq)
        .sign(Sign::NonNeg),
    red("torch.std", "torch.std({0}, dim={d}, keepdim=True)", STD).sign(Sign::NonNeg),
    red(
        "torch.logsumexp",
        "torch.logsumexp({0}, dim={d}, keepdim=True)",
        &["{o}_m = MAX({0})", "{o} = {o}_m + tl.log(SUM(tl.exp({0} - {o}_m)))"],
    )
    .lim(100.0)
    .flat(),
    red("torch.norm", "torch.norm({0}, dim={d}, keepdim=True)", &["{o} = tl.sqrt(SUM({0} * {0}))"])
        .sign(Sign::NonNeg)
        .mag(Mag::Mul(7.0)),
    Op::new(
        "torch.nn.functional.cosine_similarity",
        Kind::Reduce2,
        "F.cosine_similarity({0}, {1}, dim={d})",
        &[
            "{o}_a = tl.maximum(tl.sqrt(SUM({0} * {0})), 1e-08)",
            "{o}_b = tl.maximum(tl.sqrt(SUM({1} * {1})), 1e-08)",
            "{o} = SUM({0} * {1}) / ({o}_a * {o}_b)",
        ],
    )
    .fresh()
    .mag(Mag::To(1.0, 0.15)),
    Op::new(
        "torch.nn.functional.pairwise_distance",
        Kind::Reduce2,
        "F.pairwise_distance({0}, {1})",
        &["{o}_d = {0} - {1} + 1e-06", "{o} = tl.sqrt(SUM({o}_d * {o}_d))"],
    )
    .fresh()
    .sign(Sign::NonNeg)
    .mag(Mag::Mul(10.0)),
    join("torch.add", "torch.add({0}, {1})", &["{o} = {0} + {1}"]).mag(Mag::Mul(2.0)),
    join("torch.sub", "torch.sub({0}, {1})", &["{o} = {0} - {1}"]).mag(Mag::Mul(2.0)),
    join("torch.mul", "torch.mul({0}, {1})", &["{o} = {0} * {1}"]).lim(50.0).mag(Mag::Sq),
    join("torch.div", "torch.div({0}, {1})", &["{o} = {0} / {1}"])
        .need2(Need::Pos)
        .mag(Mag::Mul(5.0)),
    join("torch.maximum", "torch.maximum({0}, {1})", &["{o} = tl.maximum({0}, {1})"]),
    join("torch.minimum", "torch.minimum({0}, {1})", &["{o} = tl.minimum({0}, {1})"]),
    join("torch.lerp", "torch.lerp({0}, {1}, {k})", &["{o} = {0} + {k} * ({1} - {0})"])
        .consts(&["0.2", "0.3", "0.5", "0.7"]),
    join("torch.hypot", "torch.hypot({0}, {1})", &["{o} = tl.sqrt({0} * {0} + {1} * {1})"])
        .sign(Sign::NonNeg)
        .mag(Mag::Mul(1.4)),
    join(
        "torch.logaddexp",
        "torch.logaddexp({0}, {1})",
        &["{o} = tl.maximum({0}, {1}) + tl.log(1.0 + tl.exp(-tl.abs({0} - {1})))"],
    )
    .lim(100.0)
    .flat(),
    Op::new(
        "torch.where",
        Kind::Where,
        "torch.where({2} > 0.0, {0}, {1})",
        &["{o} = tl.where({2} > 0.0, {0}, {1})"],
    ),
    Op::new(
        "torch.addcmul",
        Kind::Join3,
        "torch.addcmul({0}, {1}, {2}, value={k})",
        &["{o} = {0} + {k} * {1} * {2}"],
    )
    .consts(&["0.5", "0.2", "2.0"])
    .lim(50.0)
    .mag(Mag::Sq),
    Op::new(
        "torch.addcdiv",
        Kind::Join3,
        "torch.addcdiv({0}, {1}, {2}, value={k})",
        &["{o} = {0} + {k} * {1} / {2}"],
    )
    .consts(&["0.5", "0.2", "2.0"])
    .need2(Need::Pos)
    .mag(Mag::Mul(5.0)),
    Op::new("torch.nn.Linear", Kind::Linear, "self.fc({0})", &[
        "{o} = tl.sum(fc_w * tl.where(mask, {0}, 0.0)[None, :], axis=1) + fc_b",
    ])
    .init("self.fc = nn.Linear(dim, dim)")
    .params(&[("fc.weight", "fc_w", Shape::Mat), ("fc.bias", "fc_b", Shape::Vec)])
    .mag(Mag::Mul(2.0)),
    Op::new("torch.nn.functional.linear", Kind::Linear, "F.linear({0}, {1}) * 0.1", ROW_W)
        .lim(100.0)
        .mag(Mag::MatMul),
    Op::new("torch.matmul", Kind::Linear, "torch.matmul({0}, {1}) * 0.1", COL_W)
        .lim(100.0)
        .mag(Mag::MatMul),
    Op::new("torch.mm", Kind::Linear, "torch.mm({0}, {1}) * 0.1", COL_W)
        .lim(100.0)
        .mag(Mag::MatMul),
    Op::new("torch.addmm", Kind::AddMm, "torch.addmm({2}, {0}, {1}, alpha=0.1)", &[
        "{o} = {2} + 0.1 * tl.sum({1} * tl.where(mask, {0}, 0.0)[:, None], axis=0)",
    ])
    .lim(100.0)
    .mag(Mag::MatMul),
];

const fn shape(name: &'static str, kind: Kind, call: &'static str) -> Op {
    Op::new(name, kind, call, &[])
}

const fn loss(
    name: &'static str,
    call: &'static str,
    init: &'static str,
    tl: &'static [&'static str],
) -> Op {
    Op::new(name, Kind::Loss, call, tl).init(init).lim(200.0)
}

const MSE: &[&str] = &["{o} += SUM(({0} - {1}) * ({0} - {1}))", "{o} = {o} / (M * N)"];
const L1: &[&str] = &["{o} += SUM(tl.abs({0} - {1}))", "{o} = {o} / (M * N)"];
const SMOOTH: &[&str] = &[
    "{o}_d = tl.abs({0} - {1})",
    "{o} += SUM(tl.where({o}_d < 1.0, 0.5 * {o}_d * {o}_d, {o}_d - 0.5))",
    "{o} = {o} / (M * N)",
];
const BCE: &[&str] = &[
    "{o}_l = tl.maximum({0}, 0.0) - {0} * {1} + tl.log(1.0 + tl.exp(-tl.abs({0})))",
    "{o} += SUM({o}_l)",
    "{o} = {o} / (M * N)",
];

/// APIs that move data, and losses (their last kernel line comes after the loop over rows).
pub static SHAPE: &[Op] = &[
    shape("torch.cat", Kind::Cat, "torch.cat([{0}, {1}], dim={d})"),
    shape("torch.stack", Kind::Stack, "torch.stack([{0}, {1}], dim={k})").consts(&["0", "1"]),
    shape("torch.chunk", Kind::Halve, "torch.chunk({0}, 2, dim={d})"),
    shape("torch.split", Kind::Halve, "torch.split({0}, {0}.shape[1] // 2, dim={d})"),
    shape("torch.nn.functional.glu", Kind::Glu, "F.glu({0}, dim={d})"),
    shape("torch.transpose", Kind::Transpose, "torch.transpose({0}, 0, 1)"),
    shape("torch.permute", Kind::Transpose, "torch.permute({0}, (1, 0))"),
    shape("torch.flatten", Kind::Flatten, "torch.flatten({0})"),
    shape("torch.unsqueeze", Kind::Unsqueeze, "torch.unsqueeze({0}, {k})").consts(&["0", "1"]),
    shape("torch.squeeze", Kind::View, "torch.squeeze({0}, 1)"),
    shape("torch.flip", Kind::View, "torch.flip({0}, dims=[{d}])"),
    shape("torch.roll", Kind::View, "torch.roll({0}, {k}, dims={d})").consts(&["1", "2", "3"]),
    shape("torch.narrow", Kind::View, "torch.narrow({0}, 1, {k}, {0}.shape[1] - {j})")
        .consts(&["2|4", "4|8", "0|4", "4|4"]),
    shape("torch.nn.functional.pad", Kind::View, "F.pad({0}, ({k}, 0))").consts(&["2", "4"]),
    loss("torch.nn.functional.mse_loss", "F.mse_loss({0}, {1})", "", MSE),
    loss("torch.nn.functional.l1_loss", "F.l1_loss({0}, {1})", "", L1),
    loss("torch.nn.functional.smooth_l1_loss", "F.smooth_l1_loss({0}, {1})", "", SMOOTH),
    loss("torch.nn.functional.huber_loss", "F.huber_loss({0}, {1})", "", SMOOTH),
    loss(
        "torch.nn.functional.kl_div",
        "F.kl_div({0}, {1}, reduction=\"batchmean\")",
        "",
        &["{o} += SUM({1} * (tl.log({1}) - {0}))", "{o} = {o} / M"],
    )
    .need2(Need::Pos),
    loss(
        "torch.nn.functional.binary_cross_entropy_with_logits",
        "F.binary_cross_entropy_with_logits({0}, {1})",
        "",
        BCE,
    ),
    loss(
        "torch.nn.functional.cross_entropy",
        "F.cross_entropy({0}, {1})",
        "",
        &[
            "{o}_m = MAX({0})",
            "{o}_s = tl.log(SUM(tl.exp({0} - {o}_m)))",
            "{o} -= SUM({1} * ({0} - {o}_m - {o}_s))",
            "{o} = {o} / M",
        ],
    )
    .lim(100.0)
    .need2(Need::NonNeg),
    loss(
        "torch.nn.functional.poisson_nll_loss",
        "F.poisson_nll_loss({0}, {1})",
        "",
        &["{o} += SUM(tl.exp({0}) - {1} * {0})", "{o} = {o} / (M * N)"],
    )
    .lim(10.0),
    loss("torch.nn.MSELoss", "self.mse({0}, {1})", "self.mse = nn.MSELoss()", MSE),
    loss("torch.nn.L1Loss", "self.l1({0}, {1})", "self.l1 = nn.L1Loss()", L1),
    loss(
        "torch.nn.SmoothL1Loss",
        "self.smooth({0}, {1})",
        "self.smooth = nn.SmoothL1Loss()",
        SMOOTH,
    ),
    loss("torch.nn.HuberLoss", "self.huber({0}, {1})", "self.huber = nn.HuberLoss()", SMOOTH),
    loss(
        "torch.nn.BCEWithLogitsLoss",
        "self.bce({0}, {1})",
        "self.bce = nn.BCEWithLogitsLoss()",
        BCE,
    ),
];
