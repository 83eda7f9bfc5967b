//! Lists of segments: copies out of a list and into one.

use vipl_abi::{VIP_STATUS_LENGTH_ERROR, VIP_STATUS_PROTECTION_ERROR};
use vipl_guard::Segment;
use vipl_plugin_sdk::descriptor::Segments;

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
        let (body, tail) = if piece > 8 {
            (piece as usize - 8, 8)
        } else {
            (0, piece as usize)
        };
        // SAFETY: `from` has `bytes` bytes; faults are caught.
        let copied = unsafe {
            vipl_guard::copy(to, at, body).is_ok()
                && vipl_guard::copy(to.wrapping_add(body), at.wrapping_add(body), tail).is_ok()
        };
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
