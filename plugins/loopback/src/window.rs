//! The table of what a process lets its peers map, shared pages of its regions (see `pages`), and what this process
//! maps of a partner's.
//!
//! The partner's memfd is mapped as it is needed, in chunks, and stays mapped as long as the partner's NIC is known.
//! That gives no right to use it: every copy asks the partner's tables first, as all others do.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vipl_plugin_sdk::Host;
use vipl_plugin_sdk::abi::{VIPL_LOG_DEBUG, VIPL_LOG_INFO};
use vipl_sys::fd::{Identity, above_standard};
use vipl_sys::mutex::Mutex;
use vipl_sys::shm::Mapping;

/// Bytes of a chunk, which begins at a multiple of that.
const CHUNK: u64 = 1 << 30;

/// Regions of one NIC handle.
pub(crate) const REGIONS_MAX: u32 = 4096;

/// Which pages of regions peers may map (see `pages`). All zero at first, and all atomic.
#[repr(C)]
pub(crate) struct Memory {
    /// Descriptor and file number; 0: there are none.
    descriptor: AtomicU32,
    padding: AtomicU32,
    file: AtomicU64,
    windows: [Window; REGIONS_MAX as usize],
}

/// The pages of one region.
#[repr(C)]
struct Window {
    first: AtomicU64,
    end: AtomicU64,
    /// The memory handle of the region, 0: it has none.
    region: AtomicU32,
    padding: AtomicU32,
}

const _: () = assert!(size_of::<Window>() == 24 && offset_of!(Memory, windows) == 16);

impl Memory {
    /// Says which file it is.
    pub(crate) fn name(&self, (descriptor, file): (i32, u64)) {
        self.file.store(file, Ordering::Relaxed);
        self.descriptor.store(descriptor as u32, Ordering::Release);
    }

    /// Descriptor in its process, and number of the file.
    pub(crate) fn file(&self) -> Option<(u32, u64)> {
        match self.descriptor.load(Ordering::Acquire) {
            0 => None,
            descriptor => Some((descriptor, self.file.load(Ordering::Relaxed))),
        }
    }

    fn window(&self, region: u32) -> &Window {
        &self.windows[(region & (REGIONS_MAX - 1)) as usize]
    }

    /// The pages of this region can be mapped.
    pub(crate) fn open(&self, region: u32, first: u64, end: u64) {
        let window = self.window(region);
        window.first.store(first, Ordering::Relaxed);
        window.end.store(end, Ordering::Relaxed);
        window.region.store(region, Ordering::Release);
    }

    /// They cannot any more; gives them if they could.
    pub(crate) fn close(&self, region: u32) -> Option<(u64, u64)> {
        let pages = self.pages(region)?;
        self.window(region).region.store(0, Ordering::Release);
        Some(pages)
    }

    /// The pages of this region that can be mapped. A peer asks only while it says that it is copying and after it
    /// has found the region in the table, so that the region, and with it the window, stays.
    #[inline(always)]
    pub(crate) fn pages(&self, region: u32) -> Option<(u64, u64)> {
        let window = self.window(region);
        let is_open = region != 0 && window.region.load(Ordering::Acquire) == region;
        is_open.then(|| {
            let (first, end) = (&window.first, &window.end);
            (first.load(Ordering::Relaxed), end.load(Ordering::Relaxed))
        })
    }
}

/// The mapped chunks of one partner, by their number; `None`: it cannot be mapped.
#[derive(Default)]
pub(crate) struct Windows(Mutex<BTreeMap<u64, Option<Mapping>>>);

/// The chunk that a connection used last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    number: u64,
    base: *mut u8,
}

// SAFETY: a plain address.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Where a range of the partner's addresses is mapped here, if it lies in this chunk.
    #[inline(always)]
    pub(crate) fn place(self, address: u64, bytes: u64) -> Option<*mut u8> {
        let offset = address % CHUNK;
        let inside = address / CHUNK == self.number && bytes <= CHUNK - offset;
        inside.then(|| self.base.wrapping_add(offset as usize))
    }
}

impl Windows {
    /// The chunk with this address, mapped now if need be. It stays as long as `self`.
    pub(crate) fn chunk(&self, process: i32, memory: &Memory, address: u64) -> Option<Chunk> {
        let number = address / CHUNK;
        let mut chunks = self.0.lock();
        let chunk = chunks.entry(number).or_insert_with(|| {
            let mapped = map(process, memory, number);
            let (level, what) = match &mapped {
                Ok(_) => (VIPL_LOG_DEBUG, "are mapped".to_owned()),
                Err(error) => (VIPL_LOG_INFO, format!("cannot be mapped: {error}")),
            };
            let text = format!("loopback: pages that process {process} shares {what}");
            Host::get().log(level, &text);
            mapped.ok()
        });
        chunk.as_ref().map(|mapping| Chunk {
            number,
            base: mapping.base(),
        })
    }
}

/// Maps a chunk of the partner's memfd, which its process lets us open as it lets us copy.
fn map(process: i32, memory: &Memory, number: u64) -> io::Result<Mapping> {
    let (descriptor, file) = memory
        .file()
        .ok_or_else(|| io::Error::other("the partner shares no pages"))?;
    let path = format!("/proc/{process}/fd/{descriptor}");
    let is_it = |found: bool| {
        let wrong = || io::Error::other("that descriptor of the partner is something else");
        found.then_some(()).ok_or_else(wrong)
    };
    // What is not a memfd is not opened: to open a device can do something.
    is_it(std::fs::read_link(&path)?.starts_with("/memfd:vipl-regions (deleted)"))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK);
    let opened = above_standard(OwnedFd::from(options.open(path)?))?;
    is_it(Identity::of(opened.as_raw_fd()).is_some_and(|found| found.inode() == file))?;
    Mapping::open_at(opened.as_raw_fd(), number * CHUNK, CHUNK as usize, true)
}
