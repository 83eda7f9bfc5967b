//! Memory of `vipl_alloc`: from the start it lies in a memory file of this process, so that peers on this host can map it while it
//! is registered (decision 102).

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vipl_abi::VIP_PVOID;
use vipl_sys::memory_file::{self, MemoryFile, page_size};

use crate::error::Error;
use crate::logger::log_mistake;
use crate::sync::Mutex;

/// The memory of a process that `vipl_alloc` has given and `vipl_free` has not got.
#[derive(Default)]
pub(crate) struct Allocated {
    /// How many blocks there are, so that programs without any take no lock when they register memory.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<Arc<Mutex<MemoryFile>>>,
    /// By their addresses.
    blocks: BTreeMap<u64, Block>,
}

/// Memory of one `vipl_alloc`.
struct Block {
    bytes: u64,
    /// Where it lies in which file; `None`: there can be no file.
    place: Option<(Arc<Mutex<MemoryFile>>, u64)>,
    /// Regions that have some of it, of all NIC handles.
    regions: u32,
}

/// Where a range lies in the memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) fd: RawFd,
    pub(crate) inode: u64,
    pub(crate) offset: u64,
}

/// A region is registered: its blocks are not freed. Dropped, they may be again.
pub(super) struct Held<'a> {
    allocated: &'a Allocated,
    range: Range<u64>,
}

impl Held<'_> {
    /// They may be freed when [`Allocated::release`] is called with the same range.
    pub(super) fn keep(mut self) {
        self.range.end = self.range.start;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.allocated.release(self.range.clone());
    }
}

impl Allocated {
    /// vipl_alloc.
    pub(super) fn allocate(&self, length: u64) -> Result<VIP_PVOID, Error> {
        let bytes = length.checked_next_multiple_of(page_size());
        let Some(bytes) = bytes.filter(|bytes| *bytes > 0) else {
            log_mistake!(
                "mem",
                "vipl_alloc: {length} bytes cannot be allocated: the length is 0 or too large"
            );
            return Err(Error::InvalidParameter);
        };
        let mut state = self.state.lock();
        let (address, place) = state.map(bytes).map_err(|error| {
            log_mistake!(
                "mem",
                "vipl_alloc: there are no {bytes} bytes of memory: {error}"
            );
            Error::Resource
        })?;
        let block = Block {
            bytes,
            place,
            regions: 0,
        };
        state.blocks.insert(address.addr() as u64, block);
        self.count.store(state.blocks.len(), Ordering::Release);
        log::debug!(target: "mem", "{bytes} bytes allocated at {address:?}");
        Ok(address.cast())
    }

    /// vipl_free.
    pub(super) fn free(&self, address: VIP_PVOID) -> Result<(), Error> {
        let mut state = self.state.lock();
        let at = address.addr() as u64;
        let Some(block) = state.blocks.get(&at) else {
            log_mistake!(
                "mem",
                "vipl_free: {address:?} is no address that vipl_alloc gave, or is free already"
            );
            return Err(Error::InvalidParameter);
        };
        if block.regions > 0 {
            log_mistake!(
                "mem",
                "vipl_free: {} regions have memory of {address:?}: call VipDeregisterMem first; it is not freed",
                block.regions
            );
            return Err(Error::Resource);
        }
        let (bytes, place) = (block.bytes, block.place.clone());
        state.blocks.remove(&at);
        self.count.store(state.blocks.len(), Ordering::Release);
        // SAFETY: the program does not use it any more, and no region has it.
        unsafe { memory_file::unmap(address.cast(), bytes) };
        if let Some((file, offset)) = place {
            // What a peer has mapped of it belongs to no process from now on.
            file.lock().free(offset, bytes);
        }
        log::debug!(target: "mem", "{bytes} bytes at {address:?} freed");
        Ok(())
    }

    /// Notes that a region is about to have this range.
    pub(super) fn hold(&self, range: Range<u64>) -> Held<'_> {
        self.count_regions(&range, |regions| regions.saturating_add(1));
        Held {
            allocated: self,
            range,
        }
    }

    /// Notes that the region with this range has ended.
    pub(super) fn release(&self, range: Range<u64>) {
        self.count_regions(&range, |regions| regions.saturating_sub(1));
    }

    fn count_regions(&self, range: &Range<u64>, change: impl Fn(u32) -> u32) {
        if range.is_empty() || self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        for (base, block) in state.blocks.range_mut(..range.end).rev() {
            if base + block.bytes <= range.start {
                break;
            }
            block.regions = change(block.regions);
        }
    }

    /// Where a range lies in the memory file, if it is all of one block there.
    pub(crate) fn place(&self, base: u64, bytes: u64) -> Option<Place> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let state = self.state.lock();
        let (start, block) = state.blocks.range(..=base).next_back()?;
        let into = base - start;
        if into > block.bytes || bytes > block.bytes - into {
            return None;
        }
        let (file, offset) = block.place.as_ref()?;
        let (fd, inode) = file.lock().name().ok()?;
        Some(Place {
            fd,
            inode,
            offset: offset + into,
        })
    }
}

/// Address and place of new memory.
type Mapped = (*mut u8, Option<(Arc<Mutex<MemoryFile>>, u64)>);

impl State {
    fn map(&mut self, bytes: u64) -> std::io::Result<Mapped> {
        match self.map_in_file(bytes) {
            Ok((address, file, place)) => Ok((address, Some((file, place)))),
            Err(error) => {
                let address = memory_file::map_private(bytes)?;
                log::info!(
                    target: "mem",
                    "vipl_alloc: peers on this host cannot map this memory, so RDMA takes a system call: {error}"
                );
                Ok((address, None))
            }
        }
    }

    fn map_in_file(
        &mut self,
        bytes: u64,
    ) -> std::io::Result<(*mut u8, Arc<Mutex<MemoryFile>>, u64)> {
        // The program may have closed the descriptor of the one before.
        let before = self.file.as_ref().map(|file| file.lock());
        let lost = before.as_ref().is_none_or(|file| file.name().is_err());
        let end = before.map_or(0, |file| file.end());
        if lost {
            self.file = Some(Arc::new(Mutex::new(MemoryFile::new(end)?)));
        }
        let file = self.file.clone().ok_or(std::io::ErrorKind::NotFound)?;
        let mapped = file.lock().map(bytes);
        let (address, place) = mapped?;
        Ok((address, file, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(allocated: &Allocated) -> Vec<u32> {
        let state = allocated.state.lock();
        state.blocks.values().map(|block| block.regions).collect()
    }

    #[test]
    fn registered_memory_is_not_freed() {
        let (allocated, page) = (Allocated::default(), page_size());
        let memory = allocated.allocate(page + 1).unwrap();
        let base = memory.addr() as u64;
        let held = allocated.hold(base + 1..base + 2);
        drop(allocated.hold(base + 2 * page - 1..base + 3 * page));
        assert_eq!(regions(&allocated), [1]);
        drop(allocated.hold(base.saturating_sub(page)..base));
        drop(allocated.hold(base + 2 * page..base + 3 * page));
        assert_eq!(allocated.free(memory), Err(Error::Resource));
        held.keep();
        assert_eq!(allocated.free(memory), Err(Error::Resource));
        allocated.release(base + 1..base + 2);
        assert_eq!(
            allocated.free(memory.wrapping_byte_add(1)),
            Err(Error::InvalidParameter)
        );
        assert_eq!(allocated.free(memory), Ok(()));
        assert_eq!(allocated.free(memory), Err(Error::InvalidParameter));
        assert_eq!(allocated.allocate(0), Err(Error::InvalidParameter));
        assert_eq!(allocated.allocate(u64::MAX), Err(Error::InvalidParameter));
        assert_eq!(allocated.allocate(1 << 60), Err(Error::Resource));
        assert!(regions(&allocated).is_empty());
    }

    #[test]
    fn a_range_lies_in_the_file_if_one_block_has_all_of_it() {
        let (allocated, page) = (Allocated::default(), page_size());
        assert_eq!(allocated.place(page, 1), None);
        let blocks = [(); 2].map(|()| allocated.allocate(2 * page).unwrap());
        let place = |block: usize, into: u64, bytes| {
            let base = blocks[block].addr() as u64;
            allocated.place(base + into, bytes)
        };
        let first = place(0, 0, 2 * page).unwrap();
        let second = place(1, 5, 2 * page - 5).unwrap();
        assert_eq!((first.fd, first.inode), (second.fd, second.inode));
        assert_eq!(second.offset, first.offset + 2 * page + 5);
        for (into, bytes) in [
            (0, 2 * page + 1),
            (1, 2 * page),
            (2 * page, 1),
            (0, u64::MAX),
        ] {
            let base = blocks[0].addr().max(blocks[1].addr()) as u64;
            assert_eq!(allocated.place(base + into, bytes), None);
        }
        // SAFETY: as a daemon does; no other file has this number now.
        unsafe { libc::close(first.fd) };
        assert_eq!(place(0, 0, 1), None, "the program has closed it");
        let third = allocated.allocate(1).unwrap();
        let again = allocated.place(third.addr() as u64, 1).unwrap();
        assert_ne!(again.inode, first.inode);
        assert_eq!(again.offset, first.offset + 4 * page, "a place of its own");
        assert_eq!(place(0, 0, 1), None);
        for block in blocks.into_iter().chain([third]) {
            assert_eq!(allocated.free(block), Ok(()));
        }
    }
}
