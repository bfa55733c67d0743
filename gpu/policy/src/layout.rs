//! Where each parameter of a model lies in one flat buffer, and what files call it.

use crate::config::{Architecture, ModelConfig};

/// Offsets are multiples of this many elements, so that every matrix is aligned for GEMM.
const ALIGN: i64 = 64;

/// One tensor as files know it: `rows` rows (or elements) of a fused parameter.
#[derive(Clone, Debug)]
pub struct Part {
    /// Hugging Face's name.
    pub name: String,
    /// Extent along the first dimension.
    pub rows: i64,
}

/// One (fused) parameter.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Shape of the whole.
    pub shape: Vec<i64>,
    /// What it is made of, in order of rows.
    pub parts: Vec<Part>,
    /// Weight decay applies: matrices only, not norms and biases.
    pub decay: bool,
    /// First element in the flat buffer.
    pub offset: i64,
    /// Standard deviation at random initialisation; `None` starts at `fill`.
    pub std: Option<f64>,
    pub(crate) fill: f64,
}

impl Spec {
    /// A matrix `[rows of all parts, cols]`, or a vector if there are no `cols`.
    pub(crate) fn new(parts: Vec<Part>, cols: Option<i64>, std: Option<f64>, fill: f64) -> Self {
        let rows = parts.iter().map(|p| p.rows).sum();
        let shape = std::iter::once(rows).chain(cols).collect();
        Spec { shape, parts, decay: cols.is_some(), offset: 0, std, fill }
    }

    /// Elements of the parameter.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Elements up to the next parameter.
    pub fn end(&self) -> i64 {
        self.offset + (self.numel() + ALIGN - 1) / ALIGN * ALIGN
    }

    /// Each part with its shape and its first element in the flat buffer.
    pub fn places(&self) -> impl Iterator<Item = (&Part, Vec<i64>, i64)> {
        let cols: i64 = self.shape[1..].iter().product();
        let mut offset = self.offset;
        self.parts.iter().map(move |part| {
            let mut shape = self.shape.clone();
            shape[0] = part.rows;
            let at = offset;
            offset += part.rows * cols;
            (part, shape, at)
        })
    }
}

/// Lays `specs` out one after the other, decayed ones first, so that decay is one operation.
pub(crate) fn place(specs: &mut [Spec]) {
    let mut offset = 0;
    for decay in [true, false] {
        for spec in specs.iter_mut().filter(|s| s.decay == decay) {
            spec.offset = offset;
            offset = spec.end();
        }
    }
}

/// Parameters of one layer, in the order of [`layout`].
pub(crate) fn per_layer(architecture: Architecture) -> usize {
    match architecture {
        Architecture::Llama => 6,
        Architecture::Qwen2 => 7,
        Architecture::Qwen3 => 8,
    }
}

/// The parameters of a model: the embedding, the layers, the last norm, and a head if it has
/// one of its own. Layers: norm, query-key-value matrix, its bias (Qwen2) or the norms of query
/// and key heads (Qwen3), output matrix, norm, gate-up matrix, down matrix.
pub fn layout(c: &ModelConfig) -> Vec<Spec> {
    let mut specs = Vec::new();
    let mut add = |names: &[(String, i64)], cols: Option<i64>, std: Option<f64>, fill: f64| {
        let parts = names.iter().map(|(n, rows)| Part { name: n.clone(), rows: *rows }).collect();
        specs.push(Spec::new(parts, cols, std, fill));
    };
    let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let (std, small) = (0.02, 0.02 / (2.0 * c.layers as f64).sqrt());
    add(&[("model.embed_tokens.weight".into(), c.vocab)], Some(c.hidden), Some(std), 0.0);
    for i in 0..c.layers {
        let n = |s: &str| format!("model.layers.{i}.{s}");
        let qkv = |s: &str| {
            ["q", "k", "v"]
                .map(|p| (n(&format!("self_attn.{p}_proj.{s}")), if p == "q" { q } else { kv }))
        };
        let up = ["gate", "up"].map(|p| (n(&format!("mlp.{p}_proj.weight")), c.ffn));
        add(&[(n("input_layernorm.weight"), c.hidden)], None, None, 1.0);
        add(&qkv("weight"), Some(c.hidden), Some(std), 0.0);
        match c.architecture {
            Architecture::Llama => {}
            Architecture::Qwen2 => add(&qkv("bias"), None, None, 0.0),
            Architecture::Qwen3 => {
                add(&[(n("self_attn.q_norm.weight"), c.head_dim)], None, None, 1.0);
                add(&[(n("self_attn.k_norm.weight"), c.head_dim)], None, None, 1.0);
            }
        }
        add(&[(n("self_attn.o_proj.weight"), c.hidden)], Some(q), Some(small), 0.0);
        add(&[(n("post_attention_layernorm.weight"), c.hidden)], None, None, 1.0);
        add(&up, Some(c.hidden), Some(std), 0.0);
        add(&[(n("mlp.down_proj.weight"), c.hidden)], Some(c.ffn), Some(small), 0.0);
    }
    add(&[("model.norm.weight".into(), c.hidden)], None, None, 1.0);
    if !c.tied {
        add(&[("lm_head.weight".into(), c.vocab)], Some(c.hidden), Some(std), 0.0);
    }
    place(&mut specs);
    specs
}
