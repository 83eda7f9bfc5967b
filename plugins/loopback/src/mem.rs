//! Copies between the memories of two processes, or of one.

use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use vipl_guard::Segment;
use vipl_plugin_sdk::Host;
use vipl_plugin_sdk::abi::{VIPL_LOG_INFO, VIPL_REGION_RDMA_WRITE};
use vipl_sys::process_vm::{self, Way, piece};

use crate::link::{Link, Reach, both_ends_are_here};
use crate::nic::LoopbackNic;
use crate::ring::WIDE;

/// Bytes of one system call, so that the end of a connection waits for little.
const CALL_BYTES_MAX: u64 = 512 << 10;
/// Pieces of one system call.
const PIECES_MAX: usize = 64;

/// Why a copy ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    /// An address is bad, on one side or the other.
    Fault,
    /// The partner has left meanwhile.
    Closed,
    /// No thread of the partner's process has a memory any more, now or when another copy asked: it is dead, which the
    /// agent will tell, or `/proc` does not tell its threads, and then the ring still works.
    Gone,
    /// Not ended: the partner still works on its part.
    Later,
}

/// Walks over a part of a list of segments.
struct Cursor<'a> {
    segments: &'a [Segment],
    offset: u64,
    left: u64,
}

impl<'a> Cursor<'a> {
    fn new(segments: &'a [Segment], part: &Range<u64>) -> Cursor<'a> {
        let (mut segments, mut offset) = (segments, part.start);
        while let Some(first) = segments.first()
            && offset >= u64::from(first.length)
        {
            offset -= u64::from(first.length);
            segments = &segments[1..];
        }
        Cursor {
            segments,
            offset,
            left: part.end - part.start,
        }
    }

    /// The next contiguous piece of at most `most` bytes.
    fn next(&mut self, most: u64) -> Option<(u64, u64)> {
        loop {
            let segment = self.segments.first()?;
            let here = u64::from(segment.length) - self.offset;
            if here == 0 {
                self.segments = &self.segments[1..];
                self.offset = 0;
                continue;
            }
            let bytes = here.min(most).min(self.left);
            let at = segment.address + self.offset;
            self.offset += bytes;
            self.left -= bytes;
            return (bytes > 0).then_some((at, bytes));
        }
    }

    /// Whether what is left lies in one place.
    #[inline(always)]
    fn is_straight(&self) -> bool {
        let here = |segment: &Segment| u64::from(segment.length) - self.offset;
        self.segments
            .first()
            .is_some_and(|segment| here(segment) >= self.left)
    }
}

impl Link {
    /// Finds out how the partner's memory can be touched, once the partner is there, and tells it.
    pub(crate) fn find_reach(&mut self, nic: &LoopbackNic) {
        let partner = self.ends.partner();
        if self.reach.get() != Reach::Unknown || partner.attached.load(Ordering::Acquire) == 0 {
            return;
        }
        let pid = partner.pid.load(Ordering::Relaxed) as i32;
        let (at, value) = (
            partner.probe_at.load(Ordering::Relaxed),
            partner.probe.load(Ordering::Relaxed),
        );
        // The partner writes its line itself: who it is, the agent and this process's own list tell.
        let other = pid as u32 == self.partner_pid && pid as u32 != std::process::id();
        let reach = if !nic.single_copy {
            Reach::None
        } else if both_ends_are_here(self.key) {
            Reach::Same
        } else if usize::BITS == 32 && at & WIDE != 0 {
            let text = format!(
                "loopback: process {pid} has 64-bit addresses and this one cannot access its memory; large messages from \
                 there go through shared memory"
            );
            Host::get().log(VIPL_LOG_INFO, &text);
            Reach::None
        } else if other && let Some(thread) = thread_of(pid, at & !WIDE, value) {
            Reach::Process(thread)
        } else {
            LoopbackNic::count(nic.counters.single_copy_refused, 1);
            let is_here = !matches!(probe(pid, at & !WIDE), Err(error) if error.raw_os_error() == Some(libc::ESRCH));
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
        };
        self.reach.set(reach);
        let told = if reach == Reach::None { 2 } else { 1 };
        self.ends.own().reach.store(told, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.ends.partner().waiting.load(Ordering::Relaxed) != 0 {
            self.alert();
        }
    }

    /// From now on everything goes through the ring.
    #[cold]
    pub(crate) fn lose_reach(&mut self) {
        self.reach.set(Reach::None);
        self.ends.own().reach.store(2, Ordering::Release);
    }

    /// Copies between local segments and remote ones of the same total length, as `copy_part` does.
    pub(crate) fn copy(
        &self,
        way: Way,
        local: &[Segment],
        remote: &[Segment],
        permitted: impl FnMut() -> bool,
    ) -> Result<u64, CopyError> {
        let total = local.iter().map(|segment| u64::from(segment.length)).sum();
        self.copy_part(way, local, remote, 0..total, permitted)
    }

    /// Copies a part of the bytes. While it copies, this side says so, and looks whether the partner has left, and
    /// `permitted`, only after saying it.
    pub(crate) fn copy_part(
        &self,
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
            match self.copy_once(way, local, remote, part.clone(), &mut permitted) {
                // What has been copied is copied again, to the same place.
                Err(CopyError::Gone) if self.find_thread() => {}
                result => return result,
            }
        }
    }

    /// The thread by which the partner's memory was reached has ended: another one serves, if there is one.
    #[cold]
    fn find_thread(&self) -> bool {
        let Reach::Process(before) = self.reach.get() else {
            return false;
        };
        let partner = self.ends.partner();
        let at = partner.probe_at.load(Ordering::Relaxed) & !WIDE;
        let value = partner.probe.load(Ordering::Relaxed);
        match thread_of(self.partner_pid as i32, at, value) {
            Some(thread) if thread != before => {
                self.reach.set(Reach::Process(thread));
                true
            }
            _ => false,
        }
    }

    fn copy_once(
        &self,
        way: Way,
        local: &[Segment],
        remote: &[Segment],
        part: Range<u64>,
        mut permitted: impl FnMut() -> bool,
    ) -> Result<u64, CopyError> {
        let mut local = Cursor::new(local, &part);
        let mut remote = Cursor::new(remote, &part);
        let mut total = 0;
        loop {
            self.begin_copy();
            let step = if self.ends.partner().closed.load(Ordering::SeqCst) != 0 {
                Err(CopyError::Closed)
            } else if !permitted() {
                Err(CopyError::Fault)
            } else {
                match self.reach.get() {
                    Reach::Same => copy_within(way, &mut local, &mut remote),
                    Reach::Process(pid) => copy_across(pid, way, &mut local, &mut remote),
                    Reach::Unknown | Reach::None => Err(CopyError::Gone),
                }
            };
            self.end_copy();
            total += step?;
            if local.left == 0 {
                break;
            }
        }
        if self.is_still_there() {
            Ok(total)
        } else {
            Err(CopyError::Closed)
        }
    }

    /// A segment in the partner's memory. Its address has 32 bits if the partner's have, whatever a program of 32 bits
    /// has left in the upper half (spec §2.4).
    #[inline(always)]
    pub(crate) fn in_partner(&self, segment: Segment) -> Segment {
        let is_wide = self.ends.partner().probe_at.load(Ordering::Relaxed) & WIDE != 0;
        let bits = if is_wide { u64::MAX } else { u32::MAX.into() };
        Segment {
            address: segment.address & bits,
            ..segment
        }
    }

    /// Writes from one place of this process to one place of the partner's, in one system call, under the same rules as
    /// `copy_part`. False: it was not permitted or the partner has left, or not all of it is written.
    #[inline(always)]
    pub(crate) fn write_straight(&self, pid: i32, from: u64, to: &Segment, bytes: u64) -> bool {
        let table = self.partner_nic.table();
        let (handle, address) = (to.handle, to.address);
        self.begin_copy();
        let partner = self.ends.partner();
        let tag = partner.ptag.load(Ordering::Relaxed);
        let copied = partner.closed.load(Ordering::SeqCst) == 0
            && table.is_remote(handle, address, bytes, tag, VIPL_REGION_RDMA_WRITE)
            && call_straight(pid, Way::Write, from, address, bytes).is_ok();
        self.end_copy();
        copied && self.is_still_there()
    }

    /// Whether the partner had not left when a copy ended: it may have used its memory for something else already.
    #[inline(always)]
    fn is_still_there(&self) -> bool {
        // Acquire: this look comes after the copy.
        fence(Ordering::Acquire);
        self.ends.partner().closed.load(Ordering::Acquire) == 0
    }

    /// Says that this side copies. Whatever it looks at next, it looks at after that.
    #[inline(always)]
    fn begin_copy(&self) {
        self.ends.own().copying.fetch_add(1, Ordering::SeqCst);
        // The locked instruction of x86 is a fence already.
        #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
        fence(Ordering::SeqCst);
    }

    /// Says that the copy has ended. Only this side writes the word, and only under the lock of its VI.
    #[inline(always)]
    fn end_copy(&self) {
        let copying = &self.ends.own().copying;
        let ended = copying.load(Ordering::Relaxed).wrapping_add(1);
        // Release: whoever sees it finds the copy done.
        copying.store(ended, Ordering::Release);
    }
}

/// The thread by which the memory of a process is reached, in which this value stands at this address.
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

/// Bytes of the next step of a copy: as many as there may be, but so that eight bytes or more are left, or none. Programs
/// watch the last eight bytes of an RDMA Write (spec §5.4), which one step copies.
#[inline(always)]
pub(crate) fn portion(left: u64, most: u64) -> u64 {
    if left > most && left - most < 8 {
        most - 8
    } else {
        left.min(most)
    }
}

/// A part of what lies in these segments, with the last eight bytes in one place, if they do not lie in one segment: they
/// are copied into `flag`, which the list then names. `None`: they do, or they cannot be read, which the copy will find.
fn with_whole_flag(local: &[Segment], part: &Range<u64>, flag: &mut u64) -> Option<Vec<Segment>> {
    let mut end = 0;
    let last = local.iter().find(|segment| {
        end += u64::from(segment.length);
        end >= part.end
    })?;
    let in_last = part.end - (end - u64::from(last.length));
    let bytes = (part.end - part.start).min(8);
    if in_last >= bytes {
        return None;
    }
    let mut list = Vec::new();
    list.try_reserve_exact(local.len() + 1).ok()?;
    let mut left = part.end - bytes;
    for segment in local {
        let length = left.min(segment.length.into());
        left -= length;
        list.push(Segment {
            length: length as u32,
            ..*segment
        });
    }
    let whole = Cursor::new(local, &(part.end - bytes..part.end));
    let mut gathered = [0; 8];
    gather(whole, &mut gathered[..bytes as usize])?;
    *flag = u64::from_ne_bytes(gathered);
    list.push(Segment {
        address: (flag as *mut u64).expose_provenance() as u64,
        handle: 0,
        length: bytes as u32,
    });
    Some(list)
}

/// Copies what is left of a list, as many bytes as there is room for.
fn gather(mut from: Cursor<'_>, to: &mut [u8]) -> Option<()> {
    let mut done = 0;
    while done < to.len() {
        let (at, length) = from.next((to.len() - done) as u64)?;
        let at = std::ptr::with_exposed_provenance::<u8>(at as usize);
        let room = to[done..].as_mut_ptr();
        // SAFETY: memory of the program; faults are caught. There is room for as many bytes as were asked for.
        unsafe { vipl_guard::copy(room, at, length as usize) }.ok()?;
        done += length as usize;
    }
    Some(())
}

/// Nothing is left, or the list is shorter than was said.
#[cold]
fn nothing(local: &Cursor<'_>) -> Result<u64, CopyError> {
    if local.left == 0 {
        Ok(0)
    } else {
        Err(CopyError::Fault)
    }
}

fn copy_within(
    way: Way,
    local: &mut Cursor<'_>,
    remote: &mut Cursor<'_>,
) -> Result<u64, CopyError> {
    let Some((near, bytes)) = local.next(portion(local.left, CALL_BYTES_MAX)) else {
        return nothing(local);
    };
    let mut done = 0;
    while done < bytes {
        let (far, piece) = remote.next(bytes - done).ok_or(CopyError::Fault)?;
        let pointer = |at: u64| std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
        let (near, far) = (pointer(near + done), pointer(far));
        let (to, from) = if way == Way::Read {
            (near, far)
        } else {
            (far, near)
        };
        // SAFETY: program memory of this process; faults are caught.
        unsafe { vipl_guard::copy_watched(to, from, piece as usize) }
            .map_err(|_| CopyError::Fault)?;
        done += piece;
    }
    Ok(bytes)
}

/// One system call's worth.
fn copy_across(
    pid: i32,
    way: Way,
    local: &mut Cursor<'_>,
    remote: &mut Cursor<'_>,
) -> Result<u64, CopyError> {
    if local.is_straight() && remote.is_straight() {
        copy_straight(pid, way, local, remote)
    } else {
        copy_lists(pid, way, local, remote)
    }
}

/// The common case: one piece on either side.
#[inline(always)]
fn copy_straight(
    pid: i32,
    way: Way,
    local: &mut Cursor<'_>,
    remote: &mut Cursor<'_>,
) -> Result<u64, CopyError> {
    let Some((near, bytes)) = local.next(portion(local.left, CALL_BYTES_MAX)) else {
        return Ok(0);
    };
    // As long, because neither list ends earlier.
    let (far, _) = remote.next(bytes).ok_or(CopyError::Fault)?;
    call_straight(pid, way, near, far, bytes)?;
    Ok(bytes)
}

/// Copies between one place and another, so that the last eight bytes become visible after all others (spec §5.4): the kernel
/// copies local pieces one after the other. A second remote piece would do too, but costs a second look at the pages of the
/// other process.
#[inline(always)]
fn call_straight(pid: i32, way: Way, near: u64, far: u64, bytes: u64) -> Result<(), CopyError> {
    let far = [piece(far, bytes as usize)];
    if bytes <= 8 {
        return call(pid, way, &[piece(near, bytes as usize)], &far, bytes);
    }
    let body = bytes - 8;
    let near = [piece(near, body as usize), piece(near + body, 8)];
    call(pid, way, &near, &far, bytes)
}

/// Any lists of pieces.
#[inline(never)]
fn copy_lists(
    pid: i32,
    way: Way,
    local: &mut Cursor<'_>,
    remote: &mut Cursor<'_>,
) -> Result<u64, CopyError> {
    let mut near = [piece(0, 0); PIECES_MAX + 1];
    let mut far = [piece(0, 0); PIECES_MAX];
    let (mut near_count, mut far_count) = (0, 0);
    let mut bytes = 0;
    let most = portion(local.left, CALL_BYTES_MAX);
    while near_count < PIECES_MAX && bytes < most {
        let Some((at, length)) = local.next(most - bytes) else {
            break;
        };
        near[near_count] = piece(at, length as usize);
        near_count += 1;
        bytes += length;
    }
    if bytes == 0 {
        return nothing(local);
    }
    let mut matched = 0;
    while matched < bytes {
        if far_count == PIECES_MAX {
            return copy_rest(
                pid,
                way,
                &near[..near_count],
                &far[..far_count],
                matched,
                bytes,
                remote,
            );
        }
        let (at, length) = remote.next(bytes - matched).ok_or(CopyError::Fault)?;
        far[far_count] = piece(at, length as usize);
        far_count += 1;
        matched += length;
    }
    split_tail(&mut near, &mut near_count);
    call(pid, way, &near[..near_count], &far[..far_count], bytes)?;
    Ok(bytes)
}

/// More remote pieces than one call takes: copies piece by piece.
#[cold]
fn copy_rest(
    pid: i32,
    way: Way,
    near: &[libc::iovec],
    far: &[libc::iovec],
    matched: u64,
    bytes: u64,
    remote: &mut Cursor<'_>,
) -> Result<u64, CopyError> {
    let segment = |v: &libc::iovec| Segment {
        address: v.iov_base.expose_provenance() as u64,
        handle: 0,
        length: v.iov_len as u32,
    };
    let near: Vec<Segment> = near.iter().map(segment).collect();
    let mut far: Vec<Segment> = far.iter().map(segment).collect();
    let mut matched = matched;
    while matched < bytes {
        let (address, length) = remote.next(bytes - matched).ok_or(CopyError::Fault)?;
        far.push(Segment {
            address,
            handle: 0,
            length: length as u32,
        });
        matched += length;
    }
    let mut near = Cursor::new(&near, &(0..bytes));
    let mut far = Cursor::new(&far, &(0..bytes));
    let mut done = 0;
    while done < bytes {
        let (at, length) = near.next(CALL_BYTES_MAX).ok_or(CopyError::Fault)?;
        let mut part = 0;
        while part < length {
            let (there, size) = far.next(length - part).ok_or(CopyError::Fault)?;
            call(
                pid,
                way,
                &[piece(at + part, size as usize)],
                &[piece(there, size as usize)],
                size,
            )?;
            part += size;
        }
        done += length;
    }
    Ok(bytes)
}

/// Makes the last eight bytes a local piece of their own, as in `copy_straight`.
fn split_tail(near: &mut [libc::iovec; PIECES_MAX + 1], count: &mut usize) {
    let last = near[*count - 1];
    if last.iov_len > 8 {
        let at = last.iov_base.expose_provenance() as u64;
        let body = last.iov_len as u64 - 8;
        near[*count - 1] = piece(at, body as usize);
        near[*count] = piece(at + body, 8);
        *count += 1;
    }
}

#[inline(always)]
fn call(
    pid: i32,
    way: Way,
    near: &[libc::iovec],
    far: &[libc::iovec],
    bytes: u64,
) -> Result<(), CopyError> {
    // SAFETY: what is local was posted or registered by the application, or is a buffer of ours.
    match unsafe { process_vm::copy(pid, way, near, far) } {
        Ok(copied) if copied as u64 == bytes => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(CopyError::Gone),
        _ => Err(CopyError::Fault),
    }
}

/// Whether this side's own memory can be accessed, page by page: tells whose fault a failed copy was.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(memory: &[u8], cuts: &[usize]) -> Vec<Segment> {
        let mut at = 0;
        cuts.iter()
            .map(|&length| {
                let address = memory[at..].as_ptr().expose_provenance() as u64;
                at += length;
                Segment {
                    address,
                    handle: 0,
                    length: length as u32,
                }
            })
            .collect()
    }

    #[test]
    fn the_last_eight_bytes_of_a_write_are_one_step() {
        for most in [16, 512 << 10] {
            for length in (0..4 * most + 20).step_by(if most == 16 { 1 } else { 4093 }) {
                for left in [length, most + length % 9] {
                    let step = portion(left, most);
                    assert!(step <= most && (left - step == 0 || left - step >= 8));
                }
            }
        }
        vipl_guard::install();
        let memory: Vec<u8> = (0..40).collect();
        for cuts in [[37, 3, 0], [20, 13, 7], [40, 0, 0], [31, 8, 1], [33, 4, 3]] {
            let local = segments(&memory, &cuts);
            for part in [0..40, 9..40, 0..37, 33..40] {
                let mut flag = 0;
                let joined = with_whole_flag(&local, &part, &mut flag);
                let list = joined.as_deref().unwrap_or(&local);
                let mut cursor = Cursor::new(list, &part);
                let (mut copied, mut last) = (Vec::<u8>::new(), 0);
                while let Some((at, length)) = cursor.next(part.end) {
                    let from = std::ptr::with_exposed_provenance::<u8>(at as usize);
                    // SAFETY: memory of this test, or its flag.
                    copied.extend(unsafe { std::slice::from_raw_parts(from, length as usize) });
                    last = length;
                }
                let whole = part.start as usize..part.end as usize;
                assert_eq!(copied, memory[whole], "{cuts:?} {part:?}");
                assert!(last >= 8.min(part.end - part.start), "{cuts:?} {part:?}");
            }
        }
    }

    #[test]
    fn both_ways_of_copying_gather_and_scatter() {
        vipl_guard::install();
        let from: Vec<u8> = (0..5000u32).map(|i| (i * 13 + 5) as u8).collect();
        for across in [false, true] {
            let to = vec![0u8; 5000];
            let local = segments(&from, &[1, 0, 700, 4299]);
            let remote = segments(&to, &(0..100).map(|_| 50).collect::<Vec<_>>());
            let copy = |part: Range<u64>| {
                let mut near = Cursor::new(&local, &part);
                let mut far = Cursor::new(&remote, &part);
                while near.left > 0 {
                    let own = std::process::id() as i32;
                    let bytes = if across {
                        copy_across(own, Way::Write, &mut near, &mut far)
                    } else {
                        copy_within(Way::Write, &mut near, &mut far)
                    };
                    assert!(bytes.expect("memory") > 0);
                }
            };
            // In parts that begin and end anywhere, the last one first.
            copy(4000..5000);
            copy(0..1);
            copy(1..4000);
            assert_eq!(std::hint::black_box(&to), &from, "across {across}");
            // A list that is shorter than was said is an error in the end.
            let mut short = Cursor::new(&local, &(4999..5001));
            let mut far = Cursor::new(&remote, &(0..2));
            let mut step = || {
                if across {
                    let own = std::process::id() as i32;
                    copy_across(own, Way::Write, &mut short, &mut far)
                } else {
                    copy_within(Way::Write, &mut short, &mut far)
                }
            };
            assert_eq!((step(), step()), (Ok(1), Err(CopyError::Fault)));
        }
    }
}
