//! AdamW over one flat buffer: float32 master, moments and gradient.

use tch::{Kind, Tensor};

use crate::dispatch::{self, Adam};
use crate::error::{Error, Result};
use crate::fused;
use crate::params::Params;

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

/// The optimizer's state. Buffers are float32 (float64 of a float64 model) `[total]`, laid out
/// as the parameters.
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
    /// The summed gradient; only while a step sums it.
    grad: Option<Tensor>,
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
        let zeros = || Tensor::f_zeros(params.flat.size(), (kind, params.flat.device()));
        let (m, v) = (zeros()?, zeros()?);
        Ok(AdamW { m, v, step: 0, beta1: 0.9, beta2: 0.999, eps: 1e-8, grad: None })
    }

    /// Bytes of memory while a step is taken, the gradient included.
    pub fn bytes(&self) -> u64 {
        (3 * self.m.numel() * self.m.kind().elt_size_in_bytes()) as u64
    }

    /// The summed gradient `[total]`, to be added to.
    pub fn gradient(&mut self) -> Result<Tensor> {
        if self.grad.is_none() {
            self.grad = Some(self.m.f_zeros_like()?);
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
        let _guard = tch::no_grad_guard();
        let grad = self.grad.take().ok_or_else(empty)?;
        let norm = norm(&grad)?;
        if !norm.is_finite() {
            return Err(Error::NotFinite { what: "gradient norm", value: norm, step: self.step });
        }
        let too_long = u.grad_clip > 0.0 && norm > u.grad_clip;
        let scale = if too_long { norm / u.grad_clip } else { 1.0 };
        self.step += 1;
        let total = params.flat.size()[0];
        let (beta1, beta2, eps) = (self.beta1, self.beta2, self.eps);
        let adam = |weight_decay| Adam { lr: u.lr, beta1, beta2, weight_decay, eps };
        if let (Some(low), Some(fused)) =
            (&params.low, fused::kernels(grad.device(), params.flat.f_kind()?)?)
        {
            let parts = [(0, params.decayed, u.weight_decay), (params.decayed, total, 0.0)];
            for (from, until, decay) in parts.into_iter().filter(|(from, until, _)| from < until) {
                let part = |t: &Tensor| t.f_narrow(0, from, until - from);
                let state = [part(&params.flat)?, part(low)?, part(&self.m)?, part(&self.v)?];
                let (grad, o) = (part(&grad)?, adam(decay));
                fused.adamw(state.each_ref(), &grad, &o, (self.step, scale))?;
            }
            return Ok(norm);
        }
        let number =
            |x: f64| Tensor::f_from_slice(&[x as f32])?.f_squeeze()?.f_to_device(grad.device());
        let (scale, count) = (number(scale)?, number(self.step as f64)?);
        let mut at = 0;
        while at < total {
            let decayed = at < params.decayed;
            let until = if decayed { params.decayed } else { total };
            let n = CHUNK.min(until - at);
            let part = |t: &Tensor| t.f_narrow(0, at, n);
            let whole = params.read_master(at, n)?;
            let weight_decay = if decayed { u.weight_decay } else { 0.0 };
            let (grad, m, v) = (part(&grad)?, part(&self.m)?, part(&self.v)?);
            dispatch::adamw([&whole, &grad, &m, &v], &count, &scale, &adam(weight_decay))?;
            if params.low.is_some() {
                params.write_master(at, &whole)?;
            }
            at += n;
        }
        Ok(norm)
    }
}

/// Norm of a gradient of any length.
fn norm(grad: &Tensor) -> Result<f64> {
    let total = grad.size()[0];
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
