//! Copies between the memories of two processes, or of one, and the protocol of `copying`.
//!
//! While a side copies, its word `copying` is odd. It checks that the peer has not closed and that the range is permitted only
//! after it has set the word. A side that closes, or deregisters a region, withdraws the permission first and then waits for an
//! odd `copying` of the peer to change.

mod vector;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use vipl_guard::Segment;
use vipl_plugin_sdk::abi::{VIPL_LOG_INFO, VIPL_REGION_RDMA_WRITE};
use vipl_plugin_sdk::{Host, Port};
use vipl_sys::clock::Instant;
use vipl_sys::process_vm::{self, Way, piece};

use crate::nic;
use crate::peer::{Peer, Reach};
use crate::segment::WIDE;
pub(crate) use vector::portion;
use vector::{Cursor, MAPPED_STEP, copy_across, copy_range, copy_within, with_whole_flag};

/// How long the end of a connection waits for a peer that is copying (spec §3.12).
const COPY_TIME_MAX: Duration = Duration::from_secs(1);

/// A word that peers read to find out whether they can read this process at all.
static PROBE: AtomicU64 = AtomicU64::new(0);

/// Why a copy ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    /// An address is bad, on one side or the other.
    Fault,
    /// The peer has closed the connection meanwhile.
    Closed,
    /// No thread of the peer's process has a memory any more, now or when another copy asked: it is dead, which the agent will
    /// report, or `/proc` does not list its threads, and then the ring still works.
    Gone,
    /// Not ended: the helper still copies its part.
    Later,
}

/// Publishes the probe word.
pub(crate) fn publish_probe(peer: &Peer) {
    if PROBE.load(Ordering::Relaxed) == 0 {
        let fresh = Host::get().now_ns() ^ u64::from(std::process::id()).rotate_left(40) | 1;
        let _ = PROBE.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Relaxed);
    }
    let own = peer.own();
    let wide = if usize::BITS == 64 { WIDE } else { 0 };
    let probe_at = PROBE.as_ptr().expose_provenance() as u64 | wide;
    own.probe_at.store(probe_at, Ordering::Relaxed);
    own.probe
        .store(PROBE.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Finds out how the peer's memory can be accessed, once the peer has attached, and publishes it.
#[inline]
pub(crate) fn find_reach(peer: &Peer) {
    if peer.reach() == Reach::Unknown && peer.is_attached() {
        let reach = found_reach(peer);
        peer.set_reach(reach);
        let published = if reach == Reach::None { 2 } else { 1 };
        peer.own().reach.store(published, Ordering::Release);
        peer.alert_if_waiting();
    }
}

#[cold]
fn found_reach(peer: &Peer) -> Reach {
    let side = peer.side();
    let pid = side.pid.load(Ordering::Relaxed) as i32;
    let (at, value) = (
        side.probe_at.load(Ordering::Relaxed) & !WIDE,
        side.probe.load(Ordering::Relaxed),
    );
    // The peer writes its words itself: its process is the one that the agent names, and not this one.
    let is_other = pid as u32 == peer.pid() && pid as u32 != std::process::id();
    if !peer.single_copy() {
        return Reach::None;
    }
    if peer.is_here() {
        return Reach::Same;
    }
    if usize::BITS == 32 && peer.is_wide() {
        let text = format!(
            "loopback: process {pid} has 64-bit addresses and this one cannot access its memory; large messages from \
             there go through shared memory"
        );
        Host::get().log(VIPL_LOG_INFO, &text);
        return Reach::None;
    }
    if is_other && let Some(thread) = thread_of(pid, at, value) {
        return Reach::Process(thread);
    }
    nic::count(nic::counters().single_copy_refused, 1);
    let is_here =
        !matches!(probe(pid, at), Err(error) if error.raw_os_error() == Some(libc::ESRCH));
    let text = if is_here {
        format!(
            "loopback: the kernel does not let this process access the memory of process {pid} \
             (ptrace scope, user, or namespace); large messages go through shared memory"
        )
    } else {
        format!(
            "loopback: there is no process {pid} here: it has exited, or is in another PID namespace; \
             large messages go through shared memory"
        )
    };
    Host::get().log(VIPL_LOG_INFO, &text);
    Reach::None
}

/// From now on everything goes through the ring.
#[cold]
pub(crate) fn lose_reach(peer: &Peer) {
    peer.set_reach(Reach::None);
    peer.own().reach.store(2, Ordering::Release);
}

/// Copies between local segments and remote ones of the same total length.
///
/// # Errors
/// As [`copy_part`].
pub(crate) fn copy(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    permitted: impl FnMut() -> bool,
) -> Result<u64, CopyError> {
    let total = local.iter().map(|segment| u64::from(segment.length)).sum();
    copy_part(peer, way, local, remote, 0..total, permitted)
}

/// Copies a part of the bytes. Whether the peer has closed, and whether the range is `permitted`, is checked while `copying` is
/// odd.
///
/// # Errors
/// A bad address or no permission (Fault), the peer has closed (Closed), or its process has no thread any more (Gone).
pub(crate) fn copy_part(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    part: Range<u64>,
    mut permitted: impl FnMut() -> bool,
) -> Result<u64, CopyError> {
    let mut flag = 0;
    let joined = (way == Way::Write)
        .then(|| with_whole_flag(local, &part, &mut flag))
        .flatten();
    let local = joined.as_deref().unwrap_or(local);
    loop {
        match copy_once(peer, way, local, remote, &part, &mut permitted) {
            // What has been copied is copied again, to the same place.
            Err(CopyError::Gone) if find_thread(peer) => {}
            result => return result,
        }
    }
}

/// The thread by which the peer's memory was accessed has ended: another one serves, if there is one.
#[cold]
fn find_thread(peer: &Peer) -> bool {
    let Reach::Process(before) = peer.reach() else {
        return false;
    };
    let at = peer.side().probe_at.load(Ordering::Relaxed) & !WIDE;
    let value = peer.side().probe.load(Ordering::Relaxed);
    let thread = thread_of(peer.pid() as i32, at, value).filter(|thread| *thread != before);
    if let Some(thread) = thread {
        peer.set_reach(Reach::Process(thread));
    }
    thread.is_some()
}

fn copy_once(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    part: &Range<u64>,
    mut permitted: impl FnMut() -> bool,
) -> Result<u64, CopyError> {
    let mut local = Cursor::new(local, part);
    let mut remote = Cursor::new(remote, part);
    let mut total = 0;
    loop {
        begin(peer);
        let step = if peer.side().closed.load(Ordering::SeqCst) != 0 {
            Err(CopyError::Closed)
        } else if !permitted() {
            Err(CopyError::Fault)
        } else {
            let is_open = || peer.side().closed.load(Ordering::Relaxed) == 0;
            let (local, remote) = (&mut local, &mut remote);
            match (peer.reach(), remote.only()) {
                (Reach::Same, _) => copy_within(way, local, remote, 0, is_open),
                (Reach::Process(pid), range) => {
                    match range.and_then(|range| shift(peer, way, range)) {
                        Some(shift) => {
                            copy_within(way, local, remote, shift, is_open).inspect(|bytes| {
                                nic::count(nic::counters().mapped_bytes, *bytes);
                            })
                        }
                        None => copy_across(pid, way, local, remote),
                    }
                }
                (Reach::Unknown | Reach::None, _) => Err(CopyError::Gone),
            }
        };
        end(peer);
        total += step?;
        if local.left == 0 {
            break;
        }
    }
    if is_still_open(peer) {
        Ok(total)
    } else {
        Err(CopyError::Closed)
    }
}

/// How far a range of the peer's memory is from where it is mapped here, if it is; see [`Peer::mapped`].
fn shift(peer: &Peer, way: Way, range: &Segment) -> Option<u64> {
    let at = peer.mapped(way, range)?.expose_provenance() as u64;
    Some(at.wrapping_sub(range.address))
}

/// Writes one range of this process to one of the peer's, where that is mapped or in one system call, by the rules of `copy_part`.
/// False: it was not permitted, the peer has closed, or not all of it is written.
#[inline(always)]
pub(crate) fn write_single(peer: &Peer, pid: i32, from: &Segment, to: &Segment) -> bool {
    let (handle, address, bytes) = (to.handle, to.address, u64::from(to.length));
    begin(peer);
    let copied = peer.side().closed.load(Ordering::SeqCst) == 0
        && peer
            .table()
            .is_remote(handle, address, bytes, peer.tag(), VIPL_REGION_RDMA_WRITE)
        && match peer.mapped(Way::Write, to) {
            Some(at) => store(peer, at, from.address, bytes),
            None => copy_range(pid, Way::Write, from.address, address, bytes).is_ok(),
        };
    end(peer);
    copied && is_still_open(peer)
}

/// Copies into mapped memory. False: the peer has closed, or this side's memory is not accessible.
#[inline(always)]
fn store(peer: &Peer, to: *mut u8, from: u64, bytes: u64) -> bool {
    let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
    let mut done = 0;
    while done < bytes {
        let step = portion(bytes - done, MAPPED_STEP);
        let (to, from) = (
            to.wrapping_add(done as usize),
            from.wrapping_add(done as usize),
        );
        // SAFETY: mapped memory of the peer's; memory of the program; faults are caught.
        let copied = unsafe { vipl_guard::copy_watched(to, from, step as usize) };
        done += step;
        if copied.is_err() || done < bytes && peer.side().closed.load(Ordering::Relaxed) != 0 {
            return false;
        }
    }
    nic::count(nic::counters().mapped_bytes, bytes);
    true
}

/// Whether the peer had not closed when a copy ended: it may have used its memory for something else already.
#[inline(always)]
fn is_still_open(peer: &Peer) -> bool {
    // Acquire: this load comes after the copy.
    fence(Ordering::Acquire);
    peer.side().closed.load(Ordering::Acquire) == 0
}

/// Publishes that this side copies. All checks that follow come after it.
#[inline(always)]
fn begin(peer: &Peer) {
    peer.own().copying.fetch_add(1, Ordering::SeqCst);
    // The locked instruction of x86 is a fence already.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    fence(Ordering::SeqCst);
}

/// Publishes that the copy has ended. Only this side writes the word, and only under the lock of its VI.
#[inline(always)]
fn end(peer: &Peer) {
    let copying = &peer.own().copying;
    let ended = copying.load(Ordering::Relaxed).wrapping_add(1);
    // Release: a side that sees it finds the copy done.
    copying.store(ended, Ordering::Release);
}

/// Waits until the peer does not access this process's memory.
pub(crate) fn wait_for_peer(peer: &Peer) {
    let (mut since, end) = (0, Instant::now() + COPY_TIME_MAX);
    while peer.is_copying(&mut since) && Instant::now() < end {
        std::thread::yield_now();
    }
}

/// The thread by which the memory of a process is accessed, in which this value stands at this address.
fn thread_of(process: i32, at: u64, value: u64) -> Option<i32> {
    match probe(process, at) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
            process_vm::find_thread(process, |thread| {
                probe(thread, at).ok() == Some(Some(value))
            })
        }
        found => (found.ok() == Some(Some(value))).then_some(process),
    }
}

fn probe(thread: i32, at: u64) -> io::Result<Option<u64>> {
    let mut value = 0u64;
    let local = piece((&raw mut value).expose_provenance() as u64, 8);
    // SAFETY: one local word, which is ours.
    let read = unsafe { process_vm::copy(thread, Way::Read, &[local], &[piece(at, 8)]) }?;
    Ok((read == 8).then_some(value))
}

/// Whether a range of this side may be the target of RDMA.
pub(crate) fn is_target(port: &Port, range: &Segment, flag: u32) -> bool {
    let (address, length) = (vipl_guard::own_address(range.address), range.length.into());
    let regions = port.regions();
    regions.is_remote(range.handle, address, length, port.ptag(), flag)
}

/// Whether this side's own memory is accessible, page by page: whose error a failed copy was.
pub(crate) fn is_accessible(segments: &[Segment], write: bool) -> bool {
    segments
        .iter()
        .filter(|segment| segment.length > 0)
        .all(|segment| {
            let end = segment.address + u64::from(segment.length);
            let mut at = segment.address;
            while at < end {
                let place = std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
                let mut byte = 0u8;
                // SAFETY: faults are caught; the byte is written back as it was read.
                let accessible = unsafe {
                    vipl_guard::copy(&raw mut byte, place, 1).is_ok()
                        && (!write || vipl_guard::copy(place, &raw const byte, 1).is_ok())
                };
                if !accessible {
                    return false;
                }
                at = (at & !4095) + 4096;
            }
            true
        })
}
