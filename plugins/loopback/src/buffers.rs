//! Lists of data segments: the buffers of a descriptor, and copies out of them and into them.

use std::ops::Deref;

use vipl_abi::{VIP_STATUS_LENGTH_ERROR, VIP_STATUS_PROTECTION_ERROR};
use vipl_guard::Fault;
pub(crate) use vipl_guard::Segment;
use vipl_plugin_sdk::descriptor::Segments;

/// The data segments of a descriptor that has been judged.
#[derive(Clone, Copy)]
pub(crate) enum Buffers {
    /// One segment, loaded once: the usual case.
    One(Segment),
    /// Any number; those beyond the first are read from the program again.
    Any(Segments),
}

/// A list of segments that a transfer keeps; a single one without an allocation.
pub(crate) enum List {
    One([Segment; 1]),
    Many(Vec<Segment>),
}

impl Deref for List {
    type Target = [Segment];

    #[inline(always)]
    fn deref(&self) -> &[Segment] {
        match self {
            List::One(one) => one,
            List::Many(many) => many,
        }
    }
}

impl Buffers {
    /// All segments, each read once: a program that changes them later changes nothing.
    ///
    /// # Errors
    /// The descriptor is not accessible any more.
    #[inline(always)]
    pub(crate) fn list(&self) -> Result<List, Fault> {
        match self {
            Buffers::One(segment) => Ok(List::One([*segment])),
            Buffers::Any(segments) if segments.len() == 1 => Ok(List::One([segments.get(0)?])),
            Buffers::Any(segments) => Ok(List::Many(segments.to_vec()?)),
        }
    }
}

/// The segments of a receive descriptor, cut to the length of a message.
///
/// # Errors
/// A status bit: LENGTH if they are shorter, PROTECTION if the descriptor is not accessible any more.
pub(crate) fn cut(segments: &Segments, length: u32) -> Result<Vec<Segment>, u32> {
    let list = segments.to_vec();
    let mut list = list.map_err(|Fault| VIP_STATUS_PROTECTION_ERROR)?;
    let mut left = length;
    for segment in &mut list {
        segment.length = segment.length.min(left);
        left -= segment.length;
    }
    if left > 0 {
        Err(VIP_STATUS_LENGTH_ERROR)
    } else {
        Ok(list)
    }
}

/// Copies a message of `length` bytes into the segments of a receive descriptor.
///
/// # Errors
/// A status bit: LENGTH if the message is longer, PROTECTION if memory is not accessible.
pub(crate) fn place(segments: &Segments, from: *const u8, length: u32) -> Result<(), u32> {
    if u64::from(length) > segments.total() {
        return Err(VIP_STATUS_LENGTH_ERROR);
    }
    let (mut left, mut at) = (length, from);
    for number in 0..segments.len() {
        if left == 0 {
            break;
        }
        let segment = segments.get(number);
        let segment = segment.map_err(|Fault| VIP_STATUS_PROTECTION_ERROR)?;
        let piece = segment.length.min(left);
        let to = std::ptr::with_exposed_provenance_mut(segment.address as usize);
        // SAFETY: `from` has `length` bytes; faults are caught.
        unsafe { vipl_guard::copy(to, at, piece as usize) }
            .map_err(|Fault| VIP_STATUS_PROTECTION_ERROR)?;
        at = at.wrapping_add(piece as usize);
        left -= piece;
    }
    Ok(())
}

/// Visits the parts of a list that hold `bytes` bytes from `offset` on: address, offset among these bytes, length. Gives how
/// many bytes there were.
fn visit(
    segments: &[Segment],
    offset: u32,
    bytes: u32,
    mut copy: impl FnMut(usize, usize, usize) -> Result<(), Fault>,
) -> Result<u32, Fault> {
    let (mut skip, mut done) = (offset, 0);
    for segment in segments {
        if done == bytes {
            break;
        }
        if skip >= segment.length {
            skip -= segment.length;
            continue;
        }
        let piece = (segment.length - skip).min(bytes - done);
        let address = segment.address + u64::from(skip);
        copy(address as usize, done as usize, piece as usize)?;
        done += piece;
        skip = 0;
    }
    Ok(done)
}

/// Copies `bytes` bytes of the list, from `offset` on, to one place.
///
/// # Errors
/// Memory of the list is not accessible.
pub(crate) fn gather(
    segments: &[Segment],
    offset: u32,
    bytes: u32,
    to: *mut u8,
) -> Result<(), Fault> {
    visit(segments, offset, bytes, |address, done, piece| {
        let from = std::ptr::with_exposed_provenance(address);
        // SAFETY: `to` has room for `bytes`; faults are caught.
        unsafe { vipl_guard::copy(to.wrapping_add(done), from, piece) }
    })
    .map(|_| ())
}

/// Copies one piece into the list from `offset` on, its last eight bytes after all others. False: it does not fit, or memory
/// is not accessible.
pub(crate) fn scatter(segments: &[Segment], offset: u32, from: *const u8, bytes: u32) -> bool {
    let copied = visit(segments, offset, bytes, |address, done, piece| {
        let to = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: `from` has `bytes` bytes; faults are caught.
        unsafe { vipl_guard::copy_watched(to, from.wrapping_add(done), piece) }
    });
    copied == Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(memory: &mut [u8], cuts: &[usize]) -> Vec<Segment> {
        let mut rest = memory;
        cuts.iter()
            .map(|&length| {
                let (part, behind) = std::mem::take(&mut rest).split_at_mut(length);
                rest = behind;
                Segment {
                    address: part.as_mut_ptr().expose_provenance() as u64,
                    handle: 0,
                    length: length as u32,
                }
            })
            .collect()
    }

    #[test]
    fn any_part_of_a_list_is_gathered_and_scattered() {
        let pattern: Vec<u8> = (1..101).collect();
        for (offset, bytes) in [(0, 100), (0, 1), (9, 2), (10, 0), (25, 60), (99, 1)] {
            let (from, to) = (offset as usize, offset as usize + bytes as usize);
            let mut memory = pattern.clone();
            let segments = list(&mut memory, &[10, 0, 15, 75]);
            let mut out = vec![0; bytes as usize];
            gather(&segments, offset, bytes, out.as_mut_ptr()).expect("memory");
            assert_eq!(std::hint::black_box(out), pattern[from..to]);
            let mut memory = vec![0; 100];
            let segments = list(&mut memory, &[10, 0, 15, 75]);
            assert!(scatter(&segments, offset, pattern[from..].as_ptr(), bytes));
            let memory = std::hint::black_box(memory);
            assert_eq!(memory[from..to], pattern[from..to]);
            let outside = memory[..from].iter().chain(&memory[to..]);
            assert_eq!(outside.copied().max().unwrap_or(0), 0);
        }
    }

    #[test]
    fn a_piece_that_does_not_fit_is_not_scattered_whole() {
        let mut memory = vec![0; 10];
        let segments = list(&mut memory, &[10]);
        assert!(!scatter(&segments, 4, [1; 8].as_ptr(), 8));
    }
}
