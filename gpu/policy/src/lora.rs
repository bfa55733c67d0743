//! LoRA: small matrices beside the frozen ones of a model, `y = W x + (alpha / r) B A dropout(x)`.

use std::cell::Cell;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::error::{Error, Result};
use crate::gradients::Sink;
use crate::layout::{Part, Spec, place};
use crate::linear::Proj;
use crate::model::Model;
use crate::params::{Params, initial};

/// A matrix that can have an adapter, by Hugging Face's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    /// Query.
    #[serde(rename = "q_proj")]
    Q,
    /// Key.
    #[serde(rename = "k_proj")]
    K,
    /// Value.
    #[serde(rename = "v_proj")]
    V,
    /// Attention's output.
    #[serde(rename = "o_proj")]
    O,
    /// Gate.
    #[serde(rename = "gate_proj")]
    Gate,
    /// Up.
    #[serde(rename = "up_proj")]
    Up,
    /// Down.
    #[serde(rename = "down_proj")]
    Down,
}

/// All targets, in the order of the layer.
pub const TARGETS: [Target; 7] =
    [Target::Q, Target::K, Target::V, Target::O, Target::Gate, Target::Up, Target::Down];

/// Settings of an adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rank.
    pub r: i64,
    /// The product is multiplied by `alpha / r`.
    pub alpha: f64,
    /// Share of inputs that training leaves out.
    #[serde(default)]
    pub dropout: f64,
    /// Which matrices.
    pub targets: Vec<Target>,
}

/// One adapted matrix: rows of a fused matrix and places among the adapter's parameters.
struct Piece {
    layer: usize,
    proj: Proj,
    row: i64,
    rows: i64,
    /// `[r, in]`; `B` `[rows, r]` follows.
    a: usize,
}

/// The adapter of a model.
pub struct Adapter {
    /// Its settings.
    pub lora: Lora,
    /// Its matrices; what trains.
    pub params: Params,
    pieces: Vec<Piece>,
    /// It takes part; off, the model is its base.
    on: Cell<bool>,
    /// Seed of the dropout of the pass at hand; `None` leaves nothing out.
    seed: Cell<Option<u64>>,
    /// The fused matrices before merging, while the adapter is merged.
    before: Option<Vec<(usize, Tensor)>>,
}

impl Adapter {
    /// A new adapter: `A` random from `seed`, `B` zero, so that it changes nothing yet.
    ///
    /// # Errors
    /// Settings that make no sense.
    pub fn new(model: &Model, lora: Lora, seed: u64) -> Result<Self> {
        let refuse = |text: &str| Err(Error::Request(format!("lora: {text}")));
        let sound = lora.r >= 1 && lora.alpha > 0.0;
        if !sound || !(0.0..1.0).contains(&lora.dropout) {
            return refuse("r and alpha must be positive, dropout at least 0 and below 1");
        }
        let distinct = lora.targets.iter().collect::<std::collections::HashSet<_>>().len();
        if distinct != lora.targets.len() || lora.targets.is_empty() {
            return refuse("targets must name at least one matrix, none twice");
        }
        let (mut specs, mut pieces) = (Vec::new(), Vec::new());
        for layer in 0..model.config.layers as usize {
            for &target in TARGETS.iter().filter(|t| lora.targets.contains(t)) {
                let (proj, row, rows, cols) = extent(model, target);
                pieces.push(Piece { layer, proj, row, rows, a: specs.len() });
                let name = |half: &str| {
                    let block =
                        if proj == Proj::Qkv || proj == Proj::Out { "self_attn" } else { "mlp" };
                    let word = serde_json::to_value(target).unwrap_or_default();
                    let word = word.as_str().unwrap_or_default();
                    format!("base_model.model.model.layers.{layer}.{block}.{word}.{half}.weight")
                };
                let part = |half, rows| vec![Part { name: name(half), rows }];
                // The variance of the uniform numbers that PEFT starts with.
                let std = 1.0 / (3.0 * cols as f64).sqrt();
                specs.push(Spec::new(part("lora_A", lora.r), Some(cols), Some(std), 0.0));
                specs.push(Spec::new(part("lora_B", rows), Some(lora.r), None, 0.0));
            }
        }
        place(&mut specs);
        let params = Params::empty(specs, model.kind, model.device, true)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for spec in &params.specs {
            params.write_master(spec.offset, &initial(spec, &mut rng)?)?;
        }
        let (on, seed) = (Cell::new(true), Cell::new(None));
        Ok(Adapter { lora, params, pieces, on, seed, before: None })
    }

    /// Runs `f` with the base alone.
    pub(crate) fn without<T>(&self, f: impl FnOnce() -> T) -> T {
        let before = self.on.replace(false);
        let answer = f();
        self.on.set(before);
        answer
    }

    /// Runs `f` with the dropout that `seed` draws.
    pub(crate) fn dropping<T>(&self, seed: u64, f: impl FnOnce() -> T) -> T {
        let before = self.seed.replace(Some(seed));
        let answer = f();
        self.seed.set(before);
        answer
    }

    /// Whether its product is in the model's matrices.
    pub fn merged(&self) -> bool {
        self.before.is_some()
    }

    fn active(&self, l: usize, proj: Proj) -> impl Iterator<Item = &Piece> {
        let on = self.on.get() && !self.merged();
        self.pieces.iter().filter(move |p| on && p.layer == l && p.proj == proj)
    }

    fn scale(&self) -> f64 {
        self.lora.alpha / self.lora.r as f64
    }

    /// What the dropout leaves of `x`, scaled; the mask is the same whenever it is asked for.
    fn mask(&self, piece: &Piece, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(seed) = self.seed.get().filter(|_| self.lora.dropout > 0.0) else {
            return Ok(None);
        };
        let mixed = (seed ^ piece.a as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        tch::manual_seed((mixed >> 1) as i64);
        let keep = 1.0 - self.lora.dropout;
        Ok(Some(x.f_empty_like()?.f_bernoulli_float_(keep)?.f_div_scalar_(keep)?))
    }

    fn masked(mask: Option<&Tensor>, x: &Tensor) -> Result<Tensor> {
        Ok(mask.map_or_else(|| Ok(x.shallow_clone()), |m| x.f_mul(m))?)
    }

    /// Adds the adapter's part to `y` `[T, out]`, the answer to `x` `[T, in]`.
    pub(crate) fn add(&self, l: usize, proj: Proj, x: &Tensor, y: &Tensor) -> Result<()> {
        for piece in self.active(l, proj) {
            let mask = self.mask(piece, x)?;
            let (a, b) = (&self.params.views[piece.a], &self.params.views[piece.a + 1]);
            let low = Self::masked(mask.as_ref(), x)?.f_mm(&a.f_tr()?)?;
            let more = low.f_mm(&b.f_tr()?)?.f_mul_scalar_(self.scale())?;
            let _ = y.f_narrow(1, piece.row, piece.rows)?.f_add_(&more)?;
        }
        Ok(())
    }

    /// Adds the adapter's part to the gradient `dx`, and its matrices' gradients to `sink`.
    pub(crate) fn back(
        &self,
        l: usize,
        proj: Proj,
        [x, dy, dx]: [&Tensor; 3],
        sink: &Sink,
    ) -> Result<()> {
        for piece in self.active(l, proj) {
            let mask = self.mask(piece, x)?;
            let x = Self::masked(mask.as_ref(), x)?;
            let (a, b) = (&self.params.views[piece.a], &self.params.views[piece.a + 1]);
            let dy = dy.f_narrow(1, piece.row, piece.rows)?.f_mul_scalar(self.scale())?;
            sink.add_product(piece.a + 1, &dy, &x.f_mm(&a.f_tr()?)?)?;
            let d_low = dy.f_mm(b)?;
            sink.add_product(piece.a, &d_low, &x)?;
            let _ = dx.shallow_clone().f_add_(&Self::masked(mask.as_ref(), &d_low.f_mm(a)?)?)?;
        }
        Ok(())
    }
}

/// The fused matrix that holds `target`, its first row there, rows and columns.
fn extent(model: &Model, target: Target) -> (Proj, i64, i64, i64) {
    let c = &model.config;
    let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    match target {
        Target::Q => (Proj::Qkv, 0, q, c.hidden),
        Target::K => (Proj::Qkv, q, kv, c.hidden),
        Target::V => (Proj::Qkv, q + kv, kv, c.hidden),
        Target::O => (Proj::Out, 0, c.hidden, q),
        Target::Gate => (Proj::GateUp, 0, c.ffn, c.hidden),
        Target::Up => (Proj::GateUp, c.ffn, c.ffn, c.hidden),
        Target::Down => (Proj::Down, 0, c.hidden, c.ffn),
    }
}

impl Model {
    /// The parameters that training changes: the adapter's if there is one.
    pub fn trained(&self) -> &Params {
        self.adapter.as_ref().map_or(&self.params, |a| &a.params)
    }

    /// The same, to be divided among ranks.
    pub(crate) fn trained_mut(&mut self) -> &mut Params {
        match &mut self.adapter {
            Some(adapter) => &mut adapter.params,
            None => &mut self.params,
        }
    }

    /// Adds the adapter's product to the model's matrices, as generation wants it. What they were
    /// is kept (as much memory again), so that [`Model::unmerge`] is exact.
    ///
    /// # Errors
    /// No adapter. One that is merged already stays so.
    pub fn merge(&mut self) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let Some(adapter) = &self.adapter else {
            return Err(Error::Request("the model has no adapter to merge".into()));
        };
        if adapter.merged() {
            return Ok(());
        }
        let mut before: Vec<(usize, Tensor)> = Vec::new();
        let merged = self.add_products(adapter, &mut before);
        if merged.is_err() {
            // Half a merge is none.
            for (index, matrix) in &before {
                self.params.views[*index].shallow_clone().f_copy_(matrix)?;
            }
            return merged;
        }
        if let Some(adapter) = &mut self.adapter {
            adapter.before = Some(before);
        }
        Ok(())
    }

    /// Adds each piece's product to its matrix, which is put into `before` as it was.
    fn add_products(&self, adapter: &Adapter, before: &mut Vec<(usize, Tensor)>) -> Result<()> {
        for piece in &adapter.pieces {
            let layer = self.layer(piece.layer)?;
            let index = layer.matrix(piece.proj).1;
            let matrix = &self.params.views[index];
            if before.iter().all(|(known, _)| *known != index) {
                before.push((index, matrix.f_detach_copy()?));
            }
            let (a, b) = (&adapter.params.views[piece.a], &adapter.params.views[piece.a + 1]);
            let sum = self.sum_kind();
            let more =
                b.f_to_kind(sum)?.f_mm(&a.f_to_kind(sum)?)?.f_mul_scalar_(adapter.scale())?;
            let mut rows = matrix.f_narrow(0, piece.row, piece.rows)?;
            let whole = rows.f_to_kind(sum)?.f_add(&more)?;
            rows.f_copy_(&whole)?;
        }
        Ok(())
    }

    /// Takes a merged adapter out of the model's matrices again, bit for bit.
    pub fn unmerge(&mut self) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let before = self.adapter.as_mut().and_then(|a| a.before.take());
        for (index, matrix) in before.into_iter().flatten() {
            self.params.views[index].shallow_clone().f_copy_(&matrix)?;
        }
        Ok(())
    }
}
