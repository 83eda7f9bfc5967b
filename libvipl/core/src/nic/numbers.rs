//! Numbers of a NIC's VIs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Small numbers, the lowest free one first.
#[derive(Default)]
pub(crate) struct Numbers {
    free: BinaryHeap<Reverse<u32>>,
    used: u32,
    in_use: u32,
}

impl Numbers {
    pub(crate) fn take(&mut self, max: u32) -> Option<u32> {
        let number = match self.free.pop() {
            Some(Reverse(number)) => number,
            None if self.used < max => {
                self.used += 1;
                self.used - 1
            }
            None => return None,
        };
        self.in_use += 1;
        Some(number)
    }

    pub(crate) fn release(&mut self, number: u32) {
        self.in_use -= 1;
        self.free.push(Reverse(number));
    }

    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Upper bound of the numbers in use.
    pub(crate) fn bound(&self) -> u32 {
        if self.in_use == 0 { 0 } else { self.used }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_comes_first() {
        let mut numbers = Numbers::default();
        assert_eq!(
            [(); 3].map(|()| numbers.take(3)),
            [Some(0), Some(1), Some(2)]
        );
        assert_eq!(numbers.take(3), None);
        numbers.release(2);
        numbers.release(0);
        assert_eq!((numbers.in_use(), numbers.bound()), (1, 3));
        assert_eq!([numbers.take(3), numbers.take(3)], [Some(0), Some(2)]);
        (0..3).for_each(|number| numbers.release(number));
        assert_eq!((numbers.in_use(), numbers.bound()), (0, 0));
    }
}
