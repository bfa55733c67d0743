//! Tensors between ranks: a CPU's through the sockets by way of rank 0, a GPU's as what NCCL takes.

use collective::Star;
use collective::nccl::Number;
use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::libtorch;
use crate::shard::Shard;

/// Numbers of a CPU's tensor that rank 0 takes in at a time.
const CHUNK: i64 = 1 << 24;

/// Calls `f(type, address, stream)` for a tensor on a CUDA device.
pub(crate) fn on_stream(
    tensor: &Tensor,
    f: impl FnOnce(Number, *mut std::ffi::c_void, *mut std::ffi::c_void) -> collective::Result<()>,
) -> Result<()> {
    let number = match tensor.f_kind()? {
        Kind::Float => Number::F32,
        Kind::Double => Number::F64,
        Kind::BFloat16 => Number::Bf16,
        other => return Err(Error::Request(format!("ranks exchange no numbers of {other:?}"))),
    };
    let Device::Cuda(index) = tensor.device() else {
        return Err(Error::Request("NCCL moves tensors of CUDA devices".into()));
    };
    if !tensor.is_contiguous() {
        return Err(Error::Request("ranks exchange contiguous tensors".into()));
    }
    Ok(f(number, tensor.data_ptr(), libtorch::current_stream(index)?)?)
}

fn length(tensor: &Tensor) -> Result<usize> {
    match tensor.is_contiguous() && tensor.device() == Device::Cpu {
        true => Ok(tensor.numel() * tensor.f_kind()?.elt_size_in_bytes()),
        false => Err(Error::Request("ranks exchange contiguous tensors of the CPU".into())),
    }
}

/// A tensor's memory, to be sent.
pub(crate) fn bytes(tensor: &Tensor) -> Result<&[u8]> {
    let n = length(tensor)?;
    // SAFETY: so many bytes of the host's memory, which the tensor keeps and nobody writes meanwhile.
    Ok(if n == 0 {
        &[]
    } else {
        unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), n) }
    })
}

/// A tensor's memory, to be received into.
#[allow(clippy::mut_from_ref)]
pub(crate) fn bytes_mut(tensor: &Tensor) -> Result<&mut [u8]> {
    let n = length(tensor)?;
    // SAFETY: so many bytes of the host's memory, which the tensor keeps; callers hold one slice of
    // it at a time and read the tensor after that.
    let slice = |n| unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast(), n) };
    Ok(if n == 0 { &mut [] } else { slice(n) })
}

/// `reduce_scatter` by way of rank 0, which adds rank after rank.
pub(crate) fn sum_on_host(star: &mut Star, whole: &Tensor, shard: &Shard) -> Result<()> {
    let piece = |rank: usize| {
        let n = shard.piece();
        Ok::<_, Error>(whole.f_narrow(0, rank as i64 * n, n)?)
    };
    if star.rank() != 0 {
        star.send(0, bytes(whole)?)?;
        return Ok(star.receive(0, bytes_mut(&piece(star.rank())?)?)?);
    }
    let total = whole.size()[0];
    for rank in 1..star.world() {
        let mut at = 0;
        while at < total {
            let n = CHUNK.min(total - at);
            let mut place = whole.f_narrow(0, at, n)?;
            let theirs = place.f_empty_like()?;
            star.receive(rank, bytes_mut(&theirs)?)?;
            let _ = place.f_add_(&theirs)?;
            at += n;
        }
    }
    (1..star.world()).try_for_each(|rank| Ok(star.send(rank, bytes(&piece(rank)?)?)?))
}

/// `all_gather` by way of rank 0.
pub(crate) fn gather_on_host(star: &mut Star, whole: &Tensor, shard: &Shard) -> Result<()> {
    let n = shard.piece();
    let piece = |rank: usize| Ok::<_, Error>(whole.f_narrow(0, rank as i64 * n, n)?);
    if star.rank() != 0 {
        star.send(0, bytes(&piece(star.rank())?)?)?;
        return Ok(star.receive(0, bytes_mut(whole)?)?);
    }
    (1..star.world())
        .try_for_each(|rank| Ok::<_, Error>(star.receive(rank, bytes_mut(&piece(rank)?)?)?))?;
    (1..star.world()).try_for_each(|rank| Ok(star.send(rank, bytes(whole)?)?))
}
