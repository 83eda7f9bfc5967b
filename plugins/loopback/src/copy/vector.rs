//! Lists of segments, and the calls that copy between two of them.

use std::ops::Range;

use vipl_guard::Segment;
use vipl_sys::process_vm::{self, Way, piece};

use super::CopyError;

/// Bytes of one system call, so that the end of a connection waits briefly.
const CALL_BYTES_MAX: u64 = 512 << 10;
/// Bytes of one step of a copy within this process, or to mapped memory.
pub(super) const MAPPED_STEP: u64 = 16 << 10;
/// Pieces of one system call.
const PIECES_MAX: usize = 64;

/// Traverses a part of a list of segments.
pub(super) struct Cursor<'a> {
    segments: &'a [Segment],
    offset: u64,
    pub(super) left: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(segments: &'a [Segment], part: &Range<u64>) -> Cursor<'a> {
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

    /// The segment that has all of the rest, whole. `None`: several have.
    pub(super) fn only(&self) -> Option<&'a Segment> {
        let first = self.segments.first()?;
        self.is_one_range().then_some(first)
    }

    /// Whether the rest lies in one place.
    #[inline(always)]
    fn is_one_range(&self) -> bool {
        let here = |segment: &Segment| u64::from(segment.length) - self.offset;
        self.segments
            .first()
            .is_some_and(|segment| here(segment) >= self.left)
    }
}

/// Bytes of the next step of a copy: as many as there may be, but so that eight bytes or more are left, or none. Programs poll the
/// last eight bytes of an RDMA Write (spec §5.4), which one step copies.
#[inline(always)]
pub(crate) fn portion(left: u64, most: u64) -> u64 {
    if left > most && left - most < 8 {
        most - 8
    } else {
        left.min(most)
    }
}

/// A part of these segments with the last eight bytes in one place, if they do not lie in one segment: they are copied into
/// `flag`, which the list then names. `None`: they do, or they cannot be read, which the copy will find.
pub(super) fn with_whole_flag(
    local: &[Segment],
    part: &Range<u64>,
    flag: &mut u64,
) -> Option<Vec<Segment>> {
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

/// Copies the rest of a list, as many bytes as there is room for.
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

/// Nothing is left, or the list is shorter than was described.
#[cold]
fn nothing_left(local: &Cursor<'_>) -> Result<u64, CopyError> {
    if local.left == 0 {
        Ok(0)
    } else {
        Err(CopyError::Fault)
    }
}

/// Copies within this process, where remote addresses are `shift` from where they are mapped. The copy ends early if the connection
/// `is_open` no longer: a thread that was stopped in the middle shall do no harm when it goes on.
pub(super) fn copy_within(
    way: Way,
    local: &mut Cursor<'_>,
    remote: &mut Cursor<'_>,
    shift: u64,
    is_open: impl Fn() -> bool,
) -> Result<u64, CopyError> {
    let Some((here, bytes)) = local.next(portion(local.left, CALL_BYTES_MAX)) else {
        return nothing_left(local);
    };
    let mut done = 0;
    while done < bytes {
        if !is_open() {
            return Err(CopyError::Closed);
        }
        let step = portion(bytes - done, MAPPED_STEP);
        let (there, piece) = remote.next(step).ok_or(CopyError::Fault)?;
        let pointer = |at: u64| std::ptr::with_exposed_provenance_mut::<u8>(at as usize);
        let (here, there) = (pointer(here + done), pointer(there.wrapping_add(shift)));
        let (to, from) = if way == Way::Read {
            (here, there)
        } else {
            (there, here)
        };
        // SAFETY: program memory of this process, or mapped memory of the peer's; faults are caught.
        unsafe { vipl_guard::copy_watched(to, from, piece as usize) }
            .map_err(|_| CopyError::Fault)?;
        done += piece;
    }
    Ok(bytes)
}

/// One system call's worth.
pub(super) fn copy_across(
    pid: i32,
    way: Way,
    local: &mut Cursor<'_>,
    remote: &mut Cursor<'_>,
) -> Result<u64, CopyError> {
    if local.is_one_range() && remote.is_one_range() {
        copy_ranges(pid, way, local, remote)
    } else {
        copy_lists(pid, way, local, remote)
    }
}

/// The usual case: one range on either side.
#[inline(always)]
fn copy_ranges(
    pid: i32,
    way: Way,
    local: &mut Cursor<'_>,
    remote: &mut Cursor<'_>,
) -> Result<u64, CopyError> {
    let Some((here, bytes)) = local.next(portion(local.left, CALL_BYTES_MAX)) else {
        return Ok(0);
    };
    // As long, because neither list ends earlier.
    let (there, _) = remote.next(bytes).ok_or(CopyError::Fault)?;
    copy_range(pid, way, here, there, bytes)?;
    Ok(bytes)
}

/// Copies between one place and another, so that the last eight bytes become visible after all others (spec §5.4): the kernel
/// copies local pieces one after the other. A second remote piece would do too, but costs a second walk of the peer's page
/// tables.
#[inline(always)]
pub(super) fn copy_range(
    pid: i32,
    way: Way,
    here: u64,
    there: u64,
    bytes: u64,
) -> Result<(), CopyError> {
    let there = [piece(there, bytes as usize)];
    if bytes <= 8 {
        return call(pid, way, &[piece(here, bytes as usize)], &there, bytes);
    }
    let body = bytes - 8;
    let here = [piece(here, body as usize), piece(here + body, 8)];
    call(pid, way, &here, &there, bytes)
}

/// Any lists of pieces.
#[inline(never)]
fn copy_lists(
    pid: i32,
    way: Way,
    local: &mut Cursor<'_>,
    remote: &mut Cursor<'_>,
) -> Result<u64, CopyError> {
    let mut here = [piece(0, 0); PIECES_MAX + 1];
    let mut there = [piece(0, 0); PIECES_MAX];
    let (mut local_count, mut remote_count) = (0, 0);
    let mut bytes = 0;
    let most = portion(local.left, CALL_BYTES_MAX);
    while local_count < PIECES_MAX && bytes < most {
        let Some((at, length)) = local.next(most - bytes) else {
            break;
        };
        here[local_count] = piece(at, length as usize);
        local_count += 1;
        bytes += length;
    }
    if bytes == 0 {
        return nothing_left(local);
    }
    let mut matched = 0;
    while matched < bytes {
        if remote_count == PIECES_MAX {
            return copy_rest(
                pid,
                way,
                &here[..local_count],
                &there[..remote_count],
                matched,
                bytes,
                remote,
            );
        }
        let (at, length) = remote.next(bytes - matched).ok_or(CopyError::Fault)?;
        there[remote_count] = piece(at, length as usize);
        remote_count += 1;
        matched += length;
    }
    split_tail(&mut here, &mut local_count);
    call(
        pid,
        way,
        &here[..local_count],
        &there[..remote_count],
        bytes,
    )?;
    Ok(bytes)
}

/// More remote pieces than one call takes: copies piece by piece.
#[cold]
fn copy_rest(
    pid: i32,
    way: Way,
    here: &[libc::iovec],
    there: &[libc::iovec],
    matched: u64,
    bytes: u64,
    remote: &mut Cursor<'_>,
) -> Result<u64, CopyError> {
    let segment = |v: &libc::iovec| Segment {
        address: v.iov_base.expose_provenance() as u64,
        handle: 0,
        length: v.iov_len as u32,
    };
    let here: Vec<Segment> = here.iter().map(segment).collect();
    let mut there: Vec<Segment> = there.iter().map(segment).collect();
    let mut matched = matched;
    while matched < bytes {
        let (address, length) = remote.next(bytes - matched).ok_or(CopyError::Fault)?;
        there.push(Segment {
            address,
            handle: 0,
            length: length as u32,
        });
        matched += length;
    }
    let mut here = Cursor::new(&here, &(0..bytes));
    let mut there = Cursor::new(&there, &(0..bytes));
    let mut done = 0;
    while done < bytes {
        let (at, length) = here.next(CALL_BYTES_MAX).ok_or(CopyError::Fault)?;
        let mut part = 0;
        while part < length {
            let (at_remote, size) = there.next(length - part).ok_or(CopyError::Fault)?;
            call(
                pid,
                way,
                &[piece(at + part, size as usize)],
                &[piece(at_remote, size as usize)],
                size,
            )?;
            part += size;
        }
        done += length;
    }
    Ok(bytes)
}

/// Makes the last eight bytes a local piece of their own, as `copy_range` does.
fn split_tail(here: &mut [libc::iovec; PIECES_MAX + 1], count: &mut usize) {
    let last = here[*count - 1];
    if last.iov_len > 8 {
        let at = last.iov_base.expose_provenance() as u64;
        let body = last.iov_len as u64 - 8;
        here[*count - 1] = piece(at, body as usize);
        here[*count] = piece(at + body, 8);
        *count += 1;
    }
}

#[inline(always)]
fn call(
    pid: i32,
    way: Way,
    here: &[libc::iovec],
    there: &[libc::iovec],
    bytes: u64,
) -> Result<(), CopyError> {
    // SAFETY: local memory was posted or registered by the application, or is a buffer of this plug-in.
    match unsafe { process_vm::copy(pid, way, here, there) } {
        Ok(copied) if copied as u64 == bytes => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(CopyError::Gone),
        _ => Err(CopyError::Fault),
    }
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
                let mut here = Cursor::new(&local, &part);
                let mut there = Cursor::new(&remote, &part);
                while here.left > 0 {
                    let own = std::process::id() as i32;
                    let bytes = if across {
                        copy_across(own, Way::Write, &mut here, &mut there)
                    } else {
                        copy_within(Way::Write, &mut here, &mut there, 0, || true)
                    };
                    assert!(bytes.expect("memory") > 0);
                }
            };
            // In parts that begin and end anywhere, the last one first.
            copy(4000..5000);
            copy(0..1);
            copy(1..4000);
            assert_eq!(std::hint::black_box(&to), &from, "across {across}");
            // A list that is shorter than was described is an error in the end.
            let mut short = Cursor::new(&local, &(4999..5001));
            let mut there = Cursor::new(&remote, &(0..2));
            let mut step = || {
                if across {
                    let own = std::process::id() as i32;
                    copy_across(own, Way::Write, &mut short, &mut there)
                } else {
                    copy_within(Way::Write, &mut short, &mut there, 0, || true)
                }
            };
            assert_eq!((step(), step()), (Ok(1), Err(CopyError::Fault)));
        }
    }
}
