//! Registered memory.
//!
//! The memory of a region is mapped until the process ends and recycled between regions of one size,
//! so no pointer into it is ever stale, whatever a provider still does with it. It is read and written
//! with raw copies only: no Rust reference to it exists, since the provider may write it at any time.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use vipl_abi::{VIP_BOOLEAN, VIP_MEM_ATTRIBUTES, VIP_MEM_HANDLE, VIP_RETURN, VIP_TRUE, VIP_ULONG};
use vipl_client::{Access, Error as VipError, Reliability};

use crate::nic::Nic;
use crate::{Error, Result, sys};

/// A piece of a region, as a data segment names it, and as the peer does.
pub use vipl_client::Remote as Span;

thread_local! {
    /// Memory of dropped regions.
    static SPARE: RefCell<Vec<(NonNull<u8>, usize)>> = const { RefCell::new(Vec::new()) };
}

/// Variable by which a process and the peers that it starts have their regions from `vipl_alloc`.
const MEMORY_VARIABLE: &str = "VIP_TOOLS_MEMORY";

/// Makes all regions of this process, and of the peers that it starts, memory of `vipl_alloc`. Before other threads start.
pub fn use_library_memory() {
    sys::default_env(MEMORY_VARIABLE, "library");
}

/// Registered memory, open to RDMA from the peer.
pub struct Region {
    nic: Nic,
    /// Dropped before the memory is spare.
    region: vipl_client::Region,
    _memory: Memory,
}

/// Memory that is mapped until the process ends; spare when dropped.
struct Memory(NonNull<u8>, usize);

impl Drop for Memory {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| spare.push((self.0, self.1)));
    }
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
            None if from_library() => allocate(nic, length)?,
            None => sys::map(length, None)?,
        };
        let memory = Memory(base, length);
        let access = Access {
            write: true,
            read: nic.attributes().rdma_read != Reliability::default(),
        };
        // SAFETY: it stays mapped, and is used through the region only.
        let region = unsafe { vipl_client::Region::from_raw(nic.ptag(), base, length, access) }?;
        Ok(Self {
            nic: nic.clone(),
            region,
            _memory: memory,
        })
    }

    /// The region's memory handle.
    #[must_use]
    pub fn handle(&self) -> VIP_MEM_HANDLE {
        self.region.handle()
    }

    /// A piece of it.
    ///
    /// # Panics
    /// The piece is not inside.
    #[must_use]
    pub fn span(&self, offset: usize, length: usize) -> Span {
        self.region.remote(offset, length)
    }

    /// Address of `length` bytes at `offset`, all inside.
    #[inline(always)]
    pub(crate) fn at(&self, offset: usize, length: usize) -> *mut u8 {
        self.region.at(offset, length)
    }

    /// Copies bytes into it.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.region.write(offset, bytes);
    }

    /// Copies bytes out of it.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.region.read(offset, bytes);
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
        let (nic, start) = (&self.nic, self.at(offset, length).cast());
        let mut attributes = VIP_MEM_ATTRIBUTES {
            Ptag: nic.ptag().handle(),
            EnableRdmaWrite: VIP_TRUE,
            EnableRdmaRead: VIP_BOOLEAN::from(nic.attributes().rdma_read != Reliability::default()),
        };
        let mut handle = 0;
        let (register, end) = (
            nic.functions().VipRegisterMem,
            nic.functions().VipDeregisterMem,
        );
        // SAFETY: a live NIC, mapped memory that stays mapped, and room for the handle.
        let code = unsafe {
            let bytes = length as VIP_ULONG;
            register(
                nic.handle(),
                start,
                bytes,
                &raw mut attributes,
                &raw mut handle,
            )
        };
        if code != 0 {
            return Err(VipError::call("VipRegisterMem", code).into());
        }
        // SAFETY: a live NIC, the address that was registered, and its handle.
        match unsafe { end(nic.handle(), start, handle) } {
            0 => Ok(()),
            code => Err(VipError::call("VipDeregisterMem", code).into()),
        }
    }
}

/// Eight bytes at any address.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Packed(u64);

/// Whether regions are memory of `vipl_alloc`.
fn from_library() -> bool {
    static FROM_LIBRARY: OnceLock<bool> = OnceLock::new();
    *FROM_LIBRARY
        .get_or_init(|| std::env::var_os(MEMORY_VARIABLE).is_some_and(|is| is == "library"))
}

fn allocate(nic: &Nic, length: usize) -> Result<NonNull<u8>> {
    let allocate = nic.functions().vipl_alloc;
    let allocate =
        allocate.ok_or_else(|| Error::Usage("this VIPL has no vipl_alloc".to_owned()))?;
    let mut base = std::ptr::null_mut();
    // SAFETY: room for the address.
    let code = unsafe { allocate(length as VIP_ULONG, &raw mut base) };
    match NonNull::new(base.cast()) {
        Some(base) if code == VIP_RETURN::VIP_SUCCESS as i32 => Ok(base),
        _ => Err(Error::Usage(format!("vipl_alloc has no {length} bytes"))),
    }
}

fn take_spare(length: usize) -> Option<NonNull<u8>> {
    SPARE.with_borrow_mut(|spare| {
        let index = spare.iter().position(|(_, have)| *have == length)?;
        Some(spare.swap_remove(index).0)
    })
}
