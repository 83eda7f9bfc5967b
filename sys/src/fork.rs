//! Memory that a fork wipes.

use std::io;

/// Maps zeroed memory that a forked child finds zeroed again, whatever its parent has written. What the library
/// knows of itself hangs on such memory, so that a child starts anew (spec §10.4).
///
/// # Errors
/// There is no room, or the system cannot wipe memory on fork (Linux before 4.14): a child would then take what
/// it inherits for its own.
pub fn map_wiped(bytes: usize) -> io::Result<*mut u8> {
    // SAFETY: a fresh anonymous mapping, which nobody knows before it is given away.
    unsafe {
        let memory = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if libc::madvise(memory, bytes, libc::MADV_WIPEONFORK) != 0 {
            let error = io::Error::last_os_error();
            libc::munmap(memory, bytes);
            return Err(error);
        }
        Ok(memory.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_finds_zeroes() {
        let memory = map_wiped(4096).unwrap();
        // SAFETY: ours; the child makes system calls and ends.
        let status = unsafe {
            memory.write_volatile(7);
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(memory.read_volatile()));
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0);
            assert_eq!(memory.read_volatile(), 7, "the parent keeps it");
            status
        };
        assert_eq!(status, 0, "as `wait` gives it");
    }

    #[test]
    fn no_room_is_an_error() {
        assert!(map_wiped(usize::MAX - 0xFFF).is_err());
    }
}
