//! A communicator over NCCL's own functions.
//!
//! libtorch's CUDA libraries need libnccl.so.2, so it is in this process already and its functions are
//! looked up by name in what is loaded; by a file name another copy could be found. Calls do not block:
//! whoever waits goes on looking after the other ranks, and gives up when one is lost.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{
    cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};

use crate::error::{Error, Result};
use crate::star::Star;

/// What NCCL's header calls its undefined number.
const UNDEFINED: c_int = c_int::MIN;
const MAGIC: u32 = 0xcafe_beef;
/// The version that the configuration is laid out as.
const VERSION: u32 = 22800;
const NOT_READY: c_int = 600;
/// Between two looks at a call that is under way, and at the other ranks.
const LOOK: Duration = Duration::from_micros(20);
const WATCH: Duration = Duration::from_millis(2);
/// Within it the end of a process is seen by who is linked to it.
const AFTERMATH: Duration = Duration::from_millis(100);

type Abort = unsafe extern "C" fn(ncclComm_t) -> ncclResult_t;
type GetVersion = unsafe extern "C" fn(*mut c_int) -> ncclResult_t;
type GetId = unsafe extern "C" fn(*mut ncclUniqueId) -> ncclResult_t;
type Init = unsafe extern "C" fn(
    *mut ncclComm_t,
    c_int,
    ncclUniqueId,
    c_int,
    *mut ncclConfig_t,
) -> ncclResult_t;
type State = unsafe extern "C" fn(ncclComm_t, *mut ncclResult_t) -> ncclResult_t;
type Words = unsafe extern "C" fn(ncclComm_t) -> *const c_char;
type ReduceScatter = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    ncclDataType_t,
    ncclRedOp_t,
    ncclComm_t,
    cudaStream_t,
) -> ncclResult_t;
type AllGather = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    ncclDataType_t,
    ncclComm_t,
    cudaStream_t,
) -> ncclResult_t;
type Broadcast = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    ncclDataType_t,
    c_int,
    ncclComm_t,
    cudaStream_t,
) -> ncclResult_t;
type SetDevice = unsafe extern "C" fn(c_int) -> c_int;
type StreamQuery = unsafe extern "C" fn(*mut c_void) -> c_int;

/// A number's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// float32
    F32,
    /// float64
    F64,
    /// bfloat16
    Bf16,
}

impl Number {
    fn bytes(self) -> usize {
        match self {
            Number::F64 => 8,
            Number::F32 => 4,
            Number::Bf16 => 2,
        }
    }

    fn of_nccl(self) -> ncclDataType_t {
        match self {
            Number::F64 => ncclDataType_t::ncclFloat64,
            Number::F32 => ncclDataType_t::ncclFloat32,
            Number::Bf16 => ncclDataType_t::ncclBfloat16,
        }
    }
}

/// A function of a library that is loaded.
///
/// # Safety
/// `F` is the function's type.
unsafe fn find<F: Copy>(name: &'static CStr) -> Result<F> {
    // SAFETY: a look-up by name; a function's address is as large as a pointer.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        match found.is_null() {
            true => Err(Error::NoNccl(name.to_str().unwrap_or("a function of NCCL"))),
            false => Ok(std::mem::transmute_copy::<*mut c_void, F>(&found)),
        }
    }
}

fn word(result: ncclResult_t) -> String {
    format!("{result:?}")
}

fn done(call: &'static str, result: ncclResult_t) -> Result<()> {
    match result {
        ncclResult_t::ncclSuccess => Ok(()),
        other => Err(Error::Nccl { call, problem: word(other) }),
    }
}

/// NCCL's version, such as 22809 for 2.28.9.
///
/// # Errors
/// No NCCL.
pub fn version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: the type is that of NCCL's header; the call writes one number.
    let result = unsafe { find::<GetVersion>(c"ncclGetVersion")?(&raw mut version) };
    done("ncclGetVersion", result).map(|()| version)
}

/// A name for a communicator that is to be made, for rank 0 to tell the others.
///
/// # Errors
/// No NCCL, or no network interface for it to meet on.
pub fn unique_id() -> Result<Vec<u8>> {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: the type is that of NCCL's header; the call writes one id.
    let result = unsafe { find::<GetId>(c"ncclGetUniqueId")?(&raw mut id) };
    done("ncclGetUniqueId", result).map(|()| id.internal.iter().map(|&c| c as u8).collect())
}

fn config() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: MAGIC,
        version: VERSION,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: std::ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: std::ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
    }
}

/// One rank's communicator. Tensors stay on the device; all ranks make the same calls.
pub struct Nccl {
    comm: ncclComm_t,
    device: c_int,
    rank: usize,
    world: usize,
    state: State,
    words: Words,
    reduce_scatter: ReduceScatter,
    all_gather: AllGather,
    broadcast: Broadcast,
    abort: Abort,
    query: StreamQuery,
}

impl Nccl {
    /// Makes the communicator of the ranks of `star` that `id` names, with this rank on CUDA device
    /// `device`.
    ///
    /// # Errors
    /// No NCCL, a device that does not work, a rank that is lost or does not come within the deadline.
    pub fn join(star: &mut Star, device: usize, id: &[u8]) -> Result<Self> {
        let mut name = ncclUniqueId { internal: [0; 128] };
        if id.len() != name.internal.len() {
            return Err(Error::Start(format!("an id of NCCL has 128 bytes, not {}", id.len())));
        }
        name.internal.iter_mut().zip(id).for_each(|(to, &from)| *to = from as c_char);
        let (rank, world, device) = (star.rank(), star.world(), device as c_int);
        // SAFETY: the types are those of the headers of NCCL 2.28 and of the CUDA runtime; the
        // configuration outlives the call, which copies it.
        unsafe {
            let mut nccl = Nccl {
                comm: std::ptr::null_mut(),
                device,
                rank,
                world,
                state: find(c"ncclCommGetAsyncError")?,
                words: find(c"ncclGetLastError")?,
                reduce_scatter: find(c"ncclReduceScatter")?,
                all_gather: find(c"ncclAllGather")?,
                broadcast: find(c"ncclBroadcast")?,
                abort: find(c"ncclCommAbort")?,
                query: find(c"cudaStreamQuery")?,
            };
            nccl.select()?;
            let init: Init = find(c"ncclCommInitRankConfig")?;
            let mut config = config();
            let begun =
                init(&raw mut nccl.comm, world as c_int, name, rank as c_int, &raw mut config);
            nccl.under_way("ncclCommInitRankConfig", begun, star)?;
            Ok(nccl)
        }
    }

    fn select(&self) -> Result<()> {
        // SAFETY: the type is that of the CUDA runtime's header.
        match unsafe { find::<SetDevice>(c"cudaSetDevice")?(self.device) } {
            0 => Ok(()),
            code => Err(Error::Nccl { call: "cudaSetDevice", problem: format!("error {code}") }),
        }
    }

    fn failed(&self, call: &'static str, result: ncclResult_t) -> Error {
        // SAFETY: the call answers a C string that lives as long as the library, or nothing.
        let words = unsafe {
            let words = (self.words)(self.comm);
            if words.is_null() { "".into() } else { CStr::from_ptr(words).to_string_lossy() }
        };
        Error::Nccl { call, problem: format!("{}: {}", word(result), words.trim()) }
    }

    /// Waits while `look` says that it must, for as long as all ranks are there.
    fn wait(&self, star: &mut Star, mut look: impl FnMut() -> Result<bool>) -> Result<()> {
        let (began, mut watched) = (Instant::now(), Instant::now());
        loop {
            match look() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(e) => {
                    // Where another rank ended, its memory is gone, too: that is then the reason.
                    std::thread::sleep(AFTERMATH);
                    star.watch()?;
                    return Err(e);
                }
            }
            if watched.elapsed() > WATCH {
                star.watch()?;
                watched = Instant::now();
                if began.elapsed() > star.deadline() {
                    return Err(star.silent());
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until a call that answered `begun` is known to NCCL as begun.
    fn under_way(&self, call: &'static str, begun: ncclResult_t, star: &mut Star) -> Result<()> {
        let mut state = begun;
        self.wait(star, || {
            if state == ncclResult_t::ncclInProgress {
                // SAFETY: the communicator is being made or is there; one word is written.
                let asked = unsafe { (self.state)(self.comm, &raw mut state) };
                done("ncclCommGetAsyncError", asked)?;
            }
            Ok(state == ncclResult_t::ncclInProgress)
        })?;
        match state {
            ncclResult_t::ncclSuccess => Ok(()),
            other => Err(self.failed(call, other)),
        }
    }

    /// Waits until `stream` is done with what it was given.
    fn finish(&self, call: &'static str, stream: *mut c_void, star: &mut Star) -> Result<()> {
        self.wait(star, || {
            let mut state = ncclResult_t::ncclSuccess;
            // SAFETY: the communicator is there, and the stream is the caller's.
            let (asked, code) =
                unsafe { ((self.state)(self.comm, &raw mut state), (self.query)(stream)) };
            done("ncclCommGetAsyncError", asked)?;
            match (state, code) {
                (ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress, 0) => Ok(false),
                (ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress, NOT_READY) => Ok(true),
                (ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress, code) => {
                    Err(Error::Nccl { call, problem: format!("CUDA error {code}") })
                }
                (other, _) => Err(self.failed(call, other)),
            }
        })
    }

    /// Sums the ranks' `data`, world times `piece` numbers: afterwards rank r's r-th piece is the sum
    /// and the others are undefined.
    ///
    /// # Safety
    /// `data` is memory of the device for so many numbers and `stream` a stream of it.
    ///
    /// # Errors
    /// The device's, or a rank that is lost: then the contents of `data` are undefined.
    pub unsafe fn reduce_scatter(
        &self,
        star: &mut Star,
        data: *mut c_void,
        piece: usize,
        number: Number,
        stream: *mut c_void,
    ) -> Result<()> {
        self.select()?;
        // SAFETY: the caller's; the piece of this rank lies within `data`.
        let begun = unsafe {
            let own = data.byte_add(self.rank * piece * number.bytes());
            let (kind, sum) = (number.of_nccl(), ncclRedOp_t::ncclSum);
            (self.reduce_scatter)(data, own, piece, kind, sum, self.comm, stream.cast())
        };
        self.under_way("ncclReduceScatter", begun, star)?;
        self.finish("ncclReduceScatter", stream, star)
    }

    /// Gives all ranks each rank's piece of `data`, world times `piece` numbers.
    ///
    /// # Safety
    /// As [`Nccl::reduce_scatter`].
    ///
    /// # Errors
    /// As [`Nccl::reduce_scatter`].
    pub unsafe fn all_gather(
        &self,
        star: &mut Star,
        data: *mut c_void,
        piece: usize,
        number: Number,
        stream: *mut c_void,
    ) -> Result<()> {
        self.select()?;
        // SAFETY: the caller's; the piece of this rank lies within `data`.
        let begun = unsafe {
            let own = data.byte_add(self.rank * piece * number.bytes());
            (self.all_gather)(own, data, piece, number.of_nccl(), self.comm, stream.cast())
        };
        self.under_way("ncclAllGather", begun, star)?;
        self.finish("ncclAllGather", stream, star)
    }

    /// Gives all ranks rank 0's `data` of `count` numbers.
    ///
    /// # Safety
    /// As [`Nccl::reduce_scatter`].
    ///
    /// # Errors
    /// As [`Nccl::reduce_scatter`].
    pub unsafe fn broadcast(
        &self,
        star: &mut Star,
        data: *mut c_void,
        count: usize,
        number: Number,
        stream: *mut c_void,
    ) -> Result<()> {
        self.select()?;
        // SAFETY: the caller's.
        let begun = unsafe {
            (self.broadcast)(data, data, count, number.of_nccl(), 0, self.comm, stream.cast())
        };
        self.under_way("ncclBroadcast", begun, star)?;
        self.finish("ncclBroadcast", stream, star)
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.world
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if !self.comm.is_null() {
            // SAFETY: made by this library and used no more. Unlike a wait for the other ranks to
            // close theirs, this ends whatever they do.
            unsafe { (self.abort)(self.comm) };
        }
    }
}
