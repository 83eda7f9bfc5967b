//! The memory of other processes, touched by the kernel on the device's behalf.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use vipl_clan_proto::channel;
use vipl_clan_proto::nic::{NicPage, REGIONS_AT, REGIONS_MAX};
use vipl_clan_proto::vi::Segment;
use vipl_rules::region::Table;
use vipl_sys::process_vm::{Way, copy, find_thread};
use vipl_sys::shm::Mapping;

pub(crate) use vipl_sys::process_vm::piece;

/// The memory is not there, or may not be touched so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault;

/// A process, as far as moving data is concerned.
pub(crate) struct Process {
    /// The thread by which its memory is reached; not the first one where that has ended.
    thread: Cell<i32>,
    /// No thread of it has a memory any more: it has ended.
    gone: Cell<bool>,
    pid: i32,
    /// The bits of its addresses.
    address_bits: u64,
    /// Its number means the same process to others of which this is true.
    is_named: bool,
    nic: Mapping,
    /// The device's end of the socket of interrupts.
    interrupts: OwnedFd,
}

/// Whether a process has the device's PID namespace.
fn shares_names(pid: i32) -> bool {
    let namespace = |process: &str| {
        let file = std::fs::metadata(format!("/proc/{process}/ns/pid"));
        file.map(|file| file.ino()).ok()
    };
    let own = namespace("self");
    own.is_some() && own == namespace(&pid.to_string())
}

fn local(from: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: from.len(),
    }
}

fn local_mut(into: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    }
}

/// Adds the pieces of `bytes` bytes that begin `offset` bytes into the segments.
pub(crate) fn pieces(list: &mut Vec<libc::iovec>, segments: &[Segment], offset: u32, bytes: usize) {
    let (mut skip, mut left) = (offset as usize, bytes);
    for segment in segments {
        if left == 0 {
            break;
        }
        let length = segment.length as usize;
        if skip >= length {
            skip -= length;
            continue;
        }
        let part = (length - skip).min(left);
        list.push(piece(segment.address.wrapping_add(skip as u64), part));
        left -= part;
        skip = 0;
    }
}

impl Process {
    /// # Errors
    /// The device may not touch the process's memory: `probe` is an address in it and what stands there.
    pub(crate) fn new(
        pid: i32,
        nic: Mapping,
        interrupts: OwnedFd,
        probe: (u64, u64),
        is_narrow: bool,
    ) -> io::Result<Process> {
        let process = Process {
            thread: Cell::new(pid),
            gone: Cell::new(false),
            pid,
            address_bits: if is_narrow { u32::MAX.into() } else { u64::MAX },
            is_named: shares_names(pid),
            nic,
            interrupts,
        };
        let mut found = [0; 8];
        let read = process.read(&[piece(probe.0, 8)], &mut found);
        if read.is_err() || u64::from_ne_bytes(found) != probe.1 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(process)
    }

    pub(crate) fn nic(&self) -> &NicPage {
        // SAFETY: the mapping begins with a page of zeroes at first, which is valid, and all atomic.
        unsafe { &*self.nic.base().cast::<NicPage>() }
    }

    /// Its number means the same process to others of which this is true.
    pub(crate) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Wakes the thread of the process that waits for interrupts. A process with no room for one has an interrupt that it
    /// has not looked at.
    pub(crate) fn interrupt(&self) {
        let _ = channel::send(self.interrupts.as_raw_fd(), &[0], &[]);
    }

    /// Reports what has become of its interface, one of [`failed`](vipl_clan_proto::nic::failed).
    pub(crate) fn report_interface(&self, why: u32) {
        self.nic().failed.store(why, Ordering::Release);
        self.interrupt();
    }

    /// A thread by which its memory is reached.
    pub(crate) fn thread(&self) -> i32 {
        self.thread.get()
    }

    /// A segment in its memory. A program of 32 bits may have stored half of the address and left anything in the other
    /// half (spec §2.4).
    pub(crate) fn own(&self, segment: Segment) -> Segment {
        Segment {
            address: segment.address & self.address_bits,
            ..segment
        }
    }

    /// Its regions.
    pub(crate) fn table(&self) -> Table<'_> {
        let first = self.nic.base().cast_const().wrapping_add(REGIONS_AT).cast();
        // SAFETY: the mapping has so many entries, and lives as long as this.
        unsafe { Table::new(first, REGIONS_MAX) }
    }

    /// Reads all of the remote pieces.
    pub(crate) fn read(&self, remote: &[libc::iovec], into: &mut [u8]) -> Result<(), Fault> {
        let wanted = into.len();
        if wanted == 0 || self.transfer(Way::Read, local_mut(into), remote) == wanted {
            return Ok(());
        }
        Err(Fault)
    }

    /// Writes the remote pieces in their order; gives how many bytes the kernel says it has written, which
    /// is less where memory is missing.
    pub(crate) fn write(&self, from: &[u8], remote: &[libc::iovec]) -> usize {
        if from.is_empty() {
            return 0;
        }
        self.transfer(Way::Write, local(from), remote)
    }

    /// Whether the last fault was the end of the process.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }

    fn transfer(&self, way: Way, local: libc::iovec, remote: &[libc::iovec]) -> usize {
        loop {
            // SAFETY: `local` is what `read` or `write` has borrowed.
            let error = match unsafe { copy(self.thread.get(), way, &[local], remote) } {
                Ok(done) => return done,
                Err(error) => error.raw_os_error(),
            };
            if error != Some(libc::ESRCH) {
                return 0;
            }
            // A thread that is found may end at once, when all of them are being ended.
            if !self.find_thread() {
                self.gone.set(true);
                return 0;
            }
        }
    }

    /// The first thread of the process may end before the others: memory is reached through any of them.
    #[cold]
    fn find_thread(&self) -> bool {
        let found = find_thread(self.pid, |thread| {
            // A read of nothing tells whether the thread has a memory.
            let mut byte = [0u8];
            // SAFETY: one byte of ours.
            let done = unsafe { copy(thread, Way::Read, &[local_mut(&mut byte)], &[piece(0, 1)]) };
            done.map_or_else(|error| error.raw_os_error() == Some(libc::EFAULT), |_| true)
        });
        if let Some(thread) = found {
            self.thread.set(thread);
        }
        found.is_some()
    }
}
