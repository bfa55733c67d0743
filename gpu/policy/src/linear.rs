//! The four matrices of a layer, with an adapter beside them if there is one.

use tch::Tensor;

use crate::error::Result;
use crate::gradients::Gradients;
use crate::model::{Layer, Model};

/// A matrix of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Proj {
    /// Query, key and value.
    Qkv,
    /// Attention's output.
    Out,
    /// Gate and up.
    GateUp,
    /// Down.
    Down,
}

impl Layer {
    pub(crate) fn matrix(&self, proj: Proj) -> (&Tensor, usize) {
        match proj {
            Proj::Qkv => (&self.qkv, self.first + 1),
            Proj::Out => (&self.out, self.second()),
            Proj::GateUp => (&self.gate_up, self.second() + 2),
            Proj::Down => (&self.down, self.second() + 3),
        }
    }
}

impl Model {
    /// `[T, out]` of `x` `[T, in]`.
    pub(crate) fn project(
        &self,
        l: usize,
        layer: &Layer,
        proj: Proj,
        x: &Tensor,
    ) -> Result<Tensor> {
        let bias = layer.bias.as_ref().filter(|_| proj == Proj::Qkv);
        let y = self.linear(x, layer.matrix(proj).0, bias)?;
        if let Some(adapter) = &self.adapter {
            adapter.add(l, proj, x, &y)?;
        }
        Ok(y)
    }

    /// The gradient of `x` from that of [`Model::project`]'s answer; the matrix's goes to `grads`.
    pub(crate) fn project_back(
        &self,
        l: usize,
        layer: &Layer,
        proj: Proj,
        [x, dy]: [&Tensor; 2],
        grads: &Gradients,
    ) -> Result<Tensor> {
        let (weight, index) = layer.matrix(proj);
        if let Some(sink) = &grads.base {
            sink.add_product(index, dy, x)?;
            if proj == Proj::Qkv && layer.bias.is_some() {
                let sum = dy.f_sum_dim_intlist([0_i64].as_slice(), false, self.sum_kind())?;
                sink.add(index + 1, &sum)?;
            }
        }
        let dx = dy.f_mm(weight)?;
        if let (Some(adapter), Some(sink)) = (&self.adapter, &grads.adapter) {
            adapter.back(l, proj, [x, dy, &dx], sink)?;
        }
        Ok(dx)
    }
}
