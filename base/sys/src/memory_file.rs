//! A memory file: memory of this process that others may map. It grows, and no part of it is used twice: what is mapped of a part
//! that has been freed is no process's memory any more. A process that has lost its file, since the program has closed the descriptor,
//! makes another one whose parts lie behind those of the first, so that a place names one part for ever.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fd::{self, Identity, Kept};
use crate::shm;

/// Its name, as `/proc/PID/fd` and `/proc/PID/maps` show it.
const NAME: &std::ffi::CStr = c"vipl-memory";
/// The same as a link in `/proc/PID/fd`.
pub const LINK: &str = "/memfd:vipl-memory (deleted)";
/// Bytes that one system call takes from the system: signals interrupt a longer one, which then has done nothing.
const STEP: u64 = 16 << 20;

/// The memory file of a process.
#[derive(Debug)]
pub struct MemoryFile {
    fd: Kept,
    inode: u64,
    end: u64,
}

/// Bytes of a page.
pub fn page_size() -> u64 {
    static SIZE: AtomicU64 = AtomicU64::new(0);
    match SIZE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: no pointers.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as u64;
            SIZE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

impl MemoryFile {
    /// An empty one, whose first part lies at `place`: where the last one of a file before it ended.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn new(place: u64) -> io::Result<MemoryFile> {
        let fd = shm::create_growing(NAME)?;
        let inode = Identity::of(fd.as_raw_fd()).ok_or_else(io::Error::last_os_error)?;
        Ok(MemoryFile {
            fd: Kept::new(fd),
            inode: inode.inode(),
            end: place,
        })
    }

    /// Its descriptor and inode number.
    ///
    /// # Errors
    /// The program has closed the descriptor: what is mapped stays, and no other process can map it.
    pub fn name(&self) -> io::Result<(RawFd, u64)> {
        Ok((self.fd.fd()?, self.inode))
    }

    /// Where the last part ends.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Maps so many new bytes, whole pages, which are zero and taken from the system now: no store finds later that there is no
    /// memory. A fork does not inherit them. Gives the address and the place in the file.
    ///
    /// # Errors
    /// There is no memory, or the program has closed the descriptor or limits the size of files.
    pub fn map(&mut self, bytes: u64) -> io::Result<(*mut u8, u64)> {
        check_room(bytes)?;
        let fd = self.fd.fd()?;
        let place = self.end;
        let end = place
            .checked_add(bytes)
            .filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(io::ErrorKind::OutOfMemory)?;
        let size = usize::try_from(end).map_err(|_| io::ErrorKind::OutOfMemory)?;
        fd::set_size(self.fd.as_fd(), size)?;
        // What fails from here on is a part that is never used.
        self.end = end;
        // A limit of the address space speaks before memory is taken.
        let at = reserve(bytes, libc::MAP_SHARED, fd, place)?;
        let filled = (0..bytes).step_by(STEP as usize).try_for_each(|from| {
            let (offset, length) = (place + from, STEP.min(bytes - from));
            // Others may have been told of the same room.
            check_room(bytes - from)?;
            retry(|| {
                // SAFETY: a system call.
                unsafe {
                    libc::fallocate64(fd, 0, offset as libc::off64_t, length as libc::off64_t)
                }
            })
        });
        let mapped = filled.and_then(|()| open(at, bytes));
        if mapped.is_err() {
            // SAFETY: mapped above, and no one has seen it.
            unsafe { unmap(at, bytes) };
            self.free(place, bytes);
        }
        mapped.map(|()| (at, place))
    }

    /// Gives the memory of a part back to the system, also if others have it mapped.
    pub fn free(&self, place: u64, bytes: u64) {
        let Ok(fd) = self.fd.fd() else {
            return;
        };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, length) = (place as libc::off64_t, bytes as libc::off64_t);
        // If the kernel cannot, the memory is free when no process maps the file.
        // SAFETY: a system call.
        let _ = retry(|| unsafe { libc::fallocate64(fd, mode, offset, length) });
    }
}

/// Maps so many zeroed bytes of private memory that a fork does not inherit, for when there can be no memory file.
///
/// # Errors
/// There is no memory.
pub fn map_private(bytes: u64) -> io::Result<*mut u8> {
    check_room(bytes)?;
    let at = reserve(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)?;
    open(at, bytes).inspect_err(|_| {
        // SAFETY: mapped above, and no one has seen it.
        unsafe { unmap(at, bytes) };
    })?;
    Ok(at)
}

/// Unmaps.
///
/// # Safety
/// Memory of `map` or `map_private`, of this length, that is not used any more.
pub unsafe fn unmap(address: *mut u8, bytes: u64) {
    // SAFETY: as asked of the caller.
    unsafe { libc::munmap(address.cast(), bytes as usize) };
}

/// Whether the system has so much memory: it would rather end processes than refuse pages one by one.
fn check_room(bytes: u64) -> io::Result<()> {
    let available = if bytes > STEP { available() } else { None };
    if available.is_some_and(|available| bytes > available) {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    Ok(())
}

/// Bytes that the system can give without ending anybody. `None`: it does not tell.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let all = kilobytes("MemAvailable:")? + kilobytes("SwapFree:").unwrap_or(0);
    Some(all * 1024)
}

/// Takes a place in the address space, without access. A fork in another thread inherits nothing that can be accessed, at any
/// moment.
fn reserve(bytes: u64, flags: libc::c_int, fd: RawFd, offset: u64) -> io::Result<*mut u8> {
    let size = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let offset = offset as libc::off64_t;
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe {
        let at = libc::mmap64(null_mut(), size, libc::PROT_NONE, flags, fd, offset);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if libc::madvise(at, size, libc::MADV_DONTFORK) != 0 {
            let error = io::Error::last_os_error();
            libc::munmap(at, size);
            return Err(error);
        }
        Ok(at.cast())
    }
}

/// Permits access to memory of [`reserve`].
fn open(at: *mut u8, bytes: u64) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: whole mappings of this file's, which no one uses yet.
    unsafe {
        if libc::mprotect(at.cast(), bytes as usize, protection) != 0 {
            return Err(io::Error::last_os_error());
        }
        // So that the first store to a page is as fast as the others. Kernels before 5.14 cannot.
        libc::madvise(at.cast(), bytes as usize, libc::MADV_POPULATE_WRITE);
    }
    Ok(())
}

/// Repeats a system call that a signal has interrupted.
fn retry(mut call: impl FnMut() -> libc::c_int) -> io::Result<()> {
    loop {
        if call() == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Mapping;

    /// Bytes that the file takes from the system.
    fn taken(file: &MemoryFile) -> u64 {
        let (fd, _) = file.name().unwrap();
        // SAFETY: room for the answer.
        unsafe {
            let mut status: libc::stat64 = std::mem::zeroed();
            assert_eq!(libc::fstat64(fd, &raw mut status), 0);
            status.st_blocks as u64 * 512
        }
    }

    #[test]
    fn no_part_is_used_twice_and_a_freed_one_takes_no_memory() {
        let page = page_size();
        let mut file = MemoryFile::new(0).unwrap();
        let (first, at) = file.map(2 * page).unwrap();
        assert_eq!((at, taken(&file)), (0, 2 * page), "taken at once");
        let (fd, _) = file.name().unwrap();
        let peer = Mapping::open_at(fd, page, page as usize, true).unwrap();
        let second = first.wrapping_add(page as usize);
        // SAFETY: inside the mappings.
        unsafe {
            peer.base().write_volatile(7);
            assert_eq!(second.read_volatile(), 7);
            unmap(first, 2 * page);
        }
        file.free(at, 2 * page);
        assert_eq!(taken(&file), 0, "although a peer maps it");
        let (again, at) = file.map(page).unwrap();
        assert_eq!(at, 2 * page);
        // SAFETY: as above.
        unsafe {
            peer.base().write_volatile(9);
            assert_eq!(again.read_volatile(), 0, "not the memory of before");
            unmap(again, page);
        }
        assert!(Mapping::open_at(fd, 3 * page, page as usize, false).is_err());
    }

    #[test]
    fn more_than_there_is_is_refused_at_once() {
        let mut file = MemoryFile::new(0).unwrap();
        for bytes in [1 << 50, 1 << 62] {
            assert!(file.map(bytes).is_err() && map_private(bytes).is_err());
        }
        assert!(available().is_some_and(|available| available > STEP));
        assert_eq!(taken(&file), 0);
    }

    #[test]
    fn a_limit_of_the_address_space_takes_no_memory() {
        let mut file = MemoryFile::new(0).unwrap();
        // SAFETY: the child makes system calls, reads a file and ends.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let limit = libc::rlimit {
                    rlim_cur: 1,
                    rlim_max: 1,
                };
                libc::setrlimit(libc::RLIMIT_AS, &raw const limit);
                let refused = file.map(page_size()).is_err();
                libc::_exit(i32::from(!refused || taken(&file) != 0));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
    }

    #[test]
    fn a_child_has_nothing_at_the_address() {
        let page = page_size();
        let mut file = MemoryFile::new(0).unwrap();
        for at in [file.map(page).unwrap().0, map_private(page).unwrap()] {
            // SAFETY: the child makes system calls and ends.
            let status = unsafe {
                let child = libc::fork();
                if child == 0 {
                    let found = libc::msync(at.cast(), 1, libc::MS_ASYNC);
                    let is_unmapped = found != 0 && *libc::__errno_location() == libc::ENOMEM;
                    libc::_exit(i32::from(!is_unmapped));
                }
                at.write_volatile(1);
                let mut status = -1;
                libc::waitpid(child, &raw mut status, 0);
                status
            };
            assert_eq!(status, 0, "as `wait` gives it");
            // SAFETY: mapped above.
            unsafe { unmap(at, page) };
        }
    }
}
