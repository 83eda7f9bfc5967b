//! Protection tags and registered memory.
//!
//! Memory that the library may write belongs to one of two kinds. A [`Buffer`] holds messages: it is exclusively
//! owned, by the program or by a posted descriptor, and peers have no RDMA to it. A [`Region`] is open to RDMA: peers
//! may write to it at any time, so it is never lent as a Rust slice, only copied from and to.

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use vipl_abi::*;

use crate::error::{Error, Result, check};
use crate::nic::Nic;

/// A protection tag: a VI may use memory of its own tag only. A counted reference.
#[derive(Clone, Debug)]
pub struct Ptag(Arc<Tag>);

#[derive(Debug)]
struct Tag {
    nic: Nic,
    handle: VIP_PROTECTION_HANDLE,
}

// SAFETY: the handle is a value, and the library is thread-safe: see `Nic`.
unsafe impl Send for Tag {}
// SAFETY: as above.
unsafe impl Sync for Tag {}

impl Ptag {
    /// Creates a tag.
    ///
    /// # Errors
    /// [`Code::Resource`](crate::Code::Resource): a limit is reached.
    pub fn new(nic: &Nic) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live NIC and room for the tag.
        check("VipCreatePtag", unsafe {
            (nic.functions().VipCreatePtag)(nic.handle(), &raw mut handle)
        })?;
        let nic = nic.clone();
        Ok(Self(Arc::new(Tag { nic, handle })))
    }

    /// Its NIC.
    #[must_use]
    pub fn nic(&self) -> &Nic {
        &self.0.nic
    }

    /// The handle.
    #[must_use]
    pub fn handle(&self) -> VIP_PROTECTION_HANDLE {
        self.0.handle
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        // SAFETY: a live handle and its tag; all VIs and registrations held it and are dropped.
        let _ = unsafe { (self.nic.functions().VipDestroyPtag)(self.nic.handle(), self.handle) };
    }
}

/// What peers may do with a region by RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// RDMA Write to it.
    pub write: bool,
    /// RDMA Read from it.
    pub read: bool,
}

impl Access {
    /// Nothing.
    pub const NONE: Self = Self {
        write: false,
        read: false,
    };
    /// RDMA Write.
    pub const WRITE: Self = Self {
        write: true,
        read: false,
    };
    /// RDMA Read.
    pub const READ: Self = Self {
        write: false,
        read: true,
    };
}

/// Whose the memory of a registration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The program's.
    Program,
    /// Mapped for this registration.
    Mapped,
    /// Of `vipl_alloc`, for this registration.
    Library,
}

/// One registration, and the memory if it is for it alone.
#[derive(Debug)]
pub(crate) struct Registration {
    ptag: Ptag,
    base: NonNull<u8>,
    length: usize,
    handle: VIP_MEM_HANDLE,
    origin: Origin,
    has_ended: bool,
}

// SAFETY: an address and a handle; who may touch the memory is up to the owners.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Maps and registers memory: zeroed, at a page's beginning. What is open to RDMA comes from `vipl_alloc`, if the library
    /// has that.
    pub(crate) fn map(ptag: &Ptag, length: usize, access: Access) -> Result<Self> {
        let length = length.max(1).next_multiple_of(4096);
        let allocate = ptag.nic().functions().vipl_alloc;
        let (base, origin) = match allocate.filter(|_| access != Access::NONE) {
            Some(allocate) => {
                let mut base = std::ptr::null_mut();
                // SAFETY: room for the address.
                let code = unsafe { allocate(length as VIP_ULONG, &raw mut base) };
                check("vipl_alloc", code)
                    .map_err(|error| error.context(format!("{length} bytes")))?;
                (base, Origin::Library)
            }
            None => (map_private(length)?, Origin::Mapped),
        };
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(Error::Memory(std::io::ErrorKind::OutOfMemory.into()));
        };
        // SAFETY: just mapped; no other code knows it.
        let registered = unsafe { Self::new(ptag, base, length, access, origin) };
        if registered.is_err() {
            // SAFETY: as above, and not used.
            unsafe { give_back(ptag, base, length, origin) };
        }
        registered
    }

    /// Registers memory.
    ///
    /// # Safety
    /// The memory stays mapped until the registration is dropped, and the library and peers may access it as
    /// `access` says.
    unsafe fn new(
        ptag: &Ptag,
        base: NonNull<u8>,
        length: usize,
        access: Access,
        origin: Origin,
    ) -> Result<Self> {
        let mut attributes = VIP_MEM_ATTRIBUTES {
            Ptag: ptag.handle(),
            EnableRdmaWrite: VIP_BOOLEAN::from(access.write),
            EnableRdmaRead: VIP_BOOLEAN::from(access.read),
        };
        let mut handle = 0;
        // SAFETY: a live NIC, mapped memory by contract, and room for the handle.
        let code = unsafe {
            (ptag.nic().functions().VipRegisterMem)(
                ptag.nic().handle(),
                base.as_ptr().cast(),
                length as VIP_ULONG,
                &raw mut attributes,
                &raw mut handle,
            )
        };
        check("VipRegisterMem", code).map_err(|error| error.context(format!("{length} bytes")))?;
        Ok(Self {
            ptag: ptag.clone(),
            base,
            length,
            handle,
            origin,
            has_ended: false,
        })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn handle(&self) -> VIP_MEM_HANDLE {
        self.handle
    }

    /// Ends the registration, and gives the memory back if it is for it alone. If the library keeps the registration, as in a
    /// forked child, the memory stays mapped.
    fn deregister(&mut self) -> Result<()> {
        self.end()?;
        // SAFETY: not used any more.
        unsafe { give_back(&self.ptag, self.base, self.length, self.origin) };
        Ok(())
    }

    /// Ends the registration; no process but this one accesses the memory afterwards.
    fn end(&mut self) -> Result<()> {
        let nic = self.ptag.nic();
        self.has_ended = true;
        // SAFETY: a live NIC, the address that was registered, and its handle.
        check("VipDeregisterMem", unsafe {
            (nic.functions().VipDeregisterMem)(nic.handle(), self.base.as_ptr().cast(), self.handle)
        })
    }
}

/// Maps private memory, zeroed.
fn map_private(length: usize) -> Result<*mut c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(Error::Memory(std::io::Error::last_os_error()));
    }
    Ok(base)
}

/// Gives memory of [`Registration::map`] back.
///
/// # Safety
/// Of this origin and length, and not used any more.
unsafe fn give_back(ptag: &Ptag, base: NonNull<u8>, length: usize, origin: Origin) {
    let address = base.as_ptr().cast::<c_void>();
    match (origin, ptag.nic().functions().vipl_free) {
        (Origin::Mapped, _) => {
            // SAFETY: as asked of the caller.
            unsafe { libc::munmap(address, length) };
        }
        (Origin::Library, Some(free)) => {
            // SAFETY: as asked of the caller.
            let _ = unsafe { free(address) };
        }
        (Origin::Library, None) | (Origin::Program, _) => {}
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.deregister();
        }
    }
}

/// Registered memory for messages, which dereferences to its bytes.
///
/// It is exclusively owned: by the program, or by a [`Descriptor`](crate::Descriptor), which the library owns while it is
/// posted. Peers have no RDMA to it.
#[derive(Debug)]
pub struct Buffer {
    base: NonNull<u8>,
    length: u32,
    registration: Arc<Registration>,
}

// SAFETY: as a boxed slice: the memory has one owner.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Maps and registers this many bytes, zeroed.
    ///
    /// # Errors
    /// The system has no memory, or the library refuses to register it.
    pub fn new(ptag: &Ptag, length: u32) -> Result<Self> {
        let registration = Registration::map(ptag, length as usize, Access::NONE)?;
        Ok(Self {
            base: registration.base(),
            length,
            registration: Arc::new(registration),
        })
    }

    /// Splits it in two, of one registration: this one keeps the first `at` bytes.
    ///
    /// # Panics
    /// `at` is beyond the end.
    #[must_use]
    pub fn split_off(&mut self, at: u32) -> Self {
        assert!(
            at <= self.length,
            "a buffer of {} bytes, at {at}",
            self.length
        );
        let rest = Self {
            // SAFETY: inside the mapping, or its end.
            base: unsafe { self.base.add(at as usize) },
            length: self.length - at,
            registration: Arc::clone(&self.registration),
        };
        self.length = at;
        rest
    }

    /// Address, handle and length of a part of it.
    ///
    /// # Panics
    /// The part is not inside.
    pub(crate) fn segment(&self, part: Range<u32>) -> (u64, VIP_MEM_HANDLE, u32) {
        assert!(part.start <= part.end && part.end <= self.length);
        let address = self.base.as_ptr().expose_provenance() as u64 + u64::from(part.start);
        (address, self.registration.handle, part.end - part.start)
    }

    /// Its bytes as a number for segments.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and exclusively owned; the library does not touch what is not posted.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length as usize) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length as usize) }
    }
}

/// A part of a region as the peer's application needs to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The first byte.
    pub address: u64,
    /// The region's handle.
    pub handle: u32,
    /// Its bytes.
    pub length: u32,
}

impl Remote {
    /// As bytes for a message.
    #[must_use]
    pub fn to_message(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.handle.to_le_bytes());
        bytes[12..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// From [`Self::to_message`]. Any bytes will do: the peer's library checks them at each use.
    #[must_use]
    pub fn from_message(bytes: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, rest @ ..] = bytes;
        let [i, j, k, l, m, n, o, p] = rest;
        Self {
            address: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            handle: u32::from_le_bytes([i, j, k, l]),
            length: u32::from_le_bytes([m, n, o, p]),
        }
    }
}

/// Registered memory that is open to RDMA.
///
/// Peers may access it at any time while it is registered, so there are no references to its bytes. It is copied from and
/// to, by one thread at a time: a region can be sent to another thread, but not be shared.
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<vipl_client::Region>();
/// ```
#[derive(Debug)]
pub struct Region {
    registration: Registration,
    _one_thread: PhantomData<Cell<u8>>,
}

impl Region {
    /// Allocates and registers memory, zeroed; at least this many bytes. It is from `vipl_alloc`: to peers on this host RDMA is a
    /// store. A forked child does not have it.
    ///
    /// # Errors
    /// The system has no memory, or the library refuses to register it:
    /// [`Code::InvalidRdmaRead`](crate::Code::InvalidRdmaRead) if the NIC has no RDMA Read.
    pub fn new(ptag: &Ptag, length: usize, access: Access) -> Result<Self> {
        Registration::map(ptag, length, access).map(Self::of)
    }

    /// Registers memory of the program.
    ///
    /// # Safety
    /// Until the region is dropped, the memory stays mapped, and it is used through this region only, the library
    /// and what `access` permits to peers. A region that is leaked is never deregistered.
    ///
    /// # Errors
    /// The library refuses to register it.
    pub unsafe fn from_raw(
        ptag: &Ptag,
        base: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: by contract.
        unsafe { Registration::new(ptag, base, length, access, Origin::Program) }.map(Self::of)
    }

    /// Registers borrowed memory while `body` runs. It cannot be leaked: when this function returns, also by a
    /// panic, no peer accesses the memory any more.
    ///
    /// # Errors
    /// The library refuses to register it; `body` is not called then.
    pub fn scoped<R>(
        ptag: &Ptag,
        memory: &mut [u8],
        access: Access,
        body: impl FnOnce(&Region) -> R,
    ) -> Result<R> {
        struct Scope(Region);

        impl Drop for Scope {
            fn drop(&mut self) {
                if self.0.registration.end().is_err() {
                    // The borrow ends here, and a peer may still write.
                    eprintln!("vipl-client: borrowed memory cannot be deregistered");
                    std::process::abort();
                }
            }
        }

        let length = memory.len();
        let Some(base) = NonNull::new(memory.as_mut_ptr()) else {
            unreachable!("a slice is not at NULL")
        };
        // SAFETY: borrowed until `scope` is dropped.
        let scope = Scope(unsafe { Self::from_raw(ptag, base, length, access) }?);
        Ok(body(&scope.0))
    }

    /// Ends the registration, which a drop does in silence.
    ///
    /// # Errors
    /// The library refuses. The memory stays mapped then.
    pub fn deregister(mut self) -> Result<()> {
        self.registration.deregister()
    }

    fn of(registration: Registration) -> Self {
        Self {
            registration,
            _one_thread: PhantomData,
        }
    }

    /// Its bytes: whole pages if it was mapped for this region.
    #[must_use]
    pub fn len(&self) -> usize {
        self.registration.length
    }

    /// Never: no empty memory can be registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The region's memory handle.
    #[must_use]
    pub fn handle(&self) -> VIP_MEM_HANDLE {
        self.registration.handle
    }

    /// A part of it, for the peer.
    ///
    /// # Panics
    /// The part is not inside, or has more than 4 GiB.
    #[must_use]
    pub fn remote(&self, offset: usize, length: usize) -> Remote {
        Remote {
            address: self.at(offset, length).expose_provenance() as u64,
            handle: self.handle(),
            length: u32::try_from(length).expect("a length of 32 bits"),
        }
    }

    /// The address of `length` bytes at `offset`, all inside.
    ///
    /// # Panics
    /// They are not.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.registration.length));
        self.registration.base.as_ptr().wrapping_add(offset)
    }

    /// Copies bytes into it. A peer that reads them meanwhile may get some of the old ones.
    ///
    /// # Panics
    /// They do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let target = self.at(offset, bytes.len());
        let (head, rest) = bytes.split_at(aligned(target, bytes.len()));
        let (words, tail) = rest.as_chunks::<8>();
        let (middle, end) = (head.len(), bytes.len() - tail.len());
        let edges = head.iter().enumerate();
        for (at, byte) in edges.chain((end..).zip(tail)) {
            // SAFETY: inside the mapping. Volatile: peers access it as well, but no other thread of this process does.
            unsafe { target.add(at).write_volatile(*byte) };
        }
        for (index, word) in words.iter().enumerate() {
            // SAFETY: as above, and aligned.
            let place = unsafe { target.add(middle + 8 * index) }.cast::<u64>();
            // SAFETY: as above.
            unsafe { place.write_volatile(u64::from_ne_bytes(*word)) };
        }
    }

    /// Copies bytes out of it. If a peer writes them meanwhile, some are old and some are new.
    ///
    /// # Panics
    /// They are not inside.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let source = self.at(offset, bytes.len());
        let length = bytes.len();
        let (head, rest) = bytes.split_at_mut(aligned(source, length));
        let (words, tail) = rest.as_chunks_mut::<8>();
        let (middle, end) = (head.len(), length - tail.len());
        let edges = head.iter_mut().enumerate();
        for (at, byte) in edges.chain((end..).zip(tail)) {
            // SAFETY: inside the mapping; volatile as in `write`.
            *byte = unsafe { source.add(at).read_volatile() };
        }
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: as above, and aligned.
            let place = unsafe { source.add(middle + 8 * index) }.cast::<u64>();
            // SAFETY: as above.
            *word = unsafe { place.read_volatile() }.to_ne_bytes();
        }
    }
}

/// Bytes before the first aligned word of a range.
fn aligned(start: *const u8, length: usize) -> usize {
    start.align_offset(8).min(length)
}
