//! The memory of other processes, accessed by the kernel for the device.

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

/// The memory is not mapped, or the access is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault;

/// A process and its memory.
pub(crate) struct Process {
    /// The thread through which its memory is accessed; not the first one if that has exited.
    thread: Cell<i32>,
    /// No thread of it has memory any more: it has exited.
    gone: Cell<bool>,
    pid: i32,
    /// Mask of its addresses.
    address_bits: u64,
    /// Whether its PID names the same process to all others for which this is true.
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

/// Appends the pieces of memory that hold `bytes` bytes, from `offset` of the segments on.
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
    /// `PermissionDenied`: the device may not access the process's memory. `probe` is an address in it and its value.
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

    /// Whether its PID names the same process to all others for which this is true.
    pub(crate) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Wakes the thread of the process that waits for interrupts. If the socket is full, the thread has an interrupt
    /// that it has not taken.
    pub(crate) fn interrupt(&self) {
        let _ = channel::send(self.interrupts.as_raw_fd(), &[0], &[]);
    }

    /// Reports why the interface has failed, one of [`failed`](vipl_clan_proto::nic::failed).
    pub(crate) fn report_interface(&self, why: u32) {
        self.nic().failed.store(why, Ordering::Release);
        self.interrupt();
    }

    /// A thread through which its memory is accessed.
    pub(crate) fn thread(&self) -> i32 {
        self.thread.get()
    }

    /// A segment with an address as the process uses it. A process of 32 bits may have stored only half of the address
    /// (spec §2.4).
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

    /// Writes the remote pieces in order; returns the number of bytes written, which is less if memory is missing.
    pub(crate) fn write(&self, from: &[u8], remote: &[libc::iovec]) -> usize {
        if from.is_empty() {
            return 0;
        }
        self.transfer(Way::Write, local(from), remote)
    }

    /// Whether the process has exited, as the last fault showed.
    pub(crate) fn has_exited(&self) -> bool {
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
            // A thread that is found may exit at once, when all of them do.
            if !self.find_thread() {
                self.gone.set(true);
                return 0;
            }
        }
    }

    /// Finds a thread through which memory can be accessed: the first one may exit before the others.
    #[cold]
    fn find_thread(&self) -> bool {
        let found = find_thread(self.pid, |thread| {
            // A read of no valid address shows whether the thread has memory.
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
