//! Memory of the application, registered with a NIC.

use std::sync::atomic::{AtomicU8, Ordering};

use vipl_guard::Segment;
use vipl_plugin_abi::*;

use super::Nic;
use crate::Status;

/// Registered memory. It is deregistered when it is dropped.
pub struct Memory {
    nic: Nic,
    bytes: Box<[AtomicU8]>,
    tag: u32,
    handle: u32,
}

impl Memory {
    pub(super) fn new(nic: Nic, bytes: usize, tag: u32) -> Memory {
        let index = nic.next_region();
        let memory = Memory {
            bytes: (0..bytes).map(|_| AtomicU8::new(0)).collect(),
            tag,
            handle: nic.info().regions_max | index,
            nic,
        };
        let region = memory.region();
        region.base.store(memory.address(0), Ordering::Relaxed);
        region.end.store(memory.address(bytes), Ordering::Relaxed);
        memory
            .set_access(VIPL_REGION_RDMA_WRITE | VIPL_REGION_RDMA_READ)
            .expect("a region");
        region.handle.store(memory.handle, Ordering::Release);
        memory
    }

    fn region(&self) -> &vipl_region {
        self.nic
            .region(self.handle & (self.nic.info().regions_max - 1))
    }

    /// Sets the `VIPL_REGION_*` bits: what peers may do by RDMA.
    ///
    /// # Errors
    /// What `region_add` returns.
    pub fn set_access(&self, flags: u32) -> Result<(), Status> {
        let access = u64::from(self.tag) << 32 | u64::from(flags);
        if let Some(add) = self.nic.operations().region_add {
            let (base, bytes) = (self.address(0), self.bytes.len() as u64);
            // SAFETY: the NIC is open.
            Status::check(unsafe { add(self.nic.abi(), self.handle, base, bytes, access) })?;
        }
        self.region().access.store(access, Ordering::Release);
        Ok(())
    }

    /// Takes the region out of the table. The memory stays.
    pub fn deregister(&self) {
        let was = self.region().handle.swap(0, Ordering::AcqRel);
        if let (true, Some(remove)) = (was == self.handle, self.nic.operations().region_remove) {
            // SAFETY: the NIC is open, and the test makes no transfer meanwhile.
            unsafe { remove(self.nic.abi(), self.handle) };
        }
    }

    /// The handle.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Address of the byte at this place.
    pub fn address(&self, at: usize) -> u64 {
        self.bytes.as_ptr().wrapping_add(at).expose_provenance() as u64
    }

    /// A data segment, or the address segment of RDMA.
    pub fn segment(&self, at: usize, length: u32) -> Segment {
        Segment {
            address: self.address(at),
            handle: self.handle,
            length,
        }
    }

    /// Writes as the application does.
    ///
    /// # Panics
    /// There are not so many bytes.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        for (place, byte) in self.bytes[at..at + bytes.len()].iter().zip(bytes) {
            place.store(*byte, Ordering::Relaxed);
        }
    }

    /// Reads as the application does.
    ///
    /// # Panics
    /// There are not so many bytes.
    pub fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let places = self.bytes[at..at + bytes].iter();
        places.map(|place| place.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.deregister();
    }
}
