//! Memory of a recorded process: ranges of addresses of then, each in memory of now.

use super::file::Recording;
use crate::{Error, Result};

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
    ///
    /// # Errors
    /// It needs more, or a call that succeeded named memory that no address space has.
    pub(super) fn of(recording: &Recording, most: u64) -> Result<Memory> {
        let mut wanted: Vec<(u64, u64)> = Vec::new();
        for call in &recording.calls {
            let (base, bytes) = match call.name.as_str() {
                "VipRegisterMem" => (call.number("VirtualAddress"), call.number("Length")),
                "VipPostSend" | "VipPostRecv" => {
                    let segments = call.segments();
                    let bytes = 32 + 16 * segments.len().max(2) as u64;
                    (call.number("DescriptorPtr"), bytes)
                }
                _ => continue,
            };
            match pages(base, bytes) {
                Some(range) => wanted.push(range),
                None if call.result == "VIP_SUCCESS" => {
                    return Err(Error::Usage(format!(
                        "{}:{}: {bytes:#x} bytes at {base:#x} are in no address space",
                        recording.name, call.line
                    )));
                }
                // The program gave a bad address, which has no place.
                None => {}
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
            let most = most >> 20;
            return Err(Error::Usage(format!(
                "{}: it needs more than {most} MiB of memory (--memory)",
                recording.name
            )));
        }
        let make = |(base, end): (u64, u64)| Range {
            base,
            memory: vec![Page([0; PAGE as usize]); ((end - base) / PAGE) as usize]
                .into_boxed_slice(),
        };
        Ok(Memory(merged.into_iter().map(make).collect()))
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

    /// Appends bytes from an address of then on; false if not all of them have a place.
    pub(super) fn read(&self, then: u64, bytes: usize, out: &mut Vec<u8>) -> bool {
        if !self.has(then, bytes as u64) {
            return false;
        }
        out.reserve(bytes);
        let from = std::ptr::with_exposed_provenance::<u8>(self.now(then) as usize);
        // SAFETY: all of it is in one range, and the room was reserved. Devices may write the range, so no reference to it is made.
        unsafe {
            let to = out.spare_capacity_mut().as_mut_ptr().cast::<u8>();
            from.copy_to_nonoverlapping(to, bytes);
            out.set_len(out.len() + bytes);
        }
        true
    }

    /// Whether so many bytes from an address of then on have a place.
    pub(super) fn has(&self, then: u64, bytes: u64) -> bool {
        let place = self.0.partition_point(|range| range.base <= then);
        place
            .checked_sub(1)
            .map(|place| self.0[place].end())
            .is_some_and(|end| then.checked_add(bytes).is_some_and(|last| last <= end))
    }
}

/// The pages of so many bytes, one at least: first and end. `None` if they go beyond the last address.
fn pages(base: u64, bytes: u64) -> Option<(u64, u64)> {
    let end = base.checked_add(bytes.max(1))?;
    Some((base / PAGE * PAGE, end.checked_next_multiple_of(PAGE)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(lines: &str) -> Result<Memory> {
        let recording = Recording::parse("r", &format!("vipl-record 1 1 b\n{lines}\n"));
        Memory::of(&recording?, 1 << 20)
    }

    #[test]
    fn addresses_beyond_the_last_one_are_an_error_of_their_line() {
        let most = "0xffffffffffffffff";
        for call in [
            format!("VipRegisterMem VIP_SUCCESS VirtualAddress={most} Length={most}"),
            format!("VipRegisterMem VIP_SUCCESS VirtualAddress={most} Length=0x0"),
            format!("VipRegisterMem VIP_SUCCESS VirtualAddress=0x1000 Length={most}"),
            "VipPostRecv VIP_SUCCESS DescriptorPtr=0xfffffffffffffff0".to_owned(),
        ] {
            let error = memory(&format!("1 1 2 {call}")).err().expect("an error");
            let text = error.to_string();
            assert!(
                text.starts_with("r:2: ") && text.ends_with("in no address space"),
                "{text}"
            );
            // What the library refused then has no place now.
            let refused = call.replace("VIP_SUCCESS", "VIP_INVALID_PARAMETER");
            let memory = memory(&format!("1 1 2 {refused}")).expect("memory");
            assert!(!memory.has(u64::MAX, 1) && memory.now(u64::MAX) == u64::MAX);
        }
        let error = memory(
            "1 1 2 VipRegisterMem VIP_SUCCESS VirtualAddress=0x1000 Length=0x7fffffffffff0000",
        );
        let text = error.err().expect("an error").to_string();
        assert!(text.contains("more than 1 MiB"), "{text}");
    }

    #[test]
    fn each_range_has_whole_pages() {
        let memory = memory("1 1 2 VipRegisterMem VIP_SUCCESS VirtualAddress=0x1ff0 Length=0x20")
            .expect("memory");
        assert!(memory.has(0x1000, 0x2000) && !memory.has(0x1000, 0x2001));
        assert!(!memory.has(0xfff, 1) && !memory.has(0x2fff, u64::MAX));
    }
}
