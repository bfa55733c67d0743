//! What libtorch's C interface offers beyond tch: streams, and attention over packed sequences.
//!
//! Symbols are looked up when they are used: libraries without CUDA lack them, and the engine then
//! still runs on the CPU.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};

use tch::{Device, Tensor};

use crate::error::{Error, Result};

/// The address of a symbol of the libraries that are loaded.
fn symbol(name: &CStr) -> Result<*mut c_void> {
    // SAFETY: a look-up by name in what is loaded already.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let missing =
        || format!("libtorch lacks {}: it was built without CUDA", name.to_string_lossy());
    if found.is_null() { Err(Error::Request(missing())) } else { Ok(found) }
}

fn done(code: i32, what: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(Error::Request(format!("libtorch: {what} failed; its words are on stderr"))),
    }
}

/// Free and total bytes of a CUDA device.
///
/// # Errors
/// No CUDA.
pub fn memory(device: Device) -> Result<(usize, usize)> {
    let Device::Cuda(index) = device else {
        return Err(Error::Request("the memory of a CUDA device was asked for".into()));
    };
    // An allocation makes the context, in which the question is asked.
    let _context = Tensor::f_zeros([1], (tch::Kind::Float, Device::Cuda(index)))?;
    type MemGetInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> i32;
    let address = symbol(c"cudaMemGetInfo")?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: the runtime's function of that name has this signature.
    let code = unsafe {
        std::mem::transmute::<*mut c_void, MemGetInfo>(address)(&raw mut free, &raw mut total)
    };
    done(code, "cudaMemGetInfo").map(|()| (free, total))
}

/// A stream of libtorch's pool, current on this thread until dropped. Unlike libtorch's default
/// stream, launches on it can be recorded.
pub struct Stream {
    raw: *mut c_void,
    device: i32,
}

thread_local! {
    /// One per device: libtorch keeps a workspace for each stream that products ran on.
    static STREAMS: RefCell<BTreeMap<usize, *mut c_void>> = const { RefCell::new(BTreeMap::new()) };
}

fn from_pool(device: i32) -> Result<*mut c_void> {
    type FromPool = unsafe extern "C" fn(bool, i32, *mut *mut c_void) -> i32;
    let address = symbol(c"torch_get_cuda_stream_from_pool")?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: the signature is that of torch/csrc/stable/c/shim.h of 2.11.
    let code = unsafe {
        std::mem::transmute::<*mut c_void, FromPool>(address)(false, device, &raw mut raw)
    };
    done(code, "torch_get_cuda_stream_from_pool").map(|()| raw)
}

impl Stream {
    /// Makes a stream of the pool current, after what the device has been given so far.
    ///
    /// # Errors
    /// No CUDA.
    pub fn enter(device: usize) -> Result<Self> {
        tch::Cuda::synchronize(device as i64);
        let known = STREAMS.with_borrow(|streams| streams.get(&device).copied());
        let raw = known.map_or_else(|| from_pool(device as i32), Ok)?;
        STREAMS.with_borrow_mut(|streams| streams.insert(device, raw));
        let device = device as i32;
        let stream = Stream { raw, device };
        stream.make_current(raw)?;
        Ok(stream)
    }

    /// CUDA's handle.
    pub fn raw(&self) -> *mut c_void {
        self.raw
    }

    fn make_current(&self, stream: *mut c_void) -> Result<()> {
        type SetCurrent = unsafe extern "C" fn(*mut c_void, i32) -> i32;
        let address = symbol(c"torch_set_current_cuda_stream")?;
        // SAFETY: the signature is that of torch/csrc/stable/c/shim.h of 2.11.
        let code =
            unsafe { std::mem::transmute::<*mut c_void, SetCurrent>(address)(stream, self.device) };
        done(code, "torch_set_current_cuda_stream")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        tch::Cuda::synchronize(i64::from(self.device));
        // The null stream is the one that everybody else computes on.
        let _ = self.make_current(std::ptr::null_mut());
    }
}

/// Causal attention within each of several packed sequences (FlashAttention 2), without gradients.
/// `q` `[T, H, D]`, `k` and `v` `[T, K, D]`, bfloat16, the last dimension contiguous; sequence `i` is
/// the rows from `bounds[i]` to `bounds[i + 1]` (int32, on the device); `longest` of them. Answers
/// `[T, H, D]`.
///
/// # Errors
/// libtorch's, whose words are on stderr; no CUDA.
pub fn packed_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    bounds: &Tensor,
    longest: i64,
) -> Result<Tensor> {
    type Handle = *mut c_void;
    type Flash = unsafe extern "C" fn(
        Handle,
        Handle,
        Handle,
        *const Handle,
        *const Handle,
        i64,
        i64,
        f64,
        i32,
        i32,
        *const f64,
        *const i64,
        *const i64,
        *const Handle,
        *const Handle,
        *mut Handle,
        *mut Handle,
        *mut Handle,
        *mut Handle,
        *mut Handle,
    ) -> i32;
    let address = symbol(c"aoti_torch_cuda__flash_attention_forward")?;
    // A handle is the `at::Tensor*` that tch holds; the function borrows it.
    let handle = |t: &Tensor| t.as_ptr() as Handle;
    let bounds = handle(bounds);
    let none = std::ptr::null();
    let mut results = [std::ptr::null_mut(); 5];
    let [out, lse, rng, unused, mask] = &mut results;
    // SAFETY: the signature is that of aoti_torch/generated/c_shim_cuda.h of 2.11; the handles live
    // until it returns, the five results are ours.
    let code = unsafe {
        std::mem::transmute::<*mut c_void, Flash>(address)(
            handle(q),
            handle(k),
            handle(v),
            &raw const bounds,
            &raw const bounds,
            longest,
            longest,
            0.0,
            1,
            0,
            std::ptr::null(),
            std::ptr::null(),
            std::ptr::null(),
            none,
            none,
            out,
            lse,
            rng,
            unused,
            mask,
        )
    };
    done(code, "flash attention")?;
    // SAFETY: each is a tensor that we own now and drop once.
    let [out, ..] = results.map(|r| unsafe { Tensor::from_ptr(r.cast()) });
    Ok(out)
}
