//! Protection tags as protection domains, and regions as memory that the device knows in each domain that may use it.
//!
//! A region has up to three registrations in a domain: one for this process, which lives as long as the region, so that
//! posted descriptors keep their key; and one for each right of peers, which VipSetMemAttributes adds and removes alone, so
//! that a key that a peer has kept stays valid as long as its right. Peers read the table of keys by RDMA Read.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use vipl_plugin_sdk::abi::{VIPL_PTAG_ANY, VIPL_PTAG_NONE};
use vipl_plugin_sdk::abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE};
use vipl_sys::mutex::Mutex;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::device::{Device, Domain, Memory};
use crate::ibv::*;
use crate::pages::Registered;

/// Regions of a NIC. Both sides of a connection count with it.
pub(crate) const REGIONS: u32 = 4096;
/// Domains that no connection uses, and that are kept for the next one.
const SPARE: usize = 16;
/// In [`Key::access`]: the application may not write to the region itself.
const READ_ONLY: u32 = 1 << 31;

/// What peers may know of a region.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Key {
    /// The handle; 0: there is no region.
    pub(crate) handle: u32,
    /// `VIPL_REGION_*`.
    pub(crate) access: u32,
    write: u32,
    read: u32,
    base: u64,
    end: u64,
}

impl Key {
    /// The key for a range and a `VIPL_REGION_*`; `None`: the peer does not permit it.
    pub(crate) fn permits(&self, handle: u32, base: u64, length: u64, right: u32) -> Option<u32> {
        let end = base.checked_add(length)?;
        let fits = self.handle == handle && base >= self.base && end <= self.end;
        let key = match right {
            VIPL_REGION_RDMA_WRITE => self.write,
            _ => self.read,
        };
        (fits && self.access & right != 0).then_some(key)
    }
}

/// A place of the table. Peers read it while it changes: the handle is 0 then.
#[repr(C)]
struct Place {
    handle: AtomicU32,
    access: AtomicU32,
    write: AtomicU32,
    read: AtomicU32,
    base: AtomicU64,
    end: AtomicU64,
}

const _: () = assert!(size_of::<Place>() == size_of::<Key>());

/// A region as the host gives it.
#[derive(Clone, Copy)]
struct Region {
    handle: u32,
    base: u64,
    bytes: u64,
    /// Tag in the upper half, `VIPL_REGION_*` in the lower.
    access: u64,
}

/// The registrations of a region in one domain.
struct Registrations {
    local: Memory,
    read_only: bool,
    write: Option<Memory>,
    read: Option<Memory>,
}

/// A protection tag, or the tag of VIs without one.
pub(crate) struct Tag {
    number: u32,
    registrations: Mutex<BTreeMap<u32, Registrations>>,
    /// The keys for this process, in the same places as in the table.
    local: Box<[AtomicU32; REGIONS as usize]>,
    table: Registered,
    domain: Arc<Domain>,
}

impl Tag {
    fn new(device: &Arc<Device>, number: u32) -> io::Result<Tag> {
        let domain = Arc::new(Domain::new(device)?);
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
        let bytes = REGIONS as usize * size_of::<Place>();
        Ok(Tag {
            number,
            registrations: Mutex::new(BTreeMap::new()),
            local: Box::new([const { AtomicU32::new(0) }; REGIONS as usize]),
            table: Registered::new(&domain, bytes, access)?,
            domain,
        })
    }

    /// Its protection domain.
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Address and key of the table, for peers.
    pub(crate) fn table(&self) -> (u64, u32) {
        (
            self.table.pages().address(),
            self.table.memory().remote_key(),
        )
    }

    /// Where the key of a handle stands in a table.
    pub(crate) fn offset(handle: u32) -> u64 {
        u64::from(handle & (REGIONS - 1)) * size_of::<Key>() as u64
    }

    #[inline(always)]
    fn place(&self, handle: u32) -> &Place {
        let places = self.table.pages().base().cast::<Place>();
        // SAFETY: the pages have so many places, all of atomics; the index is masked.
        unsafe { &*places.add((handle & (REGIONS - 1)) as usize) }
    }

    /// The key by which this process may use a range, and how many of its bytes lie in the region. `None`: not even the
    /// first one, or `writes` where the region is read-only.
    #[inline(always)]
    pub(crate) fn local(
        &self,
        handle: u32,
        base: u64,
        length: u32,
        writes: bool,
    ) -> Option<(u32, u32)> {
        let place = self.place(handle);
        // Acquire pairs with the release in `enter`.
        if handle == 0 || place.handle.load(Ordering::Acquire) != handle {
            return None;
        }
        let (first, end) = (
            place.base.load(Ordering::Relaxed),
            place.end.load(Ordering::Relaxed),
        );
        let key = self.local[(handle & (REGIONS - 1)) as usize].load(Ordering::Relaxed);
        if base < first
            || base >= end
            || (writes && place.access.load(Ordering::Relaxed) & READ_ONLY != 0)
        {
            return None;
        }
        Some((key, u64::from(length).min(end - base) as u32))
    }

    /// The key by which this process may read a range that is not empty and lies in the region as a whole.
    #[inline(always)]
    pub(crate) fn whole(&self, handle: u32, base: u64, length: u32) -> Option<u32> {
        let place = self.place(handle);
        if handle == 0 || place.handle.load(Ordering::Acquire) != handle {
            return None;
        }
        let first = place.base.load(Ordering::Relaxed);
        let end = base.checked_add(length.into())?;
        let is_inside = base >= first && end <= place.end.load(Ordering::Relaxed) && length != 0;
        is_inside.then(|| self.local[(handle & (REGIONS - 1)) as usize].load(Ordering::Relaxed))
    }

    /// Whether regions with this tag may be used by VIs of this one.
    fn matches(&self, region: u32) -> bool {
        region == self.number || region == VIPL_PTAG_NONE || self.number == VIPL_PTAG_ANY
    }

    /// Takes a region in, or changes its rights.
    fn enter(&self, region: &Region) -> io::Result<()> {
        let mut all = self.registrations.lock();
        let index = region.handle & (REGIONS - 1);
        let register = |access| Memory::new(&self.domain, region.base, region.bytes, access);
        let entry = match all.entry(index) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                let (local, read_only) = match register(IBV_ACCESS_LOCAL_WRITE) {
                    // A mapping without the right to write.
                    Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                        (register(0)?, true)
                    }
                    other => (other?, false),
                };
                free.insert(Registrations {
                    local,
                    read_only,
                    write: None,
                    read: None,
                })
            }
        };
        let wants = |right: u32| region.access as u32 & right != 0;
        let write = wants(VIPL_REGION_RDMA_WRITE) && !entry.read_only;
        if write && entry.write.is_none() {
            entry.write = Some(register(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)?);
        }
        let read = wants(VIPL_REGION_RDMA_READ);
        if read && entry.read.is_none() {
            entry.read = Some(register(IBV_ACCESS_REMOTE_READ)?);
        }
        let place = self.place(index);
        place.handle.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let key = |memory: &Option<Memory>| memory.as_ref().map_or(0, Memory::remote_key);
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let access = flag(write, VIPL_REGION_RDMA_WRITE)
            | flag(read, VIPL_REGION_RDMA_READ)
            | flag(entry.read_only, READ_ONLY);
        place.access.store(access, Ordering::Relaxed);
        place.write.store(key(&entry.write), Ordering::Relaxed);
        place.read.store(key(&entry.read), Ordering::Relaxed);
        place.base.store(region.base, Ordering::Relaxed);
        place
            .end
            .store(region.base + region.bytes, Ordering::Relaxed);
        self.local[index as usize].store(entry.local.local_key(), Ordering::Relaxed);
        place.handle.store(region.handle, Ordering::Release);
        // Rights end here: the device refuses their keys from now on.
        if !write {
            entry.write = None;
        }
        if !read {
            entry.read = None;
        }
        Ok(())
    }

    fn leave(&self, handle: u32) {
        let index = handle & (REGIONS - 1);
        self.place(index).handle.store(0, Ordering::SeqCst);
        self.registrations.lock().remove(&index);
    }
}

/// Tags and regions of a NIC.
#[derive(Default)]
pub(crate) struct Tags(Mutex<State>);

#[derive(Default)]
struct State {
    regions: BTreeMap<u32, Region>,
    tags: Vec<Arc<Tag>>,
}

impl Tags {
    /// The tag of this number, with all regions that its VIs may use.
    pub(crate) fn get(&self, device: &Arc<Device>, number: u32) -> io::Result<Arc<Tag>> {
        let mut state = self.0.lock();
        if let Some(tag) = state.tags.iter().find(|tag| tag.number == number) {
            return Ok(tag.clone());
        }
        if state.tags.len() > SPARE {
            state.tags.retain(|tag| Arc::strong_count(tag) > 1);
        }
        let tag = Tag::new(device, number)?;
        for region in state.regions.values() {
            if tag.matches((region.access >> 32) as u32) {
                tag.enter(region)?;
            }
        }
        let tag = Arc::new(tag);
        state.tags.push(tag.clone());
        Ok(tag)
    }

    /// See [`vipl_plugin_sdk::Regions::region_add`]. After an error nothing has changed.
    pub(crate) fn add(&self, handle: u32, base: u64, bytes: u64, access: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        let index = handle & (REGIONS - 1);
        let region = Region {
            handle,
            base,
            bytes,
            access,
        };
        let before = state.regions.insert(index, region);
        let enter = |region: &Region| {
            state.tags.iter().try_for_each(|tag| {
                if tag.matches((region.access >> 32) as u32) {
                    tag.enter(region)
                } else {
                    tag.leave(region.handle);
                    Ok(())
                }
            })
        };
        let Err(error) = enter(&region) else {
            return Ok(());
        };
        match before {
            Some(before) => {
                // What it had before needs no more memory; a tag where it fails loses the region.
                let _ = enter(&before);
                state.regions.insert(index, before);
            }
            None => {
                for tag in &state.tags {
                    tag.leave(handle);
                }
                state.regions.remove(&index);
            }
        }
        Err(error)
    }

    /// See [`vipl_plugin_sdk::Regions::region_remove`].
    pub(crate) fn remove(&self, handle: u32) {
        let mut state = self.0.lock();
        state.regions.remove(&(handle & (REGIONS - 1)));
        for tag in &state.tags {
            tag.leave(handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_permits_what_its_region_permits() {
        let key = Key {
            handle: 9,
            access: VIPL_REGION_RDMA_WRITE,
            write: 5,
            read: 6,
            base: 100,
            end: 200,
        };
        let write = VIPL_REGION_RDMA_WRITE;
        assert_eq!(key.permits(9, 100, 100, write), Some(5));
        assert_eq!(key.permits(9, 100, 101, write), None);
        assert_eq!(key.permits(9, 99, 1, write), None);
        assert_eq!(key.permits(8, 100, 1, write), None);
        assert_eq!(key.permits(9, u64::MAX, 2, write), None);
        assert_eq!(key.permits(9, 100, 1, VIPL_REGION_RDMA_READ), None);
    }
}
