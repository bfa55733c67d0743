//! Sums of gradients in flat buffers laid out as the parameters.

use tch::{Device, Kind, Tensor};

use crate::error::Result;
use crate::libtorch;
use crate::model::Model;
use crate::params::Params;

/// The sum of one set of parameters: float32 `[total]` (float64 for float64 parameters).
pub(crate) struct Sink<'a> {
    params: &'a Params,
    flat: &'a Tensor,
}

impl Sink<'_> {
    fn place(&self, index: usize) -> Result<Tensor> {
        let spec = &self.params.specs[index];
        Ok(self.flat.f_narrow(0, spec.offset, spec.numel())?.f_view(&spec.shape[..])?)
    }

    /// Adds the gradient of one parameter, of any float type.
    pub(crate) fn add(&self, index: usize, grad: &Tensor) -> Result<()> {
        let mut place = self.place(index)?;
        let _ = place.f_add_(&grad.f_view_as(&place)?)?;
        Ok(())
    }

    /// Adds `dyᵀ x`, the gradient of a matrix that turned `x` `[T, in]` into `y` `[T, out]`.
    pub(crate) fn add_product(&self, index: usize, dy: &Tensor, x: &Tensor) -> Result<()> {
        let mut place = self.place(index)?;
        let kind = dy.f_kind()?;
        if kind == Kind::BFloat16 && place.device() != Device::Cpu {
            return libtorch::add_product(&place, dy, x);
        }
        let _ = match kind == place.f_kind()? {
            true => place.f_addmm_(&dy.f_tr()?, x)?,
            // 16-bit factors: the product is rounded once to 16 bits, the sum stays wide.
            false => place.f_add_(&dy.f_tr()?.f_mm(x)?)?,
        };
        Ok(())
    }

    /// Adds `rows` `[T, in]` to the rows `ids` `[T]` of a matrix.
    pub(crate) fn add_rows(&self, index: usize, ids: &Tensor, rows: &Tensor) -> Result<()> {
        let place = self.place(index)?;
        add_rows(&place, ids, &rows.f_to_kind(place.f_kind()?)?)
    }
}

/// Adds `rows` to the rows `ids` of `place`, in an order that is always the same.
pub(crate) fn add_rows(place: &Tensor, ids: &Tensor, rows: &Tensor) -> Result<()> {
    let mut place = place.shallow_clone();
    let _ = match place.device() {
        Device::Cpu => place.f_index_add_(0, ids, rows)?,
        // CUDA's index_add adds in the order that threads come; this one sorts first.
        _ => place.f_index_put_(&[Some(ids)], rows, true)?,
    };
    Ok(())
}

/// Where the gradients of a backward pass go: to the model's weights, or to its adapter's, and
/// then not to the weights.
pub struct Gradients<'a> {
    pub(crate) base: Option<Sink<'a>>,
    pub(crate) adapter: Option<Sink<'a>>,
}

impl<'a> Gradients<'a> {
    /// `flat` is laid out as [`Model::trained`]'s parameters.
    pub fn new(model: &'a Model, flat: &'a Tensor) -> Self {
        match &model.adapter {
            Some(a) => Gradients { base: None, adapter: Some(Sink { params: &a.params, flat }) },
            None => Gradients { base: Some(Sink { params: &model.params, flat }), adapter: None },
        }
    }
}

/// What `f` would pass back: the gradients of `inputs`, given that of `f`'s answer.
pub(crate) fn vjp(
    inputs: &[&Tensor],
    grad: &Tensor,
    f: impl FnOnce(&[Tensor]) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    tch::with_grad(|| {
        let leaf = |t: &&Tensor| t.f_detach()?.f_set_requires_grad(true);
        let leaves = inputs.iter().map(leaf).collect::<std::result::Result<Vec<_>, _>>()?;
        // The gradient of this sum with respect to the answer is exactly `grad`.
        let sum = f(&leaves)?.f_mul(grad)?.f_sum(Kind::Float)?;
        Ok(Tensor::f_run_backward(&[sum], &leaves, false, false)?)
    })
}
