//! AdamW over one flat buffer: float32 master, moments and gradient.

use tch::{Kind, Tensor};

use crate::dispatch::{self, Adam};
use crate::error::{Error, Result};
use crate::fused;
use crate::metrics::Clock;
use crate::params::Params;
use crate::ranks::Ranks;
use crate::shard::Shard;

/// Elements updated at a time: bounds the temporaries of a large model.
const CHUNK: i64 = 1 << 26;

/// What one update needs to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Learning rate.
    pub lr: f64,
    /// Decoupled weight decay, on matrices only.
    pub weight_decay: f64,
    /// Largest global norm of the gradient; 0 is no limit.
    pub grad_clip: f64,
}

/// The optimizer's state. Buffers are float32 (float64 of a float64 model), laid out as the parameters;
/// the moments are those of this rank's part of them.
pub struct AdamW {
    /// First moment.
    pub m: Tensor,
    /// Second moment.
    pub v: Tensor,
    /// Updates taken.
    pub step: u64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    eps: f64,
    /// The summed gradient of all parameters; only while a step sums it.
    grad: Option<Tensor>,
    shard: Shard,
}

impl AdamW {
    /// A fresh state for `params`.
    ///
    /// # Errors
    /// Parameters that were not opened as trainable.
    pub fn new(params: &Params) -> Result<Self> {
        if !params.trainable {
            return Err(Error::Request("the model was not opened as trainable".into()));
        }
        let kind = if params.flat.f_kind()? == Kind::Double { Kind::Double } else { Kind::Float };
        let shard = params.shard;
        let zeros = || Tensor::f_zeros([shard.len()], (kind, params.flat.device()));
        let (m, v) = (zeros()?, zeros()?);
        Ok(AdamW { m, v, step: 0, beta1: 0.9, beta2: 0.999, eps: 1e-8, grad: None, shard })
    }

    /// Bytes of memory while a step is taken, the gradient included.
    pub fn bytes(&self) -> u64 {
        let numbers = 2 * self.shard.len() + self.shard.padded();
        (numbers as usize * self.m.kind().elt_size_in_bytes()) as u64
    }

    /// The summed gradient `[total]` (and what rounds it up to equal pieces), to be added to.
    pub fn gradient(&mut self) -> Result<Tensor> {
        if self.grad.is_none() {
            let options = (self.m.f_kind()?, self.m.device());
            self.grad = Some(Tensor::f_zeros([self.shard.padded()], options)?);
        }
        self.grad.as_ref().map(Tensor::shallow_clone).ok_or_else(empty)
    }

    /// Forgets the summed gradient and gives its memory back.
    pub fn discard(&mut self) {
        self.grad = None;
    }

    /// Takes one step with the summed gradient, forgets it, and answers its norm before
    /// clipping.
    ///
    /// # Errors
    /// A norm that is not finite: then weights and moments are untouched.
    pub fn apply(&mut self, params: &Params, u: &Update) -> Result<f64> {
        let device = params.flat.device();
        self.apply_among(params, u, &mut Ranks::alone(device), &mut Clock::new(device))
    }

    /// The same with the sum of the gradients of all `ranks`: each updates its part of the masters, and
    /// all have all weights afterwards.
    ///
    /// # Errors
    /// A norm that is not finite, or that a rank cannot work out: then all are as before. A rank that is
    /// lost: then the weights are none.
    pub fn apply_among(
        &mut self,
        params: &Params,
        u: &Update,
        ranks: &mut Ranks,
        clock: &mut Clock,
    ) -> Result<f64> {
        let _guard = tch::no_grad_guard();
        let grad = self.grad.take().ok_or_else(empty)?;
        ranks.reduce_scatter(&grad, &self.shard)?;
        ranks.lap(clock, "reduce");
        let grad = grad.f_narrow(0, self.shard.start(), self.shard.len())?;
        let norms = ranks.gather(norm(&grad).map(|n| vec![n]))?;
        // Alone, this is the norm itself, to the last bit: the square of a float32 is exact in float64.
        let norm = norms.iter().map(|n| n[0] * n[0]).sum::<f64>().sqrt();
        if !norm.is_finite() {
            return Err(Error::NotFinite { what: "gradient norm", value: norm, step: self.step });
        }
        let updated = self.update(params, &grad, norm, u);
        clock.lap("optimizer");
        // From here on a rank that fails leaves the others with weights of two kinds.
        ranks.or_end(updated)?;
        ranks.all_gather(&params.padded()?, &self.shard)?;
        // Nobody says that the step is taken before all have it.
        ranks.gather(Ok(Vec::new()))?;
        ranks.lap(clock, "gather");
        Ok(norm)
    }

    /// Updates this rank's part with its gradient, of norm `norm` over all parts.
    fn update(&mut self, params: &Params, grad: &Tensor, norm: f64, u: &Update) -> Result<()> {
        let too_long = u.grad_clip > 0.0 && norm > u.grad_clip;
        let scale = if too_long { norm / u.grad_clip } else { 1.0 };
        let number =
            |x: f64| Tensor::f_from_slice(&[x as f32])?.f_squeeze()?.f_to_device(grad.device());
        self.step += 1;
        let (divisor, count) = (number(scale)?, number(self.step as f64)?);
        let fused = fused::kernels(grad.device(), params.flat.f_kind()?)?;
        let (start, end) = (self.shard.start(), self.shard.end());
        let mut at = start;
        while at < end {
            let decayed = at < params.decayed;
            let until = if decayed { params.decayed.min(end) } else { end };
            let n = CHUNK.min(until - at);
            let part = |t: &Tensor| t.f_narrow(0, at - start, n);
            let weight_decay = if decayed { u.weight_decay } else { 0.0 };
            let (beta1, beta2, eps) = (self.beta1, self.beta2, self.eps);
            let adam = Adam { lr: u.lr, beta1, beta2, weight_decay, eps };
            let (grad, m, v) = (part(grad)?, part(&self.m)?, part(&self.v)?);
            if let (Some(fused), Some(low)) = (&fused, &params.low) {
                let (high, low) = (params.flat.f_narrow(0, at, n)?, part(low)?);
                fused.adamw([&high, &low, &m, &v], &grad, &adam, (self.step, scale))?;
            } else {
                let whole = params.read_master(at, n)?;
                dispatch::adamw([&whole, &grad, &m, &v], &count, &divisor, &adam)?;
                if params.low.is_some() {
                    params.write_master(at, &whole)?;
                }
            }
            at += n;
        }
        Ok(())
    }
}

/// Norm of a gradient of any length.
fn norm(grad: &Tensor) -> Result<f64> {
    let total = grad.size()[0];
    if total == 0 {
        return Ok(0.0);
    }
    let part = |at| grad.f_narrow(0, at, CHUNK.min(total - at))?.f_norm();
    let starts = (0..total).step_by(CHUNK as usize);
    let parts = starts.map(part).collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(Tensor::f_stack(&parts, 0)?.f_norm()?.f_double_value(&[])?)
}

fn empty() -> Error {
    Error::Request("no gradient was summed for this step".into())
}

/// How the learning rate moves over a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Always the same after the warm-up.
    Constant,
    /// Half a cosine from the peak down to a tenth of it.
    Cosine,
}

impl Schedule {
    /// Learning rate at `step` (from 0) when `progress` (0 to 1) of the training is over.
    pub fn at(self, peak: f64, step: u64, warmup: u64, progress: f64) -> f64 {
        let rise = ((step + 1) as f64 / warmup.max(1) as f64).min(1.0);
        match self {
            Schedule::Constant => peak * rise,
            Schedule::Cosine => {
                let wave = 0.5 * (1.0 + (std::f64::consts::PI * progress.clamp(0.0, 1.0)).cos());
                peak * rise * (0.1 + 0.9 * wave)
            }
        }
    }
}
