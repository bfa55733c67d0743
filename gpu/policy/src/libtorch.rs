//! What libtorch's C interface offers beyond tch and its operations (those are in `dispatch`): streams
//! and the memory of a device.
//!
//! Symbols are looked up when they are used: libraries without CUDA lack them, and the engine then
//! still runs on the CPU.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use tch::{Device, Tensor};

use crate::error::{Error, Result};
use crate::fused;
use crate::metrics;

unsafe extern "C" {
    // `at::globalContext()`, and of what it answers `setDeterministicAlgorithms(bool, bool)` and
    // `setDeterministicFillUninitializedMemory(bool)`: libtorch has no C names for them.
    #[link_name = "_ZN2at13globalContextEv"]
    fn global_context() -> *mut c_void;
    #[link_name = "_ZN2at7Context26setDeterministicAlgorithmsEbb"]
    fn set_deterministic(context: *mut c_void, on: bool, warn_only: bool);
    #[link_name = "_ZN2at7Context39setDeterministicFillUninitializedMemoryEb"]
    fn fill_uninitialised(context: *mut c_void, on: bool);
}

static DETERMINISTIC: AtomicBool = AtomicBool::new(false);

/// Whether [`deterministic`] was called.
pub fn is_deterministic() -> bool {
    DETERMINISTIC.load(Ordering::Relaxed)
}

/// From now on libtorch's operations give the same bits for the same inputs on the same kind of device, in
/// this process. Those that cannot say so on stderr.
pub fn deterministic() {
    DETERMINISTIC.store(true, Ordering::Relaxed);
    set(true);
    // SAFETY: as in `set`. What is not written is never read here.
    unsafe { fill_uninitialised(global_context(), false) };
}

/// Deterministic operations, where those that have none say so or fail.
fn set(warn_only: bool) {
    // SAFETY: the names are those of torch 2.11, which tch holds us to; the context lives as long as the
    // process, and its setters take booleans.
    unsafe { set_deterministic(global_context(), true, warn_only) };
}

/// Does something with operations that choose another way only where they would fail otherwise: the backward
/// pass of flash attention.
pub(crate) fn strictly<T>(f: impl FnOnce() -> T) -> T {
    if !is_deterministic() {
        return f();
    }
    set(false);
    let done = f();
    set(true);
    done
}

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
    let found = metrics::device_memory(index);
    let (free, total) =
        found.ok_or_else(|| Error::Request(format!("CUDA device {index}: none")))?;
    Ok((free as usize, total as usize))
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

/// CUDA's handle of the stream that this thread computes on; null is the default one.
///
/// # Errors
/// No CUDA.
pub(crate) fn current_stream(device: usize) -> Result<*mut c_void> {
    type Current = unsafe extern "C" fn(i32, *mut *mut c_void) -> i32;
    let address = symbol(c"aoti_torch_get_current_cuda_stream")?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: the signature is that of torch/csrc/inductor/aoti_torch/c/shim.h of 2.11.
    let code = unsafe {
        std::mem::transmute::<*mut c_void, Current>(address)(device as i32, &raw mut raw)
    };
    done(code, "aoti_torch_get_current_cuda_stream").map(|()| raw)
}

/// Adds `dyᵀ x` to float32 `sum` `[out, in]`, for bfloat16 `dy` `[T, out]` and `x` `[T, in]` on the same
/// CUDA device, all without gaps: one product of cuBLAS, whose sums are never rounded to 16 bits.
///
/// # Errors
/// No CUDA; cuBLAS's.
pub(crate) fn add_product(sum: &Tensor, dy: &Tensor, x: &Tensor) -> Result<()> {
    type Handle = unsafe extern "C" fn(*mut *mut c_void) -> i32;
    #[rustfmt::skip]
    type Product = unsafe extern "C" fn(
        *mut c_void, i32, i32, i32, i32, i32, *const f32, *const c_void, i32, i32, *const c_void, i32,
        i32, *const f32, *mut c_void, i32, i32, i32, i32,
    ) -> i32;
    // cuBLAS's names for them, of library_types.h and cublas_api.h.
    const PLAIN: i32 = 0;
    const TURNED: i32 = 1;
    const BF16: i32 = 14;
    const F32: i32 = 0;
    const SUMS_F32: i32 = 68;
    const ANY: i32 = -1;
    let ((tokens, out), (_, inner)) = (dy.size2()?, x.size2()?);
    let whole = [sum, dy, x].iter().all(|t| t.is_contiguous());
    if !whole || x.size()[0] != tokens || sum.size() != [out, inner] {
        return Err(Error::Request("a gradient's product got tensors that do not fit".into()));
    }
    let (tokens, out, inner) = (tokens as i32, out as i32, inner as i32);
    if let Device::Cuda(index) = sum.device() {
        // The handle is that of the thread's device.
        fused::device(index)?.bind()?;
    }
    let (handle, product) =
        (symbol(c"torch_get_current_cuda_blas_handle")?, symbol(c"cublasGemmEx")?);
    let mut blas = std::ptr::null_mut();
    let one = 1.0_f32;
    // cuBLAS counts columns first, so the product is that of the transposed. SAFETY: the signatures are
    // those of torch/csrc/stable/c/shim.h of 2.11 and of cublas_api.h of CUDA 13; the shapes fit.
    unsafe {
        let code = std::mem::transmute::<*mut c_void, Handle>(handle)(&raw mut blas);
        done(code, "torch_get_current_cuda_blas_handle")?;
        #[rustfmt::skip]
        let code = std::mem::transmute::<*mut c_void, Product>(product)(
            blas, PLAIN, TURNED, inner, out, tokens, &one, x.data_ptr(), BF16, inner, dy.data_ptr(),
            BF16, out, &one, sum.data_ptr(), F32, inner, SUMS_F32, ANY,
        );
        match code {
            0 => Ok(()),
            _ => Err(Error::Request(format!("cuBLAS refused a gradient's product: status {code}"))),
        }
    }
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
