//! What stands between the matrix products of training, done by our own kernels. They serve bfloat16 on
//! CUDA; elsewhere libtorch's operations do the same, one after the other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use kernels::launch::{self, Angles, Heads, Scored, State};
use kernels::{Address, Gpu};
use tch::{Device, Kind, Tensor};

use crate::config::ModelConfig;
use crate::dispatch::Adam;
use crate::error::{Error, Result};
use crate::libtorch;
use crate::rope::Turn;

thread_local! {
    /// Compiling takes seconds, so a process does it once per device; by device and stream.
    static DEVICES: RefCell<BTreeMap<(usize, usize), Rc<Gpu>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A device with its kernels, on the stream that libtorch uses of it just now.
pub(crate) fn device(ordinal: usize) -> Result<Rc<Gpu>> {
    let stream = libtorch::current_stream(ordinal)?;
    DEVICES.with_borrow_mut(|devices| {
        if let Some(gpu) = devices.get(&(ordinal, stream as usize)) {
            return Ok(gpu.clone());
        }
        let known = devices.range((ordinal, 0)..=(ordinal, usize::MAX)).next();
        // SAFETY: libtorch's streams live as long as the process.
        let gpu = Rc::new(unsafe {
            match known {
                Some((_, gpu)) => gpu.beside(stream),
                None => Gpu::on_stream(ordinal, stream)?,
            }
        });
        devices.insert((ordinal, stream as usize), gpu.clone());
        Ok(gpu)
    })
}

/// The kernels for tensors of `kind` on `device`, where they serve.
pub(crate) fn kernels(place: Device, kind: Kind) -> Result<Option<Fused>> {
    match (place, kind) {
        (Device::Cuda(ordinal), Kind::BFloat16) => Ok(Some(Fused(device(ordinal)?))),
        _ => Ok(None),
    }
}

/// Whether they know the layers of a model of this shape.
pub(crate) fn serves(c: &ModelConfig) -> bool {
    c.head_dim % 16 == 0 && c.ffn % 8 == 0
}

/// The kernels on tensors. All are bfloat16 and row-major unless said.
pub(crate) struct Fused(Rc<Gpu>);

/// The address of a tensor's numbers.
fn at(t: &Tensor) -> Result<Address> {
    match t.is_contiguous() {
        true => Ok(t.data_ptr() as Address),
        false => Err(Error::Request(format!("a kernel got a tensor with gaps, {:?}", t.size()))),
    }
}

fn heads(c: &ModelConfig) -> Heads {
    let [heads, kv_heads, dim] = [c.heads, c.kv_heads, c.head_dim].map(|n| n as usize);
    Heads { heads, kv_heads, dim }
}

fn angles(turn: &Turn) -> Result<Angles> {
    Ok(Angles { cosines: at(&turn.cos)?, sines: at(&turn.sin)? })
}

impl Fused {
    /// `silu(gate) * up` `[T, ffn]` of `both` `[T, 2 * ffn]`.
    pub(crate) fn swiglu(&self, both: &Tensor) -> Result<Tensor> {
        let (rows, width) = (both.size()[0], both.size()[1] / 2);
        let out = Tensor::f_empty([rows, width], (both.kind(), both.device()))?;
        // SAFETY: contiguous tensors of those shapes.
        unsafe { launch::swiglu(&*self.0, at(both)?, at(&out)?, rows as usize, width as usize) }?;
        Ok(out)
    }

    /// `both` `[T, 2 * ffn]` becomes its own gradient, given that of [`Fused::swiglu`].
    pub(crate) fn swiglu_back(&self, both: Tensor, grad: &Tensor) -> Result<Tensor> {
        let (rows, width) = grad.size2()?;
        let (rows, width) = (rows as usize, width as usize);
        // SAFETY: contiguous tensors of those shapes.
        unsafe { launch::swiglu_back(&*self.0, at(&both)?, at(grad)?, rows, width) }?;
        Ok(both)
    }

    /// Turns query and key heads of `qkv` `[.., T, H + 2K, D]` in place.
    pub(crate) fn rotate(&self, qkv: &Tensor, turn: &Turn, c: &ModelConfig) -> Result<()> {
        let rows = qkv.numel() / heads(c).row();
        // SAFETY: a contiguous tensor of that shape, with angles for each row.
        Ok(unsafe { launch::rotate(&*self.0, at(qkv)?, angles(turn)?, rows, heads(c)) }?)
    }

    /// The gradient `[T, H + 2K, D]` of what [`Fused::rotate`] was given, from those of the heads.
    pub(crate) fn rotate_back(
        &self,
        [dq, dk, dv]: [&Tensor; 3],
        turn: &Turn,
        c: &ModelConfig,
    ) -> Result<Tensor> {
        let rows = dq.size()[0];
        let whole = [rows, c.heads + 2 * c.kv_heads, c.head_dim];
        let out = Tensor::f_empty(whole, (dq.kind(), dq.device()))?;
        let grads = [at(dq)?, at(dk)?, at(dv)?];
        let (angles, rows) = (angles(turn)?, rows as usize);
        // SAFETY: contiguous tensors of those shapes, with angles for each row.
        unsafe { launch::rotate_back(&*self.0, grads, angles, at(&out)?, rows, heads(c)) }?;
        Ok(out)
    }

    /// Scores of logits `[n, vocab]` at a temperature.
    pub(crate) fn score(&self, logits: &Tensor, targets: &Tensor, divisor: f64) -> Result<Rows> {
        let (rows, vocab) = logits.size2()?;
        let empty = |kind| Tensor::f_empty([rows], (kind, logits.device()));
        let (sums, chosen, entropies) =
            (empty(Kind::Float)?, empty(Kind::Float)?, empty(Kind::Float)?);
        let found = Rows { chosen, entropies, sums, best: empty(Kind::Int64)? };
        let (to, rest) = (found.scored(targets)?, (at(&found.chosen)?, at(&found.best)?));
        let (rows, vocab, divisor) = (rows as usize, vocab as usize, divisor as f32);
        // SAFETY: contiguous tensors of those shapes; targets are tokens.
        unsafe { launch::score(&*self.0, at(logits)?, divisor, to, rest, rows, vocab) }?;
        Ok(found)
    }

    /// `logits` become their own gradient, given float32 `[n]` those of the targets' log-probabilities and
    /// of the entropies.
    pub(crate) fn score_back(
        &self,
        logits: &Tensor,
        (targets, found): (&Tensor, &Rows),
        divisor: f64,
        (by_chosen, by_entropy): (&Tensor, Option<&Tensor>),
    ) -> Result<()> {
        let (rows, vocab) = logits.size2()?;
        let by = (at(by_chosen)?, by_entropy.map_or(Ok(0), at)?);
        let (rows, vocab, divisor) = (rows as usize, vocab as usize, divisor as f32);
        let scored = found.scored(targets)?;
        // SAFETY: contiguous tensors of those shapes; targets are tokens.
        Ok(unsafe { launch::score_back(&*self.0, at(logits)?, divisor, scored, by, rows, vocab) }?)
    }

    /// One AdamW step in place on weights whose halves are `high` and `low` (see [`crate::master`]), with
    /// float32 `grad`, `m` and `v`, all `[n]`.
    pub(crate) fn adamw(
        &self,
        [high, low, m, v]: [&Tensor; 4],
        grad: &Tensor,
        o: &Adam,
        (step, scale): (u64, f64),
    ) -> Result<()> {
        let state = State { high: at(high)?, low: at(low)?, m: at(m)?, v: at(v)? };
        let &Adam { lr: rate, beta1, beta2, weight_decay: decay, eps } = o;
        let o = launch::AdamW { rate, beta1, beta2, eps, decay, scale, step };
        // SAFETY: contiguous tensors of that length.
        Ok(unsafe { launch::adamw(&*self.0, state, at(grad)?, high.numel(), &o) }?)
    }
}

/// What [`Fused::score`] finds, `[n]` each.
pub(crate) struct Rows {
    /// float32: log-probabilities of the targets.
    pub(crate) chosen: Tensor,
    /// float32, in nats.
    pub(crate) entropies: Tensor,
    /// int64: the most probable tokens.
    pub(crate) best: Tensor,
    /// float32: the logs of the sums of exponentials.
    sums: Tensor,
}

impl Rows {
    fn scored(&self, targets: &Tensor) -> Result<Scored> {
        let (sums, entropies) = (at(&self.sums)?, at(&self.entropies)?);
        Ok(Scored { targets: at(targets)?, sums, entropies })
    }
}
