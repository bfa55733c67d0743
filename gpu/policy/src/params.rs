//! All parameters of a model in one flat buffer, with one view per (fused) matrix.
//!
//! One buffer makes the optimizer a handful of operations however many layers there are.
//! Query, key and value projections are fused into one matrix, gate and up into another;
//! files keep Hugging Face's separate names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Device, Kind, Tensor};

use crate::config::{Architecture, ModelConfig};
use crate::error::{Error, Result};
use crate::files::{self, Stored};

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
    std: Option<f64>,
    fill: f64,
}

impl Spec {
    /// Elements of the parameter.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    fn part_shape(&self, part: &Part) -> Vec<i64> {
        let mut shape = self.shape.clone();
        shape[0] = part.rows;
        shape
    }
}

/// Where each parameter lies: decayed ones first, so that decay is one operation.
pub fn layout(c: &ModelConfig) -> Vec<Spec> {
    let mut specs = Vec::new();
    let mut add = |names: &[(String, i64)], cols: Option<i64>, std: Option<f64>, fill: f64| {
        let parts: Vec<_> =
            names.iter().map(|(n, rows)| Part { name: n.clone(), rows: *rows }).collect();
        let rows = parts.iter().map(|p| p.rows).sum();
        let shape = std::iter::once(rows).chain(cols).collect();
        specs.push(Spec { shape, parts, decay: cols.is_some(), offset: 0, std, fill });
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
        if c.architecture == Architecture::Qwen2 {
            add(&qkv("bias"), None, None, 0.0);
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
    let mut offset = 0;
    for decay in [true, false] {
        for spec in specs.iter_mut().filter(|s| s.decay == decay) {
            spec.offset = offset;
            offset += (spec.numel() + ALIGN - 1) / ALIGN * ALIGN;
        }
    }
    specs
}

/// The weights: what the model computes with, and the float32 master when it trains.
pub struct Params {
    /// The layout, in the order the model uses the parameters.
    pub specs: Vec<Spec>,
    /// One view per spec into the compute buffer; leaves of the graph when trainable.
    pub views: Vec<Tensor>,
    /// `[total]` in the compute type.
    pub flat: Tensor,
    /// `[total]` float32: the same storage as `flat` when that is float32.
    pub master: Option<Tensor>,
    /// Elements at the front of the buffers that weight decay applies to.
    pub decayed: i64,
}

impl Params {
    fn empty(c: &ModelConfig, kind: Kind, device: Device, trainable: bool) -> Result<Self> {
        let specs = layout(c);
        let end = |s: &Spec| s.offset + (s.numel() + ALIGN - 1) / ALIGN * ALIGN;
        let total = specs.iter().map(end).max().unwrap_or(0);
        let decayed = specs.iter().filter(|s| s.decay).map(end).max().unwrap_or(0);
        let flat = Tensor::f_zeros([total], (kind, device))?;
        let master = match (trainable, kind) {
            (false, _) => None,
            (true, Kind::Float) => Some(flat.shallow_clone()),
            (true, _) => Some(Tensor::f_zeros([total], (Kind::Float, device))?),
        };
        Ok(Params { specs, views: Vec::new(), flat, master, decayed })
    }

    /// Reads the weights of the folder `dir`.
    ///
    /// # Errors
    /// Names the file and the tensor that is missing, unknown, misshapen or not finite.
    pub fn read(
        dir: &Path,
        c: &ModelConfig,
        kind: Kind,
        device: Device,
        trainable: bool,
    ) -> Result<Self> {
        let mut p = Self::empty(c, kind, device, trainable)?;
        let target = p.master.as_ref().unwrap_or(&p.flat).shallow_clone();
        let fill = Fill::new(&p.specs);
        let mut seen = HashSet::new();
        for file in files::weight_files(dir)? {
            files::visit(&file, |name, tensor| {
                let tied_head = c.tied && name == "lm_head.weight";
                if tied_head || name.ends_with("rotary_emb.inv_freq") {
                    return Ok(());
                }
                fill.copy(&file, name, &tensor, &target)?;
                seen.insert(name.to_owned());
                Ok(())
            })?;
        }
        fill.complete(dir, &seen)?;
        p.publish(trainable)?;
        Ok(p)
    }

    /// Random weights from `seed`, the same on every device.
    pub fn random(c: &ModelConfig, seed: u64, kind: Kind, device: Device) -> Result<Self> {
        let mut p = Self::empty(c, kind, device, true)?;
        let target = p.master.as_ref().unwrap_or(&p.flat).shallow_clone();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for spec in &p.specs {
            let n = spec.numel();
            let values: Vec<f32> = match spec.std {
                Some(std) => (0..n).map(|_| (gaussian(&mut rng) * std) as f32).collect(),
                None => vec![spec.fill as f32; n as usize],
            };
            target.f_narrow(0, spec.offset, n)?.f_copy_(&Tensor::f_from_slice(&values)?)?;
        }
        p.publish(true)?;
        Ok(p)
    }

    /// Brings the compute weights up to the master and (once) cuts the views.
    pub fn publish(&mut self, trainable: bool) -> Result<()> {
        let _guard = tch::no_grad_guard();
        if let Some(master) = &self.master
            && self.flat.f_kind()? != Kind::Float
        {
            self.flat.f_copy_(master)?;
        }
        if self.views.is_empty() {
            for s in &self.specs {
                let view = self.flat.f_narrow(0, s.offset, s.numel())?.f_view(&s.shape[..])?;
                self.views.push(view.f_detach()?.f_set_requires_grad(trainable)?);
            }
        }
        Ok(())
    }

    /// Cuts a flat buffer into named tensors, `prefix` before each name.
    pub fn export(
        &self,
        flat: &Tensor,
        prefix: &str,
        kind: Kind,
        out: &mut BTreeMap<String, Stored>,
    ) -> Result<()> {
        let _guard = tch::no_grad_guard();
        for spec in &self.specs {
            let whole = flat.f_narrow(0, spec.offset, spec.numel())?.f_view(&spec.shape[..])?;
            let mut row = 0;
            for part in &spec.parts {
                let stored = Stored::new(&whole.f_narrow(0, row, part.rows)?, kind)?;
                out.insert(format!("{prefix}{}", part.name), stored);
                row += part.rows;
            }
        }
        Ok(())
    }
}

/// A standard normal number (Box and Muller).
fn gaussian(rng: &mut impl Rng) -> f64 {
    let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Puts named tensors at their place in a flat buffer and keeps account of them.
pub(crate) struct Fill {
    places: HashMap<String, (Vec<i64>, i64)>,
}

impl Fill {
    pub(crate) fn new(specs: &[Spec]) -> Self {
        let mut places = HashMap::new();
        for spec in specs {
            let mut offset = spec.offset;
            for part in &spec.parts {
                let shape = spec.part_shape(part);
                let numel: i64 = shape.iter().product();
                places.insert(part.name.clone(), (shape, offset));
                offset += numel;
            }
        }
        Fill { places }
    }

    /// Checks and copies one tensor into `flat`.
    pub(crate) fn copy(
        &self,
        file: &Path,
        name: &str,
        tensor: &Tensor,
        flat: &Tensor,
    ) -> Result<()> {
        let path = || -> PathBuf { file.to_owned() };
        let Some((shape, offset)) = self.places.get(name) else {
            return Err(Error::UnexpectedTensor { path: path(), name: name.into() });
        };
        let found = tensor.size();
        if &found != shape {
            let (name, expected) = (name.into(), shape.clone());
            return Err(Error::Shape { path: path(), name, found, expected });
        }
        if tensor.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            return Err(Error::WeightsNotFinite { path: path(), name: name.into() });
        }
        let mut place = flat.f_narrow(0, *offset, tensor.numel() as i64)?;
        Ok(place.f_copy_(&tensor.f_view([-1])?)?)
    }

    /// Fails with the first (in order of name) tensor that no file held.
    pub(crate) fn complete(&self, dir: &Path, seen: &HashSet<String>) -> Result<()> {
        match self.places.keys().filter(|n| !seen.contains(*n)).min() {
            Some(name) => Err(Error::MissingTensor { path: dir.to_owned(), name: name.clone() }),
            None => Ok(()),
        }
    }
}
