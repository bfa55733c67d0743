//! AdamW over one flat buffer: float32 master, moments and gradient.

use tch::{Kind, Tensor};

use crate::error::{Error, Result};
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

/// The optimizer's state. Buffers are float32 `[total]`, laid out as the parameters.
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
    grad: Tensor,
}

impl AdamW {
    /// A fresh state for `params`.
    pub fn new(params: &Params) -> Result<Self> {
        let zeros = || Tensor::f_zeros(params.flat.size(), (Kind::Float, params.flat.device()));
        let (m, v, grad) = (zeros()?, zeros()?, zeros()?);
        Ok(AdamW { m, v, step: 0, beta1: 0.9, beta2: 0.999, eps: 1e-8, grad })
    }

    /// Adds one parameter's gradient (any float type) to the sum.
    pub fn add(&mut self, params: &Params, index: usize, grad: &Tensor) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let spec = &params.specs[index];
        let mut place = self.grad.f_narrow(0, spec.offset, spec.numel())?;
        let _ = place.f_add_(&grad.f_reshape([-1])?)?;
        Ok(())
    }

    /// The summed gradient, float32 `[total]`.
    pub fn gradient(&self) -> &Tensor {
        &self.grad
    }

    /// Forgets the summed gradient.
    pub fn discard(&mut self) -> Result<()> {
        let _ = self.grad.f_zero_()?;
        Ok(())
    }

    /// Takes one step with the summed gradient, forgets it, and answers its norm before
    /// clipping.
    ///
    /// # Errors
    /// A norm that is not finite: then weights and moments are untouched.
    pub fn apply(&mut self, params: &mut Params, u: &Update) -> Result<f64> {
        let _guard = tch::no_grad_guard();
        let norm = self.grad.f_norm()?.f_double_value(&[])?;
        if !norm.is_finite() {
            self.discard()?;
            return Err(Error::NotFinite { what: "gradient norm", value: norm, step: self.step });
        }
        if u.grad_clip > 0.0 && norm > u.grad_clip {
            let _ = self.grad.f_mul_scalar_(u.grad_clip / norm)?;
        }
        let Some(master) = params.master.as_ref().map(Tensor::shallow_clone) else {
            return Err(Error::Request("the model was not opened as trainable".into()));
        };
        self.step += 1;
        let total = master.size()[0];
        let mut at = 0;
        while at < total {
            let until = if at < params.decayed { params.decayed } else { total };
            let count = CHUNK.min(until - at);
            let decay = if at < params.decayed { u.weight_decay } else { 0.0 };
            self.apply_chunk(&master, at, count, u.lr, decay)?;
            at += count;
        }
        self.discard()?;
        params.publish(true)?;
        Ok(norm)
    }

    fn apply_chunk(&self, master: &Tensor, at: i64, n: i64, lr: f64, decay: f64) -> Result<()> {
        let part = |t: &Tensor| t.f_narrow(0, at, n);
        let (mut w, mut m, mut v) = (part(master)?, part(&self.m)?, part(&self.v)?);
        let grad = part(&self.grad)?;
        let t = self.step as f64;
        let (bias1, bias2) = (1.0 - self.beta1.powf(t), 1.0 - self.beta2.powf(t));
        let _ = m.f_lerp_(&grad, 1.0 - self.beta1)?;
        let _ = v.f_lerp_(&grad.f_mul(&grad)?, 1.0 - self.beta2)?;
        let scale = v.f_sqrt()?.f_div_scalar(bias2.sqrt())?.f_add_scalar(self.eps)?;
        let change = m.f_div(&scale)?.f_mul_scalar(-lr / bias1)?;
        if decay != 0.0 {
            let _ = w.f_mul_scalar_(1.0 - lr * decay)?;
        }
        let _ = w.f_add_(&change)?;
        Ok(())
    }
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
