//! All parameters of a model in one flat buffer, with one view per (fused) matrix.
//!
//! One buffer makes the optimizer a handful of operations however many layers there are.
//! Query, key and value projections are fused into one matrix, gate and up into another;
//! files keep Hugging Face's separate names.

use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Device, Kind, Tensor};

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::files::Stored;
use crate::fill::Fill;
pub use crate::layout::{Part, Spec, layout};
use crate::master;
use crate::shard::{SLACK, Shard};
use crate::weights::Weights;

/// The weights: what the model computes with, and what more is needed to train them.
pub struct Params {
    /// The layout, in the order the model uses the parameters.
    pub specs: Vec<Spec>,
    /// One view per spec into the compute buffer.
    pub views: Vec<Tensor>,
    /// `[total]` in the compute type.
    pub flat: Tensor,
    /// int16, of this rank's part: the low halves of the float32 masters of a trainable bfloat16
    /// model, see [`master`].
    pub low: Option<Tensor>,
    /// Which part of the masters (and of what the optimizer keeps) this rank has: all of them unless
    /// several ranks train together.
    pub shard: Shard,
    /// A float32 master exists: in `flat` itself, or split over `flat` and `low`.
    pub trainable: bool,
    /// Elements at the front of the buffers that weight decay applies to.
    pub decayed: i64,
}

impl Params {
    /// Zeros laid out as `specs`.
    pub(crate) fn empty(
        specs: Vec<Spec>,
        kind: Kind,
        device: Device,
        trainable: bool,
    ) -> Result<Self> {
        if trainable && !matches!(kind, Kind::Float | Kind::Double | Kind::BFloat16) {
            return Err(Error::Request("a model trains in f32 or bf16".into()));
        }
        let total = specs.iter().map(Spec::end).max().unwrap_or(0);
        let decayed = specs.iter().filter(|s| s.decay).map(Spec::end).max().unwrap_or(0);
        let flat = Tensor::f_zeros([total + SLACK], (kind, device))?.f_narrow(0, 0, total)?;
        let low = match trainable && kind == Kind::BFloat16 {
            true => Some(Tensor::f_zeros([total], (Kind::Int16, device))?),
            false => None,
        };
        let views = cut(&specs, &flat)?;
        let shard = Shard::whole(total);
        Ok(Params { specs, views, flat, low, shard, trainable, decayed })
    }

    /// Reads the weights of the folder or GGUF file `dir`.
    ///
    /// # Errors
    /// Before anything is allocated: every tensor that is missing, unknown or misshapen. After
    /// that, the first that is not finite.
    pub fn read(
        dir: &Path,
        c: &ModelConfig,
        kind: Kind,
        device: Device,
        trainable: bool,
    ) -> Result<Self> {
        let specs = layout(c);
        let fill = Fill::new(&specs);
        let weights = Weights::open(dir)?;
        let known = |name: &str| {
            let tied_head = c.tied && name == "lm_head.weight";
            !tied_head && !name.ends_with("rotary_emb.inv_freq")
        };
        fill.check(dir, weights.shapes()?.into_iter().filter(|(name, _)| known(name)))?;
        let p = Self::empty(specs, kind, device, trainable)?;
        weights.visit(c, |file, name, tensor| match known(name) {
            true => fill.copy(file, name, &tensor, |at, values| p.write_master(at, values)),
            false => Ok(()),
        })?;
        Ok(p)
    }

    /// Random weights from `seed`, the same on every device.
    pub fn random(c: &ModelConfig, seed: u64, kind: Kind, device: Device) -> Result<Self> {
        let p = Self::empty(layout(c), kind, device, true)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for spec in &p.specs {
            p.write_master(spec.offset, &initial(spec, &mut rng)?)?;
        }
        Ok(p)
    }

    /// Random weights drawn on `device`, fast and for measuring only: they differ between devices.
    pub fn noise(c: &ModelConfig, kind: Kind, device: Device, trainable: bool) -> Result<Self> {
        let p = Self::empty(layout(c), kind, device, trainable)?;
        for (spec, view) in p.specs.iter().zip(&p.views) {
            let mut view = view.shallow_clone();
            let _ = match spec.std {
                Some(std) => view.f_normal_(0.0, std)?,
                None => view.f_fill_(spec.fill)?,
            };
        }
        Ok(p)
    }

    /// The same weights in the host's pinned memory, from where `device` can fetch them fast.
    pub fn pinned(self, device: Device) -> Result<Self> {
        let flat =
            if device == Device::Cpu { self.flat } else { self.flat.f_pin_memory(device)? };
        let views = cut(&self.specs, &flat)?;
        Ok(Params { flat, views, low: None, trainable: false, ..self })
    }

    /// Keeps of the masters what rank `rank` of `world` has; the weights stay whole.
    ///
    /// # Errors
    /// More ranks than can be.
    pub fn divide(&mut self, rank: usize, world: usize) -> Result<()> {
        let shard = Shard::of(self.flat.size()[0], rank, world)?;
        if let (Some(low), true) = (&self.low, world > 1) {
            self.low = Some(low.f_narrow(0, shard.start(), shard.len())?.f_detach_copy()?);
        }
        self.shard = shard;
        Ok(())
    }

    /// The weights with the elements behind them: equal pieces for all ranks.
    pub(crate) fn padded(&self) -> Result<Tensor> {
        Ok(self.flat.f_as_strided([self.shard.padded()], [1], None)?)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        let flat = self.flat.numel() * self.flat.kind().elt_size_in_bytes();
        (flat + self.low.as_ref().map_or(0, |low| 2 * low.numel())) as u64
    }

    /// The master's numbers `at .. at + n`, which this rank must have: float32 (float64 of a float64
    /// model), or the weights themselves if there is no master.
    pub fn read_master(&self, at: i64, n: i64) -> Result<Tensor> {
        let high = self.flat.f_narrow(0, at, n)?;
        match &self.low {
            Some(low) => master::join(&high, &low.f_narrow(0, at - self.shard.start(), n)?),
            None => Ok(high),
        }
    }

    /// Sets the master's numbers from `at` on, and with them the weights; `values` of any float
    /// type and shape.
    pub fn write_master(&self, at: i64, values: &Tensor) -> Result<()> {
        let values = values.f_reshape([-1])?;
        let n = values.size()[0];
        let mut high = self.flat.f_narrow(0, at, n)?;
        match &self.low {
            Some(low) => {
                let whole = values.f_to_device(self.flat.device())?.f_to_kind(Kind::Float)?;
                let place = |from, n| low.f_narrow(0, from - self.shard.start(), n);
                match self.shard.cut(at, n) {
                    Some((from, some)) if (from, some) == (at, n) => {
                        master::split(&whole, &high, &place(at, n)?)
                    }
                    cut => {
                        // The weights are the same on all ranks, whoever has the masters.
                        let all = Tensor::f_empty([n], (Kind::Int16, low.device()))?;
                        master::split(&whole, &high, &all)?;
                        if let Some((from, some)) = cut {
                            place(from, some)?.f_copy_(&all.f_narrow(0, from - at, some)?)?;
                        }
                        Ok(())
                    }
                }
            }
            None => Ok(high.f_copy_(&values)?),
        }
    }

    /// Named tensors, `prefix` before each name, read by `read(offset, elements)` when they are
    /// written.
    pub fn export<'a>(
        &'a self,
        prefix: &str,
        kind: Kind,
        read: impl Fn(i64, i64) -> Result<Tensor> + Copy + 'a,
    ) -> Vec<Stored<'a>> {
        let places = self.specs.iter().flat_map(Spec::places);
        let one = |(part, shape, at): (&Part, Vec<i64>, i64)| {
            let n = shape.iter().product();
            Stored::new(format!("{prefix}{}", part.name), shape, kind, move || read(at, n))
        };
        places.map(one).collect()
    }
}

fn cut(specs: &[Spec], flat: &Tensor) -> Result<Vec<Tensor>> {
    let one = |s: &Spec| Ok(flat.f_narrow(0, s.offset, s.numel())?.f_view(&s.shape[..])?);
    specs.iter().map(one).collect()
}

/// The numbers that a parameter starts with, float32 `[n]`.
pub(crate) fn initial(spec: &Spec, rng: &mut impl Rng) -> Result<Tensor> {
    let n = spec.numel();
    let values: Vec<f32> = match spec.std {
        Some(std) => (0..n).map(|_| (gaussian(rng) * std) as f32).collect(),
        None => vec![spec.fill as f32; n as usize],
    };
    Ok(Tensor::f_from_slice(&values)?)
}

/// A standard normal number (Box and Muller).
fn gaussian(rng: &mut impl Rng) -> f64 {
    let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}
