//! libtorch operations that tch has no name for, called through libtorch's stable C interface.
//!
//! A call is a stack of 64-bit words: a tensor is an owned handle, a float its bits, an integer or
//! boolean itself, an absent value 0, an optional value a pointer to a word that the callee frees,
//! a list a handle of its own. What libtorch has to say about a failure goes to stderr.

use std::ffi::{CStr, c_char, c_void};

use tch::{TchError, Tensor};

use crate::error::{Error, Result};

/// The interface's version: 2.11.
const ABI: u64 = 2 << 56 | 11 << 48;

unsafe extern "C" {
    fn torch_call_dispatcher(
        name: *const c_char,
        overload: *const c_char,
        stack: *mut u64,
        abi: u64,
    ) -> i32;
    fn aoti_torch_new_tensor_handle(of: *mut c_void, handle: *mut *mut c_void) -> i32;
    fn torch_new_list_reserve_size(size: usize, list: *mut *mut c_void) -> i32;
    fn torch_list_push_back(list: *mut c_void, element: u64) -> i32;
}

fn check(code: i32, name: &CStr) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => {
            let text = format!("{} failed; the reason is on stderr", name.to_string_lossy());
            Err(Error::Torch(TchError::Torch(text)))
        }
    }
}

/// A handle that the callee takes over.
fn word(t: &Tensor) -> Result<u64> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: tch's pointer is an `at::Tensor *`, which is what a handle points to; it is read.
    let code = unsafe { aoti_torch_new_tensor_handle(t.as_ptr().cast_mut().cast(), &mut handle) };
    check(code, c"aoti_torch_new_tensor_handle")?;
    Ok(handle as u64)
}

/// An optional value that is there.
fn some(word: u64) -> u64 {
    // SAFETY: one word of C's heap, which the callee frees.
    unsafe {
        let place = libc::malloc(8).cast::<u64>();
        if place.is_null() {
            std::process::abort();
        }
        place.write(word);
        place as u64
    }
}

fn list(t: Option<&Tensor>) -> Result<u64> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the list is made here and taken over by the callee, as is the handle in it.
    unsafe {
        check(torch_new_list_reserve_size(1, &mut list), c"torch_new_list_reserve_size")?;
        if let Some(t) = t {
            check(torch_list_push_back(list, word(t)?), c"torch_list_push_back")?;
        }
    }
    Ok(list as u64)
}

/// Calls `name` with `stack`, which becomes the results.
fn call(name: &CStr, stack: &mut [u64]) -> Result<()> {
    // SAFETY: callers lay the words out as the schema beside them says.
    check(
        unsafe { torch_call_dispatcher(name.as_ptr(), c"".as_ptr(), stack.as_mut_ptr(), ABI) },
        name,
    )
}

fn tensor(word: u64) -> Tensor {
    // SAFETY: a result is a new `at::Tensor *` that nobody else owns.
    unsafe { Tensor::from_ptr((word as *mut c_void).cast()) }
}

/// Settings of one [`adamw`] update.
pub(crate) struct Adam {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) weight_decay: f64,
    pub(crate) eps: f64,
}

/// `aten::_fused_adamw_`: one AdamW update of `w` in place. `step` float32 `[]` counts this update
/// too; the gradient is divided by `scale` float32 `[]` first, in place.
pub(crate) fn adamw(
    [w, grad, m, v]: [&Tensor; 4],
    step: &Tensor,
    scale: &Tensor,
    o: &Adam,
) -> Result<()> {
    let mut stack = [
        list(Some(w))?,
        list(Some(grad))?,
        list(Some(m))?,
        list(Some(v))?,
        list(None)?,
        list(Some(step))?,
        o.lr.to_bits(),
        o.beta1.to_bits(),
        o.beta2.to_bits(),
        o.weight_decay.to_bits(),
        o.eps.to_bits(),
        0,
        0,
        some(word(scale)?),
        0,
    ];
    call(c"aten::_fused_adamw_", &mut stack)
}

/// Which rows of packed queries meet which rows of packed keys: int32 `[segments + 1]` starts, and
/// the longest segment.
pub(crate) struct Varlen<'a> {
    pub(crate) starts_q: &'a Tensor,
    pub(crate) starts_k: &'a Tensor,
    pub(crate) longest_q: i64,
    pub(crate) longest_k: i64,
    pub(crate) causal: bool,
}

/// `aten::_flash_attention_forward` over packed `[T, H, D]`, `[S, K, D]`, bf16 or f16 on CUDA:
/// the output `[T, H, D]`, float32 log-sum-exp `[H, T]`, and two tensors that the backward takes.
pub(crate) fn flash(q: &Tensor, k: &Tensor, v: &Tensor, s: &Varlen) -> Result<[Tensor; 4]> {
    let mut stack = [
        word(q)?,
        word(k)?,
        word(v)?,
        some(word(s.starts_q)?),
        some(word(s.starts_k)?),
        s.longest_q as u64,
        s.longest_k as u64,
        0_f64.to_bits(),
        u64::from(s.causal),
        0,
        0,
        0,
        0,
        0,
        0,
    ];
    call(c"aten::_flash_attention_forward", &mut stack)?;
    let [out, lse, rng, unused, debug] = [0, 1, 2, 3, 4].map(|i| tensor(stack[i]));
    drop(debug);
    Ok([out, lse, rng, unused])
}
