//! Explicit congestion notification (RFC 3168): what the peer tells of the frames that routers have marked.
//!
//! Each side counts the marked DATA frames that have arrived, and sends the count with all its frames. A count that
//! has grown reduces the congestion window of the other side, once in a round trip, and nothing is sent again.
//!
//! A path that clears the marks leaves loss as the only sign of congestion. One that marks everything, whatever is
//! sent, would hold the window at its smallest; then marks are ignored for the rest of the connection.

/// So many frames in a row, all of them marked, do not mean congestion if the window is at its smallest.
const MANGLED: u32 = 16;

/// The state of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    /// The peer's count.
    seen: u8,
    ignored: bool,
    /// The oldest frame in flight when the count grew last.
    first: u32,
    /// Marked frames, and all frames, since the last one without a mark.
    marked: u32,
    frames: u32,
}

/// What marks mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Nothing,
    Congestion,
    /// Every frame is marked.
    All,
}

impl Marks {
    pub(crate) fn new(first: u32) -> Marks {
        Marks {
            first,
            ..Marks::default()
        }
    }

    /// Whether the peer's count has changed.
    #[inline(always)]
    pub(crate) fn differ(&self, count: u8) -> bool {
        self.seen != count
    }

    /// The peer's count, and the oldest frame in flight.
    pub(crate) fn received(&mut self, count: u8, first: u32) -> Meaning {
        let more = count.wrapping_sub(self.seen);
        // Frames may overtake each other.
        if self.ignored || more.cast_signed() <= 0 {
            return Meaning::Nothing;
        }
        self.seen = count;
        self.marked += u32::from(more);
        self.frames += first.wrapping_sub(self.first);
        self.first = first;
        if self.marked < self.frames {
            (self.marked, self.frames) = (0, 0);
        }
        if self.frames < MANGLED {
            return Meaning::Congestion;
        }
        (self.marked, self.frames) = (0, 0);
        Meaning::All
    }

    /// Marks are not heard any more.
    pub(crate) fn ignore(&mut self) {
        self.ignored = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_grows_is_congestion_and_an_old_one_is_not() {
        let mut marks = Marks::new(u32::MAX);
        assert!(!marks.differ(0) && marks.differ(1));
        assert_eq!(marks.received(1, 9), Meaning::Congestion);
        assert_eq!(marks.received(3, 30), Meaning::Congestion);
        assert_eq!(marks.received(2, 30), Meaning::Nothing, "overtaken");
        assert!(!marks.differ(3));
        for count in 4..=u8::MAX {
            assert_eq!(
                marks.received(count, 30 * u32::from(count)),
                Meaning::Congestion
            );
        }
        assert_eq!(marks.received(1, 30 * 257), Meaning::Congestion, "it wraps");
    }

    #[test]
    fn marks_on_everything_are_noticed() {
        let mut marks = Marks::new(0);
        for count in 1..MANGLED {
            assert_eq!(marks.received(count as u8, count), Meaning::Congestion);
        }
        assert_eq!(marks.received(MANGLED as u8, MANGLED), Meaning::All);
        marks.ignore();
        assert_eq!(marks.received(MANGLED as u8 + 1, 99), Meaning::Nothing);
        // One frame without a mark among them.
        let mut marks = Marks::new(0);
        for count in 1..MANGLED {
            let next = count + u32::from(count > 9);
            assert_eq!(marks.received(count as u8, next), Meaning::Congestion);
        }
    }
}
