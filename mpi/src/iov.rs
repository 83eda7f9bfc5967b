//! The pieces of memory that an operation names.

use std::ffi::c_void;

use crate::fi::fi_rma_iov;

/// Pieces that one operation may have.
pub(crate) const IOV: usize = 4;

/// One piece, with the memory handle of its region; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub address: u64,
    pub length: usize,
    pub key: u32,
}

/// Up to [`IOV`] pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Iov {
    pieces: [Piece; IOV],
    count: usize,
}

impl Iov {
    /// One piece. `descriptor` is what `fi_mr_desc` gives.
    #[inline]
    pub(crate) fn one(address: *const c_void, length: usize, descriptor: *mut c_void) -> Iov {
        let mut iov = Iov::default();
        iov.pieces[0] = Piece {
            address: address as u64,
            length,
            key: descriptor as usize as u32,
        };
        iov.count = 1;
        iov
    }

    /// From the arguments of a call; None when there are too many pieces.
    ///
    /// # Safety
    /// `iov` points to `count` elements; `descriptors` is null or does the same.
    pub(crate) unsafe fn from_raw(
        iov: *const libc::iovec,
        descriptors: *const *mut c_void,
        count: usize,
    ) -> Option<Iov> {
        if count > IOV {
            return None;
        }
        let mut pieces = Iov {
            count,
            ..Iov::default()
        };
        for at in 0..count {
            // SAFETY: the caller's promise.
            let from = unsafe { iov.add(at).read() };
            let key = match descriptors.is_null() {
                true => 0,
                // SAFETY: as above.
                false => unsafe { descriptors.add(at).read() as usize as u32 },
            };
            pieces.pieces[at] = Piece {
                address: from.iov_base as u64,
                length: from.iov_len,
                key,
            };
        }
        Some(pieces)
    }

    /// All pieces.
    #[inline]
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }

    /// Bytes in all.
    #[inline]
    pub(crate) fn total(&self) -> usize {
        self.pieces().iter().map(|piece| piece.length).sum()
    }

    /// Whether every piece that is not empty has a memory handle.
    pub(crate) fn is_registered(&self) -> bool {
        self.pieces()
            .iter()
            .all(|piece| piece.key != 0 || piece.length == 0)
    }

    /// The pieces that make up the bytes from `offset` on.
    #[inline]
    pub(crate) fn part(&self, offset: usize, length: usize) -> impl Iterator<Item = Piece> {
        let (mut skip, mut left) = (offset, length);
        self.pieces().iter().filter_map(move |piece| {
            let before = skip.min(piece.length);
            skip -= before;
            let taken = (piece.length - before).min(left);
            left -= taken;
            (taken > 0).then_some(Piece {
                address: piece.address + before as u64,
                length: taken,
                key: piece.key,
            })
        })
    }

    /// Copies the bytes out of the pieces.
    ///
    /// # Safety
    /// The pieces are readable and have `to.len()` bytes in all at least.
    #[inline]
    pub(crate) unsafe fn gather(&self, to: &mut [u8]) {
        let mut at = 0;
        for piece in self.part(0, to.len()) {
            // SAFETY: the caller's promise; `part` gives `to.len()` bytes in all.
            unsafe {
                std::ptr::copy(
                    piece.address as *const u8,
                    to[at..].as_mut_ptr(),
                    piece.length,
                );
            }
            at += piece.length;
        }
    }

    /// Copies as many bytes into the pieces as there is room for behind `offset`; returns how many.
    ///
    /// # Safety
    /// The pieces are writable.
    #[inline]
    pub(crate) unsafe fn scatter(&self, offset: usize, from: &[u8]) -> usize {
        if let ([piece], 0) = (self.pieces(), offset) {
            let length = from.len().min(piece.length);
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy(from.as_ptr(), piece.address as *mut u8, length) };
            return length;
        }
        let mut at = 0;
        for piece in self.part(offset, from.len()) {
            // SAFETY: the caller's promise; `part` gives `from.len()` bytes at most.
            unsafe {
                std::ptr::copy(from[at..].as_ptr(), piece.address as *mut u8, piece.length);
            }
            at += piece.length;
        }
        at
    }
}

/// The remote side of an RDMA operation: one piece.
///
/// # Safety
/// `iov` points to `count` elements.
pub(crate) unsafe fn remote(iov: *const fi_rma_iov, count: usize) -> Option<fi_rma_iov> {
    // SAFETY: the caller's promise.
    (count == 1).then(|| unsafe { iov.read() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_across_pieces() {
        let bytes: Vec<u8> = (0..100).collect();
        let vectors: Vec<libc::iovec> = [0..10, 10..10, 10..47, 47..100]
            .into_iter()
            .map(|range| libc::iovec {
                iov_base: bytes[range.clone()].as_ptr() as *mut c_void,
                iov_len: range.len(),
            })
            .collect();
        // SAFETY: four elements.
        let iov = unsafe { Iov::from_raw(vectors.as_ptr(), std::ptr::null(), 4) }.expect("fits");
        assert_eq!(iov.total(), 100);
        for offset in 0..=100 {
            for length in 0..=(100 - offset) {
                let mut found: Vec<u8> = Vec::new();
                for piece in iov.part(offset, length) {
                    assert!(piece.length > 0);
                    // SAFETY: the pieces lie in `bytes`.
                    found.extend(unsafe {
                        std::slice::from_raw_parts(piece.address as *const u8, piece.length)
                    });
                }
                assert_eq!(found, bytes[offset..offset + length]);
            }
        }
        let mut out = [0; 60];
        // SAFETY: 100 bytes, alive.
        unsafe { iov.gather(&mut out) };
        assert_eq!(out, bytes[..60]);
        // SAFETY: count is checked first.
        assert!(unsafe { Iov::from_raw(vectors.as_ptr(), std::ptr::null(), IOV + 1) }.is_none());
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let mut room = [0u8; 12];
        let iov = Iov::one(room[..8].as_mut_ptr().cast(), 8, std::ptr::null_mut());
        // SAFETY: eight bytes, alive.
        let (first, second, third) = unsafe {
            (
                iov.scatter(0, &[1; 5]),
                iov.scatter(5, &[2; 5]),
                iov.scatter(10, &[3; 5]),
            )
        };
        assert_eq!((first, second, third), (5, 3, 0));
        assert_eq!(room, [1, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0]);
    }
}
