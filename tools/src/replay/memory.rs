//! Memory of a recorded process: ranges of addresses of then, each in memory of now.

use super::file::Recording;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// One range.
struct Range {
    base: u64,
    memory: Box<[Page]>,
}

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; PAGE as usize]);

impl Range {
    fn end(&self) -> u64 {
        self.base + self.memory.len() as u64 * PAGE
    }
}

/// All ranges that a process registered or posted, sorted.
pub(super) struct Memory(Vec<Range>);

impl Memory {
    /// Makes the memory that a recording needs; `most` bytes at most.
    pub(super) fn of(recording: &Recording, most: u64) -> Option<Memory> {
        let mut wanted: Vec<(u64, u64)> = Vec::new();
        let mut want = |base: u64, bytes: u64| {
            let end = base.saturating_add(bytes).next_multiple_of(PAGE);
            wanted.push((base / PAGE * PAGE, end.max(base / PAGE * PAGE + PAGE)));
        };
        for call in &recording.calls {
            match call.name.as_str() {
                "VipRegisterMem" => want(call.number("VirtualAddress"), call.number("Length")),
                "VipPostSend" | "VipPostRecv" => {
                    let segments = call.segments();
                    let bytes = 32 + 16 * segments.len().max(2) as u64;
                    want(call.number("DescriptorPtr"), bytes);
                }
                _ => {}
            }
        }
        wanted.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (base, end) in wanted {
            match merged.last_mut() {
                Some((_, last)) if base <= *last => *last = (*last).max(end),
                _ => merged.push((base, end)),
            }
        }
        let bytes: u64 = merged.iter().map(|(base, end)| end - base).sum();
        if bytes > most {
            return None;
        }
        let make = |(base, end): (u64, u64)| Range {
            base,
            memory: vec![Page([0; PAGE as usize]); ((end - base) / PAGE) as usize]
                .into_boxed_slice(),
        };
        Some(Memory(merged.into_iter().map(make).collect()))
    }

    /// The address now of an address of then. One in no range stays as it is: the program gave a bad one.
    pub(super) fn now(&self, then: u64) -> u64 {
        let place = self.0.partition_point(|range| range.base <= then);
        match place.checked_sub(1).map(|place| &self.0[place]) {
            Some(range) if then < range.end() => {
                range.memory.as_ptr().expose_provenance() as u64 + (then - range.base)
            }
            _ => then,
        }
    }

    /// Whether so many bytes from an address of then on have a place.
    pub(super) fn has(&self, then: u64, bytes: u64) -> bool {
        let place = self.0.partition_point(|range| range.base <= then);
        place
            .checked_sub(1)
            .is_some_and(|place| then.saturating_add(bytes) <= self.0[place].end())
    }
}
