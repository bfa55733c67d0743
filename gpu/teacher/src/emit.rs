//! The texts: module, kernel and the two answers.

use crate::finish::Output;
use crate::op::Shape;
use crate::state::Builder;
use crate::text::{has_word, no_numbers};

/// The source of the module.
pub fn module(b: &Builder, out: &Output) -> String {
    let mut s = String::from(
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\nclass Model(nn.Module):\n",
    );
    s += &constructor(b);
    s += &format!("\n    def forward(self, {}):\n", names(b));
    for line in b.lines.iter().filter(|l| !l.py.is_empty()) {
        s += &format!("        {}\n", line.py);
    }
    s += &format!("        return {}\n", out.ret);
    let inputs: Vec<String> = b
        .inputs
        .iter()
        .map(|i| {
            let dims: Vec<String> = i.shape.iter().map(usize::to_string).collect();
            format!("torch.randn({})", dims.join(", "))
        })
        .collect();
    s += &format!("\ndef get_inputs():\n    return [{}]\n", inputs.join(", "));
    let init = if uses_dim(b) { format!("[{}]", b.n) } else { "[]".to_owned() };
    s += &format!("\ndef get_init_inputs():\n    return {init}\n");
    s
}

fn uses_dim(b: &Builder) -> bool {
    b.init.iter().any(|l| l.contains("dim)") || l.contains("dim,"))
}

fn names(b: &Builder) -> String {
    b.inputs.iter().map(|i| i.name).collect::<Vec<_>>().join(", ")
}

fn constructor(b: &Builder) -> String {
    let args = if uses_dim(b) { "self, dim" } else { "self" };
    let mut s = format!("    def __init__({args}):\n        super().__init__()\n");
    for line in &b.init {
        s += &format!("        {line}\n");
    }
    s
}

/// Which of the three schemes the kernel follows: a rule of the module.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Flat,
    Row,
    Loop,
}

fn scheme(b: &Builder, out: &Output) -> Scheme {
    if out.scalar {
        Scheme::Loop
    } else if b.flat_ok && !out.col {
        Scheme::Flat
    } else {
        Scheme::Row
    }
}

/// The source of the kernel.
pub fn kernel(b: &Builder, out: &Output) -> String {
    let scheme = scheme(b, out);
    let body = kernel_body(b, out, scheme);
    let mut args: Vec<String> = b.inputs.iter().map(|i| format!("{}_ptr", i.name)).collect();
    args.extend(b.params.iter().map(|p| format!("{}_ptr", p.1)));
    args.push("out_ptr".to_owned());
    let sizes: &[&str] = match scheme {
        Scheme::Flat => &["n"],
        _ if has_word(&body, "M") => &["M", "N"],
        _ => &["N"],
    };
    args.extend(sizes.iter().map(|s| (*s).to_owned()));
    let mut s = String::from(
        "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n@triton.jit\n",
    );
    s += &format!("def kernel({}, BLOCK: tl.constexpr):\n{body}", args.join(", "));
    s += "\nclass ModelNew(nn.Module):\n";
    s += &constructor(b);
    s += &format!("\n    def forward(self, {}):\n", names(b));
    s += &launch(b, out, scheme, sizes);
    s
}

fn launch(b: &Builder, out: &Output, scheme: Scheme, sizes: &[&str]) -> String {
    let mut s = String::new();
    for i in &b.inputs {
        s += &format!("        {0} = {0}.contiguous()\n", i.name);
    }
    let mut args: Vec<String> = b.inputs.iter().map(|i| i.name.to_owned()).collect();
    args.extend(b.params.iter().map(|p| format!("self.{}", p.0)));
    args.push("out".to_owned());
    args.extend(sizes.iter().map(|s| (*s).to_owned()));
    let args = args.join(", ");
    if scheme == Scheme::Flat {
        s += "        n = x.numel()\n        out = torch.empty_like(x)\n";
        s += &format!("        kernel[(triton.cdiv(n, 1024),)]({args}, BLOCK=1024)\n");
        return s + "        return out\n";
    }
    let source = b.inputs.iter().find(|i| i.plain).unwrap_or(&b.inputs[0]);
    s += &format!("        {}\n", source.dims);
    let mut shape = out.shape.join(", ");
    if out.shape.len() == 1 {
        shape.push(',');
    }
    s += &format!("        out = torch.empty(({shape}), device=x.device)\n");
    let grid = if scheme == Scheme::Loop { "1" } else { "M" };
    s += &format!("        kernel[({grid},)]({args}, BLOCK=triton.next_power_of_2(N))\n");
    s + "        return out\n"
}

fn kernel_body(b: &Builder, out: &Output, scheme: Scheme) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut put = |indent: usize, text: &str| {
        lines.push(format!("{}{text}\n", " ".repeat(indent)));
    };
    match scheme {
        Scheme::Flat => {
            put(4, "cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)");
            put(4, "mask = cols < n");
        }
        Scheme::Row => {
            put(4, "row = tl.program_id(0)");
            put(4, "cols = tl.arange(0, BLOCK)");
            put(4, "mask = cols < N");
        }
        Scheme::Loop => {
            put(4, "cols = tl.arange(0, BLOCK)");
            put(4, "mask = cols < N");
        }
    }
    for text in params(b) {
        put(4, &text);
    }
    let mut indent = 4;
    if scheme == Scheme::Loop {
        for acc in &b.accs {
            put(4, &format!("{acc} = 0.0"));
        }
        put(4, "for row in range(0, M):");
        indent = 8;
    }
    for load in &b.loads {
        let load =
            if scheme == Scheme::Flat { load.replace("row * N + ", "") } else { load.clone() };
        put(indent, &load);
    }
    for line in b.lines.iter().filter(|l| !l.post) {
        line.tl.iter().for_each(|t| put(indent, t));
    }
    for line in b.lines.iter().filter(|l| l.post) {
        line.tl.iter().for_each(|t| put(4, t));
    }
    for (at, name) in &out.stores {
        put(4, &store(at, name, out, scheme));
    }
    lines.concat()
}

fn store(at: &str, name: &str, out: &Output, scheme: Scheme) -> String {
    if scheme == Scheme::Flat {
        return format!("tl.store(out_ptr + cols, {name}, mask=mask)");
    }
    let ptr = if at.is_empty() { "out_ptr".to_owned() } else { format!("out_ptr + {at}") };
    let mask = if out.col || out.scalar { "" } else { ", mask=mask" };
    format!("tl.store({ptr}, {name}{mask})")
}

/// Loads of parameters and of a weight given as an input.
fn params(b: &Builder) -> Vec<String> {
    let mut all: Vec<(&str, Shape)> = b.params.iter().map(|p| (p.1, p.2)).collect();
    if b.uses_w {
        all.insert(0, ("w", Shape::Mat));
    }
    let mut lines = Vec::new();
    if all.iter().any(|p| p.1 == Shape::Mat) {
        lines.push("tile = cols[:, None] * N + cols[None, :]".to_owned());
        lines.push("both = mask[:, None] & mask[None, :]".to_owned());
    }
    for (name, shape) in all {
        lines.push(match shape {
            Shape::One => format!("{name} = tl.load({name}_ptr)"),
            Shape::Vec => format!("{name} = tl.load({name}_ptr + cols, mask=mask, other=0.0)"),
            Shape::Mat => format!("{name} = tl.load({name}_ptr + tile, mask=both, other=0.0)"),
        });
    }
    lines
}

/// The reasoning before the module.
pub fn plan_text(b: &Builder, out: &Output) -> String {
    let kind = if out.scalar {
        "scalar"
    } else if out.col {
        "one number a row"
    } else {
        "rows"
    };
    let tracked = b.labels.join(", ");
    format!("Inputs: {}.\nOrder: {tracked}, then return {kind}.\n", names(b))
}

/// The reasoning before the kernel.
pub fn kernel_text(b: &Builder, out: &Output) -> String {
    let (tiling, reorder) = match scheme(b, out) {
        Scheme::Flat => (
            "flat blocks of 1024 elements over n.",
            "neighbouring elements in one block, coalesced access.",
        ),
        Scheme::Row => (
            "one program per row, BLOCK columns cover N.",
            "the row stays in registers, coalesced columns.",
        ),
        Scheme::Loop => (
            "one program loops over M rows, BLOCK columns cover N.",
            "fixed row order, coalesced columns.",
        ),
    };
    let mut loads: Vec<&str> = b.inputs.iter().map(|i| i.name).collect();
    loads.extend(b.params.iter().map(|p| p.1));
    format!(
        "Tiling: {tiling}\nFusion: {} in one kernel.\nPipelining: load {} before arithmetic.\nReordering: {reorder}\n",
        b.labels.join(", "),
        loads.join(", "),
    )
}

/// The graph without numbers and shapes.
pub fn signature(b: &Builder, out: &Output) -> String {
    let lines = b.init.iter().chain(b.lines.iter().map(|l| &l.py)).filter(|l| !l.is_empty());
    let body: Vec<String> = lines.map(|l| no_numbers(l)).collect();
    format!("{}->{}/{}", names(b), body.join(";"), out.shape.len())
}
