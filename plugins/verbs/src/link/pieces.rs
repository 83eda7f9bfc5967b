//! Segments of a descriptor as segments of the device. Neighbours become one.

use vipl_guard::Fault;
use vipl_plugin_sdk::descriptor::Segments;

use crate::ibv::{ibv_sge, zeroed};
use crate::tags::Tag;

/// Segments of the device for the data of a message, where it has more. The device's memory for a VI grows with them.
pub(crate) const DATA_MAX: usize = 5;

/// The head, and the data behind it.
pub(super) struct Pieces {
    list: [ibv_sge; DATA_MAX + 1],
    count: usize,
}

/// Why there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A segment may not be used.
    Protection,
    /// There are more than the device has room for.
    TooMany,
}

impl From<Fault> for Trouble {
    fn from(_: Fault) -> Trouble {
        Trouble::Protection
    }
}

impl Pieces {
    /// No data.
    #[inline(always)]
    pub(super) fn new() -> Pieces {
        Pieces {
            list: [zeroed(); DATA_MAX + 1],
            count: 0,
        }
    }

    /// One piece.
    pub(super) fn one(piece: ibv_sge) -> Pieces {
        let mut pieces = Pieces::new();
        pieces.list[1] = piece;
        pieces.count = 1;
        pieces
    }

    /// The data of a descriptor of the send queue, of so many bytes; `writes`: the device will write there.
    #[inline(always)]
    pub(super) fn of_send(
        tag: &Tag,
        segments: &Segments,
        length: u32,
        writes: bool,
        room: usize,
    ) -> Result<Pieces, Trouble> {
        let mut pieces = Pieces::new();
        let mut total = 0u64;
        for number in 0..segments.len() {
            let segment = segments.get(number)?;
            if segment.length == 0 {
                continue;
            }
            let found = tag.local(segment.handle, segment.address, segment.length, writes);
            let (key, usable) = found.ok_or(Trouble::Protection)?;
            if usable != segment.length {
                return Err(Trouble::Protection);
            }
            total += u64::from(usable);
            pieces.push(segment.address, usable, key, room)?;
        }
        // The application may have changed them since they were checked.
        if total == u64::from(length) {
            Ok(pieces)
        } else {
            Err(Trouble::Protection)
        }
    }

    /// The room of a receive descriptor as far as it may be used, at most `limit` bytes; true: it has more.
    #[inline(always)]
    pub(super) fn of_receive(
        tag: &Tag,
        segments: &Segments,
        limit: u32,
        room: usize,
    ) -> Result<(Pieces, bool), Trouble> {
        let mut pieces = Pieces::new();
        let mut left = limit;
        for number in 0..segments.len() {
            let segment = segments.get(number)?;
            let wanted = segment.length.min(left);
            if wanted == 0 {
                continue;
            }
            let Some((key, usable)) = tag.local(segment.handle, segment.address, wanted, true)
            else {
                return Ok((pieces, true));
            };
            pieces.push(segment.address, usable, key, room)?;
            if usable != wanted {
                return Ok((pieces, true));
            }
            left -= usable;
        }
        Ok((pieces, false))
    }

    #[inline(always)]
    fn push(&mut self, address: u64, length: u32, key: u32, room: usize) -> Result<(), Trouble> {
        let last = &mut self.list[self.count];
        if self.count > 0 && last.lkey == key && last.addr + u64::from(last.length) == address {
            last.length += length;
            return Ok(());
        }
        if self.count == room {
            return Err(Trouble::TooMany);
        }
        self.count += 1;
        self.list[self.count] = ibv_sge {
            addr: address,
            length,
            lkey: key,
        };
        Ok(())
    }

    /// With this head before the data.
    #[inline(always)]
    pub(super) fn with_head(&mut self, head: ibv_sge) -> &mut [ibv_sge] {
        self.list[0] = head;
        &mut self.list[..=self.count]
    }

    /// The data alone.
    #[inline(always)]
    pub(super) fn data(&mut self) -> &mut [ibv_sge] {
        &mut self.list[1..=self.count]
    }

    /// Takes the last bytes off, as pieces of their own. There are more.
    pub(super) fn split_off(&mut self, mut bytes: u32) -> Pieces {
        let mut tail = Pieces::new();
        let mut from = tail.list.len();
        while bytes > 0 {
            let last = &mut self.list[self.count];
            let taken = last.length.min(bytes);
            last.length -= taken;
            bytes -= taken;
            from -= 1;
            tail.list[from] = ibv_sge {
                addr: last.addr + u64::from(last.length),
                length: taken,
                lkey: last.lkey,
            };
            if last.length == 0 {
                self.count -= 1;
            }
        }
        tail.count = tail.list.len() - from;
        tail.list.copy_within(from.., 1);
        tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pieces: &mut Pieces) -> Vec<(u64, u32, u32)> {
        let data = pieces.data().iter();
        data.map(|piece| (piece.addr, piece.length, piece.lkey))
            .collect()
    }

    #[test]
    fn neighbours_become_one_and_the_room_is_kept() {
        let mut pieces = Pieces::new();
        assert_eq!(pieces.push(100, 10, 1, 2), Ok(()));
        assert_eq!(pieces.push(110, 5, 1, 2), Ok(()));
        assert_eq!(pieces.push(115, 5, 2, 2), Ok(()), "another key");
        assert_eq!(pieces.push(200, 5, 2, 2), Err(Trouble::TooMany));
        assert_eq!(pieces.push(120, 1, 2, 2), Ok(()));
        assert_eq!(list(&mut pieces), [(100, 15, 1), (115, 6, 2)]);
        let head = ibv_sge {
            addr: 7,
            length: 16,
            lkey: 9,
        };
        assert_eq!(pieces.with_head(head).len(), 3);
    }

    #[test]
    fn the_last_bytes_go_by_themselves() {
        let mut pieces = Pieces::new();
        for (address, length) in [(100, 20), (200, 3), (300, 2)] {
            pieces.push(address, length, 1, 5).expect("room");
        }
        let mut tail = pieces.split_off(8);
        assert_eq!(list(&mut pieces), [(100, 17, 1)]);
        assert_eq!(list(&mut tail), [(117, 3, 1), (200, 3, 1), (300, 2, 1)]);
    }
}
