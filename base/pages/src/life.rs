//! Whether the process of a file of pages still runs.
//!
//! The process holds a lock (`F_SETLK`) on its file, which the kernel releases at its end, however it ends, and which neither a
//! forked child nor another program in the same process id has. It also works across namespaces of process ids, where numbers
//! mean nothing. A process that closes all its descriptors, as daemons do, loses the lock and lives on; then its number, the time
//! of its start and its mapping of the file decide, if the reader is in the same namespace. A program that another one has
//! replaced (`exec`) has left number and start to it, but not the mapping.

use std::fs::{File, metadata, read_to_string};
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

fn lock(kind: i32) -> libc::flock {
    // SAFETY: all zero is a valid value: from the first byte to the end, whatever it is.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Locks the file for this process, until it ends or closes any descriptor of the file.
///
/// # Errors
/// Another process has locked it, or the kernel's.
pub fn take(file: &File) -> io::Result<()> {
    let lock = lock(libc::F_WRLCK);
    // SAFETY: an open descriptor, and a valid structure.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The process that has locked the file, in the namespace of this process: 0 if it has no number here. `None`: none has.
pub fn holder(file: &File) -> Option<u32> {
    let mut lock = lock(libc::F_WRLCK);
    // SAFETY: as above.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    (asked != -1 && lock.l_type != libc::F_UNLCK as libc::c_short)
        .then(|| u32::try_from(lock.l_pid).unwrap_or(0))
}

/// Inode of this process's namespace of process ids; 0 if `/proc` is not mounted.
pub fn namespace() -> u64 {
    metadata("/proc/self/ns/pid").map_or(0, |file| file.ino())
}

/// When a process started, in ticks since the start of the system. `None`: there is no such process, or it has ended.
pub fn start_ticks(process: u32) -> Option<u64> {
    let text = read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in parentheses, may have anything in it.
    let fields = text.rsplit_once(')')?.1;
    let mut fields = fields.split_ascii_whitespace();
    // One that has ended is there until its parent asks for it.
    let runs = fields
        .next()
        .is_some_and(|state| !matches!(state, "Z" | "X"));
    fields.nth(18).filter(|_| runs)?.parse().ok()
}

/// Whether the process that wrote this into its pages still runs.
pub fn runs(file: &File, process: u64, pid_namespace: u64, ticks: u64) -> bool {
    if holder(file).is_some() {
        return true;
    }
    let here = pid_namespace != 0 && pid_namespace == namespace();
    let process = u32::try_from(process).unwrap_or(0);
    here && ticks != 0 && start_ticks(process) == Some(ticks) && may_map(process, file)
}

/// Whether a process has mapped the file, as far as this process may know.
fn may_map(process: u32, file: &File) -> bool {
    let Ok(about) = file.metadata() else {
        return true;
    };
    let inode = about.ino().to_string();
    let Ok(maps) = File::open(format!("/proc/{process}/maps")) else {
        return true;
    };
    // It is empty for a process whose memory has gone. Another has up to 65530 lines, each with a name of any bytes.
    let mut is_empty = true;
    for line in BufReader::new(maps).split(b'\n') {
        let Ok(line) = line else { return true };
        is_empty = false;
        if line.split(|byte| *byte == b' ').nth(4) == Some(inode.as_bytes()) {
            return true;
        }
    }
    is_empty
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_with_its_process_also_while_a_child_lives() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(holder(&file), None);
        let mut ends = [0; 2];
        // SAFETY: the children make system calls only, and end.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                let locked = take(&file).is_ok();
                if libc::fork() == 0 {
                    // The grandchild has the descriptor, and waits until the test has looked.
                    libc::close(ends[1]);
                    let mut byte = 0_u8;
                    libc::read(ends[0], (&raw mut byte).cast(), 1);
                    libc::_exit(0);
                }
                if !locked {
                    libc::_exit(1);
                }
                libc::raise(libc::SIGSTOP);
                libc::_exit(0);
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, libc::WUNTRACED);
            assert!(libc::WIFSTOPPED(status), "{status:#x}");
            assert_eq!(holder(&file), Some(child as u32));
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, &raw mut status, 0);
            assert_eq!(holder(&file), None);
            libc::close(ends[1]);
            libc::close(ends[0]);
        }
    }

    #[test]
    fn without_the_lock_number_start_and_mapping_decide() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let map = |protection| {
            let (fd, none) = (file.as_raw_fd(), std::ptr::null_mut());
            // SAFETY: a new mapping, which nothing uses.
            unsafe { libc::mmap(none, 4096, protection, libc::MAP_SHARED, fd, 0) }
        };
        let own = std::process::id();
        let ticks = start_ticks(own).unwrap();
        let space = namespace();
        assert!(
            !runs(&file, own.into(), space, ticks),
            "not of this program"
        );
        let mapped = map(libc::PROT_READ);
        assert_ne!(mapped, libc::MAP_FAILED);
        assert!(runs(&file, own.into(), space, ticks));
        assert!(
            !runs(&file, own.into(), space, ticks + 1),
            "the number was used again"
        );
        assert!(
            !runs(&file, own.into(), space + 1, ticks),
            "of another namespace"
        );
        assert!(!runs(&file, u64::MAX, space, ticks));
        assert!(!runs(&file, own.into(), space, 0), "unknown");
        // SAFETY: the mapping from above.
        unsafe { libc::munmap(mapped, 4096) };
    }
}
