//! Explicit congestion notification (RFC 3168): the peer's count of marked frames.
//!
//! Each side counts the DATA frames that have arrived with a congestion mark and reports the count in every frame.
//! When the count has grown, the sender reduces its congestion window, at most once per round trip. Nothing is
//! retransmitted.
//!
//! If the path clears marks, loss remains the only sign of congestion. If the path marks every frame whatever is
//! sent, the window would stay at its minimum; then marks are ignored for the rest of the connection.

/// This many consecutive marked frames do not mean congestion if the window is at its minimum.
const MANGLED: u32 = 16;

/// The state of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks {
    /// The peer's last count.
    seen: u8,
    ignored: bool,
    /// The oldest frame in flight when the count last grew.
    first: u32,
    /// Marked frames, and all frames, since the last one without a mark.
    marked: u32,
    frames: u32,
}

/// Meaning of a new count.
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
    pub(crate) fn differ(&self, count: u8) -> bool {
        self.seen != count
    }

    /// The peer has reported this count; `first` is the oldest frame in flight.
    pub(crate) fn received(&mut self, count: u8, first: u32) -> Meaning {
        let more = count.wrapping_sub(self.seen);
        // A smaller count comes from a frame that was overtaken.
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

    /// Ignores marks from now on.
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
