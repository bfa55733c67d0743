//! What launches need of a device: memory and kernels by name. [`crate::Gpu`] is one; tests have
//! another on the host.

use std::ffi::c_void;

use crate::error::Result;

/// An address in the memory of a machine.
pub type Address = u64;

/// Whoever runs kernels.
pub trait Machine {
    /// Starts a kernel of [`crate::compile::SOURCES`], in the order of the calls.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `arguments` point to the kernel's parameters, in order and of its types; addresses among them
    /// are of memory of the shapes that it works on.
    unsafe fn launch(
        &self,
        kernel: &'static str,
        grid: [u32; 3],
        threads: [u32; 3],
        arguments: &mut [*mut c_void],
    ) -> Result<()>;

    /// New memory, its content undefined.
    ///
    /// # Errors
    /// It is used up.
    fn alloc(&self, bytes: usize) -> Result<Memory>;

    /// Writes at the front of `to`, at once.
    ///
    /// # Errors
    /// The driver's.
    fn write(&self, to: &Memory, bytes: &[u8]) -> Result<()>;

    /// Waits for all launches, then reads from the front of `from`.
    ///
    /// # Errors
    /// A fault of an earlier kernel.
    fn read(&self, from: &Memory, bytes: &mut [u8]) -> Result<()>;

    /// Sets every byte, in the order of the launches.
    ///
    /// # Errors
    /// The driver's.
    fn fill(&self, memory: &Memory, byte: u8) -> Result<()>;
}

/// Memory of a machine, given back when dropped.
pub struct Memory {
    address: Address,
    bytes: usize,
    give_back: Box<dyn Fn(Address)>,
}

impl Memory {
    /// `bytes` of memory from `address` on; `give_back` is called once.
    pub fn new(address: Address, bytes: usize, give_back: Box<dyn Fn(Address)>) -> Self {
        Memory { address, bytes, give_back }
    }

    /// Its first byte.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        (self.give_back)(self.address);
    }
}
