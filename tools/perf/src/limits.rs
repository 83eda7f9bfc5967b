//! Measuring what the machine can do at all: copies in one process.

use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Instant;

use vipl_tools::stats::median;
use vipl_tools::{Result, sys};

/// Hot copies between two buffers of this process, in GB/s.
///
/// # Errors
/// There is no memory.
pub(crate) fn memcpy_rate(buffers: &mut Buffers, size: usize) -> Result<f64> {
    let [source, target] = buffers.pair(size)?;
    let copies = ((2 << 20) / size.max(1)).clamp(1, 20_000);
    let rates = (0..24).map(|_| {
        let start = Instant::now();
        for _ in 0..copies {
            // SAFETY: two different mappings of at least `size` bytes.
            unsafe {
                black_box(source.as_ptr())
                    .copy_to_nonoverlapping(black_box(target.as_ptr()), black_box(size));
            }
        }
        (size * copies) as f64 / start.elapsed().as_nanos() as f64
    });
    let rates: Vec<f64> = rates.collect();
    Ok(median(&rates[4..]))
}

/// Buffers of this process that grow as needed and are touched.
#[derive(Default)]
pub(crate) struct Buffers {
    pair: Option<([NonNull<u8>; 2], usize)>,
}

impl Buffers {
    pub(crate) fn pair(&mut self, size: usize) -> Result<[NonNull<u8>; 2]> {
        let size = size.max(1);
        if let Some((pair, have)) = self.pair
            && have >= size
        {
            return Ok(pair);
        }
        let length = size.next_multiple_of(4096);
        let pair = [sys::map(length, None)?, sys::map(length, None)?];
        for (buffer, value) in pair.iter().zip([1, 2]) {
            // SAFETY: just mapped, this long.
            unsafe { buffer.as_ptr().write_bytes(value, length) };
        }
        self.pair = Some((pair, length));
        Ok(pair)
    }

    /// Address of the buffer of at least `size` bytes that the peer may write.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn target(&mut self, size: usize) -> Result<u64> {
        Ok(self.pair(size)?[1].as_ptr().addr() as u64)
    }

    /// Address of the buffer of at least `size` bytes that the peer may read.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn source(&mut self, size: usize) -> Result<u64> {
        Ok(self.pair(size)?[0].as_ptr().addr() as u64)
    }

    /// Sets the first page of the target to zero.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn clean_target(&mut self) -> Result<()> {
        let [_, target] = self.pair(4096)?;
        // SAFETY: mapped for at least a page, and only used through pointers.
        unsafe { target.as_ptr().write_bytes(0, 4096) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copying_has_a_rate() {
        let mut buffers = Buffers::default();
        assert!(memcpy_rate(&mut buffers, 4096).unwrap() > 0.0);
        let address = buffers.target(8192).unwrap();
        assert_eq!(address % 4096, 0);
    }
}
