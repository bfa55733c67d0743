//! Every kernel on the host against float64: its sources compiled as C++, each thread a fiber. What a
//! kernel computes is tested so on every machine; `kernelzero-engine check-kernels` does the same
//! on a GPU.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;

use kernels::{Address, Machine, Memory, Result, check};

type Launch =
    unsafe extern "C" fn(*const c_char, *const u32, *const u32, *mut *mut c_void) -> c_int;

struct Host {
    launch: Launch,
}

impl Host {
    fn build() -> Self {
        let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("kernels.so");
        let built = Command::new("c++")
            .args(["-O2", "-std=c++20", "-w", "-shared", "-fPIC", "-U_FORTIFY_SOURCE"])
            .arg("-I")
            .arg(here.join("src/cuda"))
            .arg("-I")
            .arg(here.join("tests/host"))
            .arg("-o")
            .args([library.as_os_str(), here.join("tests/host/kernels.cc").as_os_str()])
            .output()
            .expect("a C++ compiler, `c++`, is needed for this test");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let path = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: our own library, which stays loaded; the function has this signature.
        let launch = unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let found = libc::dlsym(handle, c"launch".as_ptr());
            assert!(!found.is_null());
            std::mem::transmute::<*mut c_void, Launch>(found)
        };
        Host { launch }
    }
}

impl Machine for Host {
    unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: [u32; 3],
        threads: [u32; 3],
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let name = CString::new(kernel).unwrap();
        // SAFETY: the caller's promise.
        let code = unsafe {
            (self.launch)(name.as_ptr(), grid.as_ptr(), threads.as_ptr(), arguments.as_mut_ptr())
        };
        assert_eq!(code, 0, "{kernel} is missing from tests/host/kernels.cc");
        Ok(())
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        // SAFETY: a plain allocation of 256 bytes' alignment, as devices give.
        let pointer = unsafe { libc::memalign(256, bytes.max(16)) };
        assert!(!pointer.is_null());
        // SAFETY: allocated above, freed once.
        let free = |address: Address| unsafe { libc::free(address as *mut c_void) };
        Ok(Memory::new(pointer as Address, bytes, Box::new(free)))
    }

    fn write(&self, to: &Memory, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= to.bytes());
        // SAFETY: checked above.
        unsafe { std::ptr::copy(bytes.as_ptr(), to.address() as *mut u8, bytes.len()) };
        Ok(())
    }

    fn read(&self, from: &Memory, bytes: &mut [u8]) -> Result<()> {
        assert!(bytes.len() <= from.bytes());
        // SAFETY: checked above.
        unsafe { std::ptr::copy(from.address() as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn fill(&self, memory: &Memory, byte: u8) -> Result<()> {
        // SAFETY: the memory has that size.
        unsafe { std::ptr::write_bytes(memory.address() as *mut u8, byte, memory.bytes()) };
        Ok(())
    }
}

#[test]
fn every_kernel_agrees_with_float64() {
    let reports = check::all(&Host::build(), 1).unwrap_or_else(|e| panic!("{e}"));
    assert!(reports.len() >= 9 && reports.iter().all(|r| r.cases > 0));
}
