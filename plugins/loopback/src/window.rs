//! Memory of `vipl_alloc` that peers map, so that RDMA is a store (decision 102).
//!
//! ```text
//!   target: VipRegisterMem ─▶ Places: file and place of the region, read by peers
//!   initiator: copy ─▶ the peer's table permits the range ─▶ place ─▶ Window: pages of the peer's memory file, mapped here
//! ```
//!
//! A window gives no right to use it: every copy asks the peer's table first, by the protocol of `copying`, as a copy by the kernel
//! does. A place names one piece of memory for ever. So a window that stays mapped after the region has ended shows what was there,
//! and never what the peer's program allocates next.
//!
//! The file is opened through `/proc` of the peer's process, which the kernel permits to those who may read that process's memory
//! anyway. This side uses it only if the kernel also lets it copy to and from there.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vipl_plugin_sdk::Host;
use vipl_plugin_sdk::abi::{VIPL_LOG_DEBUG, VIPL_LOG_INFO, vipl_memory};
use vipl_sys::fd::{Identity, above_standard};
use vipl_sys::memory_file::{LINK, page_size};
use vipl_sys::mutex::Mutex;
use vipl_sys::process_vm::Way;
use vipl_sys::shm::Mapping;

/// Regions of one NIC handle.
pub(crate) const REGIONS_MAX: u32 = 4096;
/// Windows of one peer's NIC. One more replaces all that no connection uses.
const WINDOWS_MAX: usize = 256;
/// Bytes of all of them: a peer cannot use up the addresses of this process. If these are limited, windows take an eighth.
const BYTES_MAX: u64 = if usize::BITS == 64 { 1 << 42 } else { 1 << 28 };

/// Where the regions of a NIC lie in the memory file of its process. All zero at first, and all atomic. Peers read it.
#[repr(C)]
pub(crate) struct Places([Place; REGIONS_MAX as usize]);

/// Where one region lies.
#[repr(C)]
struct Place {
    /// From an address to its place in the file; 0: the region is not there.
    shift: AtomicU64,
    /// Inode number of the file, and its descriptor in the process.
    inode: AtomicU64,
    fd: AtomicU32,
    reserved: AtomicU32,
}

/// The memory file of a peer.
#[derive(Clone, Copy, Debug)]
struct File {
    fd: u32,
    inode: u64,
}

impl Places {
    fn of(&self, handle: u32) -> &Place {
        &self.0[(handle & (REGIONS_MAX - 1)) as usize]
    }

    /// Peers can map this region, which begins at this address, once they see it in the table.
    pub(crate) fn publish(&self, handle: u32, base: u64, memory: &vipl_memory) {
        let place = self.of(handle);
        place.inode.store(memory.inode, Ordering::Relaxed);
        place.fd.store(memory.fd as u32, Ordering::Relaxed);
        let shift = memory.offset.wrapping_sub(base);
        // Release pairs with the acquire in `shift`.
        place.shift.store(shift, Ordering::Release);
    }

    /// The region has ended, and no peer uses it.
    pub(crate) fn withdraw(&self, handle: u32) {
        self.of(handle).shift.store(0, Ordering::Release);
    }

    /// From an address of this region to its place in the file. Asked while `copying` is odd, after the table has named the region,
    /// so that neither changes.
    #[inline(always)]
    pub(crate) fn shift(&self, handle: u32) -> Option<u64> {
        let shift = self.of(handle).shift.load(Ordering::Acquire);
        (shift != 0).then_some(shift)
    }

    fn file(&self, handle: u32) -> File {
        let place = self.of(handle);
        File {
            fd: place.fd.load(Ordering::Relaxed),
            inode: place.inode.load(Ordering::Relaxed),
        }
    }
}

/// Pages of a peer's memory file, mapped here: for writing, or for reading only.
#[derive(Debug)]
pub(crate) struct Window {
    places: Range<u64>,
    mapping: Mapping,
}

impl Window {
    /// Where so many bytes at a place are mapped.
    #[inline(always)]
    pub(crate) fn at(&self, place: u64, bytes: u64) -> Option<*mut u8> {
        let into = place.wrapping_sub(self.places.start);
        let size = self.places.end - self.places.start;
        let is_inside = into <= size && bytes <= size - into;
        is_inside.then(|| self.mapping.base().wrapping_add(into as usize))
    }
}

/// What this process has mapped of the memory file of a peer.
#[derive(Default)]
pub(crate) struct Windows(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By the first page, apart for reading and for writing.
    regions: BTreeMap<(bool, u64), Tried>,
    bytes: u64,
}

/// What became of mapping a region.
struct Tried {
    end: u64,
    /// `None`: it cannot be mapped.
    window: Option<Arc<Window>>,
}

impl Windows {
    /// A window for the region with this handle, which lies at these places, of a process that this thread belongs to.
    pub(crate) fn get(
        &self,
        thread: i32,
        way: Way,
        published: &Places,
        handle: u32,
        region: Range<u64>,
    ) -> Option<Arc<Window>> {
        let is_for_writing = way == Way::Write;
        let page = page_size();
        let start = region.start & !(page - 1);
        let end = region.end.checked_next_multiple_of(page)?;
        let bytes = end.checked_sub(start)?;
        let mut known = self.0.lock();
        let key = (is_for_writing, start);
        if let Some(tried) = known.regions.get(&key)
            && tried.end >= end
        {
            return tried.window.clone();
        }
        let most = bytes_max();
        if bytes > most {
            return None;
        }
        if known.regions.len() >= WINDOWS_MAX || known.bytes + bytes > most {
            *known = Known::default();
        }
        let file = published.file(handle);
        let mapped = map(thread, file, start, bytes, is_for_writing);
        let (level, what) = match &mapped {
            Ok(_) => (VIPL_LOG_DEBUG, "is mapped".to_owned()),
            Err(error) => (
                VIPL_LOG_INFO,
                format!("cannot be mapped, so RDMA takes a system call: {error}"),
            ),
        };
        let text = format!("loopback: memory that process {thread} has from vipl_alloc {what}");
        Host::get().log(level, &text);
        let window = mapped.ok().map(|mapping| {
            let places = start..end;
            Arc::new(Window { places, mapping })
        });
        known.bytes += bytes;
        let tried = Tried {
            end,
            window: window.clone(),
        };
        known.regions.insert(key, tried);
        window
    }
}

/// Bytes of all windows of a peer's NIC.
fn bytes_max() -> u64 {
    let mut limit = libc::rlimit64 {
        rlim_cur: u64::MAX,
        rlim_max: u64::MAX,
    };
    // SAFETY: a system call on a valid structure, which it fills or leaves alone.
    unsafe { libc::getrlimit64(libc::RLIMIT_AS, &raw mut limit) };
    match limit.rlim_cur {
        u64::MAX => BYTES_MAX,
        addresses => BYTES_MAX.min(addresses / 8),
    }
}

/// Maps pages of a process's memory file.
fn map(
    thread: i32,
    file: File,
    start: u64,
    bytes: u64,
    is_for_writing: bool,
) -> io::Result<Mapping> {
    let path = format!("/proc/{thread}/fd/{}", file.fd);
    let must_be = |is_it: bool| {
        let wrong = || io::Error::other("that descriptor of the peer is something else");
        is_it.then_some(()).ok_or_else(wrong)
    };
    // Nothing else is opened: to open a device can do something.
    must_be(std::fs::read_link(&path)?.as_os_str() == LINK)?;
    let mut options = OpenOptions::new();
    options.read(true).write(is_for_writing);
    options.custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK);
    let opened = above_standard(OwnedFd::from(options.open(path)?))?;
    let opened_inode = Identity::of(opened.as_raw_fd()).map(Identity::inode);
    must_be(opened_inode == Some(file.inode))?;
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    Mapping::open_at(opened.as_raw_fd(), start, bytes, is_for_writing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipl_sys::memory_file::MemoryFile;

    /// A memory file of this process with four pages, and what a region of all of them publishes.
    fn file() -> (MemoryFile, *mut u8, vipl_memory) {
        crate::testing::install_host();
        let mut file = MemoryFile::new(0).expect("a memory file");
        let (base, offset) = file.map(4 * page_size()).expect("memory");
        let (fd, inode) = file.name().expect("the file is open");
        let memory = vipl_memory {
            size: size_of::<vipl_memory>(),
            fd,
            reserved: 0,
            inode,
            offset,
        };
        (file, base, memory)
    }

    /// The places of no region.
    fn places() -> Box<Places> {
        // SAFETY: zeroes are valid.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    fn window(way: Way, memory: &vipl_memory, region: Range<u64>) -> Option<Arc<Window>> {
        let places = places();
        places.publish(9, 0, memory);
        let thread = std::process::id() as i32;
        Windows::default().get(thread, way, &places, 9, region)
    }

    #[test]
    fn a_window_shows_the_pages_of_the_region() {
        let (_file, base, memory) = file();
        let page = page_size();
        let write = window(Way::Write, &memory, page + 10..2 * page).expect("a window");
        let read = window(Way::Read, &memory, page + 10..2 * page).expect("a window");
        let [to, from] = [&write, &read].map(|window| window.at(page + 10, 8).expect("inside"));
        // SAFETY: inside the mappings.
        unsafe {
            to.write_volatile(7);
            assert_eq!(base.add(page as usize + 10).read_volatile(), 7);
            assert_eq!(from.read_volatile(), 7);
        }
        for (place, bytes) in [
            (page - 1, 1),
            (2 * page - 7, 8),
            (0, 8),
            (page, u64::MAX),
            (u64::MAX, 2),
        ] {
            assert!(write.at(place, bytes).is_none(), "{place} {bytes}");
        }
    }

    #[test]
    fn what_a_peer_publishes_is_checked() {
        let (_file, _base, memory) = file();
        let page = page_size();
        let other = std::fs::File::open("/dev/null").expect("a file");
        let wrong = [
            vipl_memory {
                inode: memory.inode + 1,
                ..memory
            },
            vipl_memory {
                fd: other.as_raw_fd(),
                ..memory
            },
            vipl_memory { fd: -1, ..memory },
        ];
        for memory in &wrong {
            assert!(window(Way::Read, memory, 0..page).is_none());
        }
        for region in [
            0..5 * page,
            Range {
                start: page,
                end: 0,
            },
            0..u64::MAX,
            u64::MAX - 1..u64::MAX,
            0..BYTES_MAX + 1,
        ] {
            assert!(window(Way::Write, &memory, region).is_none());
        }
    }

    #[test]
    fn a_region_is_mapped_once_and_known_until_it_ends() {
        let (_file, _base, memory) = file();
        let (places, windows, page) = (places(), Windows::default(), page_size());
        assert!(places.shift(9).is_none());
        places.publish(9, 4096, &memory);
        assert_eq!(places.shift(9), Some(memory.offset.wrapping_sub(4096)));
        let thread = std::process::id() as i32;
        let get = |way, pages: u64| windows.get(thread, way, &places, 9, 0..pages * page);
        let first = get(Way::Write, 2).expect("a window");
        assert!(Arc::ptr_eq(&first, &get(Way::Write, 1).expect("a window")));
        assert!(!Arc::ptr_eq(&first, &get(Way::Read, 2).expect("a window")));
        assert!(!Arc::ptr_eq(&first, &get(Way::Write, 3).expect("a window")));
        places.withdraw(9);
        assert!(places.shift(9).is_none());
    }
}
