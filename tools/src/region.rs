//! Registered memory.
//!
//! The memory of a region is mapped until the process ends and recycled between regions of one size,
//! so no pointer into it is ever stale, whatever a provider still does with it. It is read and written
//! with raw copies only: no Rust reference to it exists, since the provider may write it at any time.

use std::cell::RefCell;
use std::ffi::{c_int, c_ulong};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use vipl_abi::*;

use crate::nic::{Nic, check};
use crate::{Result, sys};

thread_local! {
    /// Memory of regions that are gone.
    static SPARE: RefCell<Vec<(NonNull<u8>, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Registered memory, open to RDMA from the partner.
pub struct Region {
    nic: Nic,
    base: NonNull<u8>,
    length: usize,
    handle: VIP_MEM_HANDLE,
}

/// A piece of a region, as a data segment names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Its first byte.
    pub address: u64,
    /// The region's handle.
    pub handle: u32,
    /// Its bytes.
    pub length: u32,
}

impl Region {
    /// Maps, touches and registers memory.
    ///
    /// # Errors
    /// The system has no memory, or the library refuses to register it.
    pub fn new(nic: &Nic, length: usize) -> Result<Self> {
        let length = length.next_multiple_of(4096);
        let base = match take_spare(length) {
            Some(base) => base,
            None => sys::map(length, None)?,
        };
        let handle = match register(nic, base, length) {
            Ok(handle) => handle,
            Err(error) => {
                SPARE.with_borrow_mut(|spare| spare.push((base, length)));
                return Err(error.context(format!("{length} bytes")));
            }
        };
        Ok(Self {
            nic: nic.clone(),
            base,
            length,
            handle,
        })
    }

    /// The region's memory handle.
    #[must_use]
    pub fn handle(&self) -> VIP_MEM_HANDLE {
        self.handle
    }

    /// A piece of it.
    ///
    /// # Panics
    /// The piece is not inside.
    #[must_use]
    pub fn span(&self, offset: usize, length: usize) -> Span {
        let address = self.at(offset, length) as u64;
        Span {
            address,
            handle: self.handle,
            length: length as u32,
        }
    }

    /// Address of `length` bytes at `offset`, all inside.
    #[inline(always)]
    pub(crate) fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(
            offset
                .checked_add(length)
                .is_some_and(|end| end <= self.length)
        );
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Copies bytes into it.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let target = self.at(offset, bytes.len());
        // SAFETY: inside the mapping, and `bytes` is Rust's own memory.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies bytes out of it.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let source = self.at(offset, bytes.len());
        // SAFETY: inside the mapping, and `bytes` is Rust's own memory.
        unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Stores 8 bytes at once.
    #[inline(always)]
    pub fn store_u64(&self, offset: usize, value: u64) {
        // SAFETY: inside the mapping; unaligned is allowed.
        unsafe {
            self.at(offset, 8)
                .cast::<Packed>()
                .write_volatile(Packed(value))
        };
    }

    /// Looks up to `looks` times whether these 8 bytes have become `value`; what the provider wrote before them is
    /// visible then.
    #[inline(always)]
    #[must_use]
    pub fn becomes_u64(&self, offset: usize, value: u64, looks: u32) -> bool {
        let at = self.at(offset, 8).cast::<Packed>();
        // SAFETY: inside the mapping; unaligned is allowed.
        let here = (0..looks).any(|_| unsafe { at.read_volatile() }.0 == value);
        fence(Ordering::Acquire);
        here
    }

    /// The same with one byte.
    #[inline(always)]
    #[must_use]
    pub fn becomes_u8(&self, offset: usize, value: u8, looks: u32) -> bool {
        let at = self.at(offset, 1);
        // SAFETY: inside the mapping.
        let here = (0..looks).any(|_| unsafe { at.read_volatile() } == value);
        fence(Ordering::Acquire);
        here
    }

    /// Registers a piece of this memory once more and ends that registration at once.
    ///
    /// # Errors
    /// The library refuses either.
    #[inline]
    pub fn register_again(&self, offset: usize, length: usize) -> Result<()> {
        let start = NonNull::new(self.at(offset, length)).unwrap_or(self.base);
        let handle = register(&self.nic, start, length)?;
        check("VipDeregisterMem", deregister(&self.nic, start, handle))
    }
}

/// Eight bytes at any address.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Packed(u64);

impl Drop for Region {
    fn drop(&mut self) {
        // If the library keeps the registration, it keeps memory that stays mapped.
        let _ = deregister(&self.nic, self.base, self.handle);
        SPARE.with_borrow_mut(|spare| spare.push((self.base, self.length)));
    }
}

fn take_spare(length: usize) -> Option<NonNull<u8>> {
    SPARE.with_borrow_mut(|spare| {
        let index = spare.iter().position(|(_, have)| *have == length)?;
        Some(spare.swap_remove(index).0)
    })
}

#[inline]
fn register(nic: &Nic, base: NonNull<u8>, length: usize) -> Result<VIP_MEM_HANDLE> {
    let read = nic.attributes().rdma_read_levels != 0;
    let mut attributes = VIP_MEM_ATTRIBUTES {
        Ptag: nic.ptag(),
        EnableRdmaWrite: VIP_TRUE,
        EnableRdmaRead: VIP_BOOLEAN::from(read),
    };
    let mut handle = 0;
    // SAFETY: a live NIC, mapped memory that stays mapped, and room for the handle.
    let code = unsafe {
        (nic.functions().VipRegisterMem)(
            nic.handle(),
            base.as_ptr().cast(),
            length as c_ulong,
            &raw mut attributes,
            &raw mut handle,
        )
    };
    check("VipRegisterMem", code)?;
    Ok(handle)
}

#[inline]
fn deregister(nic: &Nic, base: NonNull<u8>, handle: VIP_MEM_HANDLE) -> c_int {
    // SAFETY: a live NIC, a start address and its handle.
    unsafe { (nic.functions().VipDeregisterMem)(nic.handle(), base.as_ptr().cast(), handle) }
}
