//! Slices: several frames that together carry a DATA frame that is too long for the path.
//!
//! Once a frame has been sent, its parts cannot be divided differently, since its number stands for all of them. If
//! the path then carries only shorter frames, the frame is retransmitted as SLICEs of its body, which the receiver
//! reassembles.
//!
//! ```text
//!    0                 2                 4                 8
//!    ┌─────────────────┬─────────────────┬─────────────────┬─ ─ ─ ─
//!    │ offset          │ total           │ 0               │ bytes
//!    └─────────────────┴─────────────────┴─────────────────┴─ ─ ─ ─
//! ```

use crate::frame::u16_at;

/// Bytes before those of the body.
pub(crate) const SLICE: usize = 8;
/// Slices begin and end at multiples of this, except at the end of the body.
const UNIT: usize = 128;
/// Longest body.
const BODY_MAX: usize = UNIT * u128::BITS as usize;

/// Length of the slice from `offset` on in a frame with `room` bytes.
pub(crate) fn length(room: usize, offset: usize, total: usize) -> usize {
    let most = (room - SLICE) / UNIT * UNIT;
    most.min(total - offset)
}

/// Writes the header of a slice.
pub(crate) fn emit(out: &mut [u8], offset: usize, total: usize) {
    out[0..2].copy_from_slice(&(offset as u16).to_be_bytes());
    out[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    out[4..SLICE].fill(0);
}

/// Reassembly of the frame whose slice has arrived last.
#[derive(Default)]
pub(crate) struct Slices {
    /// Number of the frame.
    sequence: u32,
    body: Vec<u8>,
    /// Units that have arrived.
    arrived: u128,
}

impl Slices {
    /// Adds a slice of the frame `sequence`. Returns the body once it is complete; an invalid slice has no effect.
    #[cold]
    pub(crate) fn add(&mut self, sequence: u32, slice: &[u8]) -> Option<Vec<u8>> {
        let (head, bytes) = slice.split_at_checked(SLICE)?;
        let (offset, total) = (usize::from(u16_at(head, 0)), usize::from(u16_at(head, 2)));
        let end = offset + bytes.len();
        let ends = end == total || end.is_multiple_of(UNIT) && end < total;
        if bytes.is_empty() || !offset.is_multiple_of(UNIT) || !ends || total > BODY_MAX {
            return None;
        }
        if self.arrived == 0 || self.sequence != sequence || self.body.len() != total {
            self.sequence = sequence;
            self.arrived = 0;
            self.body.clear();
            self.body.resize(total, 0);
        }
        self.body[offset..end].copy_from_slice(bytes);
        self.arrived |= units(end.div_ceil(UNIT)) & !units(offset / UNIT);
        if self.arrived != units(total.div_ceil(UNIT)) {
            return None;
        }
        self.arrived = 0;
        Some(std::mem::take(&mut self.body))
    }

    /// Takes back the buffer of a body for reuse.
    pub(crate) fn recycle(&mut self, body: Vec<u8>) {
        self.body = body;
    }
}

/// Bits of the first units.
fn units(count: usize) -> u128 {
    match count {
        128.. => u128::MAX,
        count => (1 << count) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(body: &[u8], room: usize) -> Vec<Vec<u8>> {
        let (mut all, mut offset) = (Vec::new(), 0);
        while offset < body.len() {
            let bytes = length(room, offset, body.len());
            let mut slice = vec![0xAA; SLICE];
            emit(&mut slice, offset, body.len());
            slice.extend(&body[offset..offset + bytes]);
            assert!(slice.len() <= room);
            all.push(slice);
            offset += bytes;
        }
        all
    }

    #[test]
    fn a_body_is_put_together_from_slices_in_any_order() {
        for (bytes, room) in [
            (1, 136),
            (1436, 1164),
            (8964, 512),
            (BODY_MAX, 136),
            (256, 136),
        ] {
            let body: Vec<u8> = (0..bytes).map(|at| (at * 7) as u8).collect();
            let mut all = slices(&body, room);
            all.reverse();
            let mut there = Slices::default();
            for _ in 0..2 {
                let (last, others) = all.split_last().unwrap();
                for slice in others.iter().chain(others) {
                    assert_eq!(there.add(9, slice), None);
                }
                let whole = there.add(9, last).unwrap();
                assert_eq!(whole, body);
                there.recycle(whole);
            }
        }
    }

    #[test]
    fn slices_of_two_frames_are_not_mixed() {
        let (one, two) = (slices(&[1; 300], 200), slices(&[2; 300], 200));
        let mut there = Slices::default();
        assert_eq!(there.add(1, &one[0]), None);
        assert_eq!(there.add(2, &two[1]), None);
        assert_eq!(there.add(2, &two[2]), None);
        assert_eq!(there.add(2, &two[0]), Some(vec![2; 300]));
        assert_eq!(there.add(1, &one[1]), None);
        assert_eq!(there.add(1, &one[2]), None, "the first one was forgotten");
    }

    #[test]
    fn impossible_slices_change_nothing() {
        let mut there = Slices::default();
        let slice = |offset: u16, total: u16, bytes: usize| {
            let mut slice = vec![0; SLICE + bytes];
            emit(&mut slice, usize::from(offset), usize::from(total));
            slice
        };
        for wrong in [
            slice(0, 0, 0),
            slice(0, 100, 0),
            slice(0, 100, 99),
            slice(0, 100, 101),
            slice(1, 129, 128),
            slice(128, 128, 1),
            slice(128, 100, 0),
            slice(0, u16::MAX, 128),
            slice(65_408, u16::MAX, 127),
            vec![0; SLICE - 1],
        ] {
            assert_eq!(there.add(1, &wrong), None);
            assert!(there.body.is_empty() && there.arrived == 0, "{wrong:?}");
        }
    }
}
