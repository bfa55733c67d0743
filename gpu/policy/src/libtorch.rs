//! What libtorch's C interface offers beyond tch and its operations (those are in `dispatch`): streams
//! and the memory of a device.
//!
//! Symbols are looked up when they are used: libraries without CUDA lack them, and the engine then
//! still runs on the CPU.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};

use tch::Device;

use crate::error::{Error, Result};
use crate::metrics;

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

/// The stream of CUDA device `device` that libtorch launches on, on this thread.
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
