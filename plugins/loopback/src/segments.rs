//! Lists of segments: copies out of a list and into one.

use std::ops::Deref;

use vipl_abi::{VIP_STATUS_LENGTH_ERROR, VIP_STATUS_PROTECTION_ERROR};
pub(crate) use vipl_guard::Segment;
use vipl_plugin_sdk::descriptor::Segments;

/// A list that a transfer keeps for itself; of one segment, the usual case, without an allocation.
pub(crate) enum List {
    One([Segment; 1]),
    Many(Vec<Segment>),
}

impl List {
    /// All data segments of a descriptor, each read once.
    #[inline(always)]
    pub(crate) fn new(segments: &Segments) -> Result<List, vipl_guard::Fault> {
        if segments.len() == 1 {
            Ok(List::One([segments.get(0)?]))
        } else {
            Ok(List::Many(segments.to_vec()?))
        }
    }
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

/// Copies `bytes` bytes, beginning at `offset` of the list, to one place.
pub(crate) fn gather(
    segments: &[Segment],
    offset: u32,
    bytes: u32,
    to: *mut u8,
) -> Result<(), vipl_guard::Fault> {
    let (mut skip, mut left, mut at) = (offset, bytes, to);
    for segment in segments {
        if skip >= segment.length {
            skip -= segment.length;
            continue;
        }
        let piece = (segment.length - skip).min(left);
        let from = std::ptr::with_exposed_provenance((segment.address + u64::from(skip)) as usize);
        // SAFETY: `to` has room for `bytes`; faults are caught.
        unsafe { vipl_guard::copy(at, from, piece as usize)? };
        at = at.wrapping_add(piece as usize);
        left -= piece;
        skip = 0;
        if left == 0 {
            break;
        }
    }
    Ok(())
}

/// Copies one piece into the list, beginning at `offset`, its last eight bytes after all others.
pub(crate) fn scatter(segments: &[Segment], offset: u32, from: *const u8, bytes: u32) -> bool {
    let (mut skip, mut left, mut at) = (offset, bytes, from);
    for segment in segments {
        if skip >= segment.length {
            skip -= segment.length;
            continue;
        }
        let piece = (segment.length - skip).min(left);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(
            (segment.address + u64::from(skip)) as usize,
        );
        // SAFETY: `from` has `bytes` bytes; faults are caught.
        let copied = unsafe { vipl_guard::copy_watched(to, at, piece as usize).is_ok() };
        if !copied {
            return false;
        }
        at = at.wrapping_add(piece as usize);
        left -= piece;
        skip = 0;
        if left == 0 {
            break;
        }
    }
    left == 0
}

/// The segments of a receive descriptor, cut to the length of a message. The error is a status bit.
pub(crate) fn cut(segments: &Segments, length: u32) -> Result<Vec<Segment>, u32> {
    let mut list = segments.to_vec().map_err(|_| VIP_STATUS_PROTECTION_ERROR)?;
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

/// Copies a message into the segments of a receive descriptor. The error is a status bit.
pub(crate) fn scatter_into(segments: &Segments, from: *const u8, length: u32) -> Result<(), u32> {
    if u64::from(length) > segments.total() {
        return Err(VIP_STATUS_LENGTH_ERROR);
    }
    let (mut left, mut at) = (length, from);
    for number in 0..segments.len() {
        if left == 0 {
            break;
        }
        let segment = segments
            .get(number)
            .map_err(|_| VIP_STATUS_PROTECTION_ERROR)?;
        let piece = segment.length.min(left);
        let to = std::ptr::with_exposed_provenance_mut(segment.address as usize);
        // SAFETY: `from` has `length` bytes; faults are caught.
        unsafe { vipl_guard::copy(to, at, piece as usize) }
            .map_err(|_| VIP_STATUS_PROTECTION_ERROR)?;
        at = at.wrapping_add(piece as usize);
        left -= piece;
    }
    Ok(())
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
    fn what_does_not_fit_is_not_scattered_whole() {
        let mut memory = vec![0; 10];
        let segments = list(&mut memory, &[10]);
        assert!(!scatter(&segments, 4, [1; 8].as_ptr(), 8));
    }
}
