//! Reading whole sequences into the cache: packed into one row of tokens, attention by libtorch.

use kernels::Gpu;
use kernels::launch::{self, Heads, Tokens};
use tch::{Kind, Tensor};

use super::buffers::{Buffers, place};
use super::step::{Weights, address};
use crate::dispatch::{self, Varlen};
use crate::error::Result;
use crate::generate::backend::Sequence;

/// Reads `sequences` into their blocks.
pub(super) fn read(
    gpu: &Gpu,
    w: &Weights,
    b: &Buffers,
    heads: Heads,
    sequences: &[Sequence],
) -> Result<()> {
    let (mut tokens, mut positions, mut places, mut bounds) =
        (Vec::new(), Vec::new(), Vec::new(), vec![0_i32]);
    for s in sequences {
        tokens.extend(s.tokens.iter().map(|&t| t as i32));
        positions.extend(0..s.tokens.len() as i32);
        places.extend((0..s.tokens.len()).map(|p| place(&s.table, p)));
        bounds.push(tokens.len() as i32);
    }
    let longest = sequences.iter().map(|s| s.tokens.len()).max().unwrap_or(0) as i64;
    let device = w.model.device;
    let put = |v: &[i32]| Tensor::f_from_slice(v)?.f_to_device(device);
    let (given, positions, places) = (put(&tokens)?, put(&positions)?, put(&places)?);
    let bounds = put(&bounds)?;
    // Each sequence attends to itself.
    let segments = Varlen {
        starts_q: &bounds,
        starts_k: &bounds,
        longest_q: longest,
        longest_k: longest,
        causal: true,
    };
    let (rows, c) = (tokens.len(), &w.model.config);
    let make = |width: i64| Tensor::f_empty([rows as i64, width], (Kind::BFloat16, device));
    let (hidden, ffn) = (c.hidden as usize, c.ffn as usize);
    let (x, h, mut delta) = (make(c.hidden)?, make(c.hidden)?, make(0)?);
    let (at, kv) = (c.heads, c.kv_heads);
    let from = Tokens { given: address(&given), slots: 0, drawn: 0 };
    // SAFETY, here and below: all tensors have `rows` rows of the model's widths; places are of
    // blocks that the scheduler gave to these sequences alone.
    unsafe { launch::embed(gpu, &from, w.embed, address(&x), rows, hidden) }?;
    for (i, layer) in w.layers.iter().enumerate() {
        let norm = |delta: u64, weight: u64| unsafe {
            launch::rms_norm(gpu, address(&x), delta, weight, address(&h), rows, hidden, w.eps)
        };
        norm(if i == 0 { 0 } else { address(&delta) }, layer.norm1)?;
        let qkv = h.f_mm(&layer.qkv.view)?;
        let (positions, places) = (address(&positions), address(&places));
        let (q, cache) = (address(&qkv), b.layer(i));
        unsafe {
            launch::rope_and_cache(gpu, q, &layer.rope, positions, places, cache, rows, heads)?;
        }
        if i + 1 == w.layers.len() {
            // Nothing is drawn here: the keys and values are all there is to it.
            break;
        }
        let qkv = qkv.f_view([rows as i64, at + 2 * kv, c.head_dim])?;
        let cut = |from: i64, count: i64| qkv.f_narrow(1, from, count);
        let (q, k, v) = (cut(0, at)?, cut(at, kv)?, cut(at + kv, kv)?);
        let [mixed, ..] = dispatch::flash(&q, &k, &v, &segments)?;
        delta = mixed.f_view([rows as i64, -1])?.f_mm(&layer.out.view)?;
        norm(address(&delta), layer.norm2)?;
        let both = h.f_mm(&layer.gate_up.view)?;
        let act = make(c.ffn)?;
        unsafe { launch::swiglu(gpu, address(&both), address(&act), rows, ffn) }?;
        delta = act.f_mm(&layer.down.view)?;
    }
    Ok(())
}
