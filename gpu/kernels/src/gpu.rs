//! A device with the kernels loaded, its memory, and events.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

use crate::compile::{self, SOURCES};
use crate::error::{Error, Result};
use crate::machine::{Address, Machine, Memory};

/// A device whose kernels are compiled, and the stream that everything of ours runs on.
pub struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// They live as long as the process: modules are not unloaded.
    functions: BTreeMap<&'static str, Function>,
}

/// A kernel's handle, good on any thread.
#[derive(Clone, Copy)]
struct Function(sys::CUfunction);

impl Gpu {
    /// Opens device `ordinal` with a stream of its own.
    ///
    /// # Errors
    /// No driver, no such device, NVRTC missing, a kernel that does not compile.
    pub fn open(ordinal: usize) -> Result<Self> {
        let context = context(ordinal)?;
        let stream = context.new_stream()?;
        Self::load(context, stream)
    }

    /// Opens device `ordinal` on a stream that someone else owns.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    ///
    /// # Safety
    /// `stream` is a stream of that device's primary context and outlives the result.
    pub unsafe fn on_stream(ordinal: usize, stream: *mut c_void) -> Result<Self> {
        let context = context(ordinal)?;
        // SAFETY: the caller's promise.
        let stream = unsafe { context.wrap_borrowed_stream(stream.cast()) };
        Self::load(context, stream)
    }

    /// The same device and kernels on another stream that someone else owns.
    ///
    /// # Safety
    /// As [`Gpu::on_stream`].
    pub unsafe fn beside(&self, stream: *mut c_void) -> Self {
        let context = self.context.clone();
        // SAFETY: the caller's promise.
        let stream = unsafe { context.wrap_borrowed_stream(stream.cast()) };
        Gpu { context, stream, functions: self.functions.clone() }
    }

    fn load(context: Arc<CudaContext>, stream: Arc<CudaStream>) -> Result<Self> {
        let (major, minor) = context.compute_capability()?;
        let arch = compile::arch(major, minor);
        let arch = arch.as_str();
        let mut functions = BTreeMap::new();
        // One thread per source: each takes seconds, NVRTC may run on several.
        let code = std::thread::scope(|scope| {
            let work = |s| scope.spawn(move || compile::compile(s, arch));
            let threads: Vec<_> = SOURCES.iter().map(work).collect();
            let lost = || Err(Error::Shape("the compiler's thread panicked".into()));
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| lost())).collect::<Vec<_>>()
        });
        for (source, code) in SOURCES.iter().zip(code) {
            let code = code?;
            // SAFETY: the context is current on this thread; the code is a whole cubin.
            let module = unsafe { result::module::load_data(code.as_ptr().cast()) }?;
            for &kernel in source.kernels {
                let name = CString::new(kernel).unwrap_or_default();
                // SAFETY: the module was loaded above.
                let function = unsafe { result::module::get_function(module, name) }?;
                functions.insert(kernel, Function(function));
            }
        }
        Ok(Gpu { context, stream, functions })
    }

    /// Makes the device the calling thread's.
    ///
    /// # Errors
    /// The driver's.
    pub fn bind(&self) -> Result<()> {
        Ok(self.context.bind_to_thread()?)
    }

    /// Free and total bytes of the device's memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<(usize, usize)> {
        Ok(self.context.mem_get_info()?)
    }

    /// Host memory that the device can copy from and to by itself.
    ///
    /// # Errors
    /// The host is out of memory that can be pinned.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        self.bind()?;
        // SAFETY: a plain allocation; the flags ask for memory of every context.
        let pointer = unsafe { result::malloc_host(bytes.max(16), 1) }?;
        Ok(Pinned { pointer: pointer.cast(), bytes, context: self.context.clone() })
    }

    /// Copies the first `bytes` of `from` to the device, in the stream's order.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `to` addresses that many bytes; `from` does not change until the copy is done.
    pub unsafe fn send(&self, from: &Pinned, to: Address, bytes: usize) -> Result<()> {
        self.bind()?;
        let from = from.bytes_up_to(bytes);
        // SAFETY: the caller's promise.
        Ok(unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) }?)
    }

    /// Copies `bytes` from the device, in the stream's order.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `from` addresses that many bytes; nobody reads `to` until the copy is done.
    pub unsafe fn fetch(&self, from: Address, to: &mut Pinned, bytes: usize) -> Result<()> {
        self.bind()?;
        let to = to.bytes_up_to_mut(bytes);
        // SAFETY: the caller's promise.
        Ok(unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) }?)
    }

    /// Records what `work` launches on the stream instead of doing it. Nothing in it may wait, or
    /// ask for memory of the device.
    ///
    /// # Errors
    /// `work`'s; the driver's.
    pub fn record<E: From<Error>>(
        &self,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Graph, E> {
        // Other threads may go on asking for memory meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        self.stream.begin_capture(mode).map_err(Error::from)?;
        let done = work();
        let graph = self.stream.end_capture(flags).map_err(Error::from);
        done?;
        let empty = || Error::Shape("nothing was recorded".into());
        Ok(Graph(graph?.ok_or_else(empty)?))
    }

    /// Marks what the stream has been given so far.
    ///
    /// # Errors
    /// The driver's.
    pub fn mark(&self) -> Result<Mark> {
        Ok(Mark(self.stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))?))
    }
}

/// Launches that were recorded once and can be started together.
pub struct Graph(cudarc::driver::CudaGraph);

impl Graph {
    /// Starts them, in the stream's order.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self) -> Result<()> {
        Ok(self.0.launch()?)
    }
}

/// A point in the stream.
pub struct Mark(cudarc::driver::CudaEvent);

impl Mark {
    /// Waits until the stream has passed it.
    ///
    /// # Errors
    /// A fault of a kernel before it.
    pub fn wait(&self) -> Result<()> {
        Ok(self.0.synchronize()?)
    }

    /// Milliseconds of the device between two marks, both passed.
    ///
    /// # Errors
    /// One was not passed.
    pub fn until(&self, later: &Mark) -> Result<f32> {
        Ok(self.0.elapsed_ms(&later.0)?)
    }
}

fn context(ordinal: usize) -> Result<Arc<CudaContext>> {
    // SAFETY: only tries to open the driver's library; cudarc would panic without it.
    if !unsafe { sys::is_culib_present() } {
        let fix = "this machine has no NVIDIA driver";
        return Err(Error::Library { library: "libcuda.so.1", fix });
    }
    let context = CudaContext::new(ordinal)?;
    // SAFETY: everything runs on one stream, so nothing has to wait for another.
    unsafe { context.disable_event_tracking() };
    Ok(context)
}

impl Machine for Gpu {
    unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: [u32; 3],
        threads: [u32; 3],
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.bind()?;
        let ([x, y, z], [i, j, k]) = (grid, threads);
        let Function(function) = self.functions[kernel];
        let stream = self.stream.cu_stream();
        // SAFETY: the caller's promise.
        let launched =
            unsafe { result::launch_kernel(function, (x, y, z), (i, j, k), 0, stream, arguments) };
        Ok(launched?)
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        self.bind()?;
        // SAFETY: a plain allocation.
        let address = unsafe { result::malloc_sync(bytes.max(16)) }?;
        let context = self.context.clone();
        // Freeing waits for what the device still does with it. Nobody could act on an error.
        let free = move |address| {
            if context.bind_to_thread().is_ok() {
                // SAFETY: allocated above, freed once.
                let _ = unsafe { result::free_sync(address) };
            }
        };
        Ok(Memory::new(address, bytes, Box::new(free)))
    }

    fn write(&self, to: &Memory, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= to.bytes());
        self.bind()?;
        // SAFETY: checked above; a synchronous copy.
        Ok(unsafe { result::memcpy_htod_sync(to.address(), bytes) }?)
    }

    fn read(&self, from: &Memory, bytes: &mut [u8]) -> Result<()> {
        assert!(bytes.len() <= from.bytes());
        self.bind()?;
        self.stream.synchronize()?;
        // SAFETY: checked above; a synchronous copy.
        Ok(unsafe { result::memcpy_dtoh_sync(bytes, from.address()) }?)
    }

    fn fill(&self, memory: &Memory, byte: u8) -> Result<()> {
        self.bind()?;
        // SAFETY: the memory has that size, and freeing it waits.
        let set = unsafe {
            let (address, bytes) = (memory.address(), memory.bytes());
            result::memset_d8_async(address, byte, bytes, self.stream.cu_stream())
        };
        Ok(set?)
    }
}

/// Pinned host memory.
pub struct Pinned {
    pointer: *mut u8,
    bytes: usize,
    context: Arc<CudaContext>,
}

impl Pinned {
    /// Its bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.bytes_up_to_mut(self.bytes)
    }

    /// Its bytes, to read.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes_up_to(self.bytes)
    }

    fn bytes_up_to(&self, bytes: usize) -> &[u8] {
        assert!(bytes <= self.bytes);
        // SAFETY: allocated with at least that size; any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.pointer, bytes) }
    }

    fn bytes_up_to_mut(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.bytes);
        // SAFETY: as above, and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by us, freed once.
            let _ = unsafe { result::free_host(self.pointer.cast()) };
        }
    }
}
