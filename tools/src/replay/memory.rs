//! Memory of a recorded process: ranges of addresses of then, each in memory of now.

use std::collections::BTreeMap;
use std::ffi::c_int;

use vipl_sys::mutex::Mutex;

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

/// Memory of vipl_alloc that is not free yet.
struct Allocation {
    now: usize,
    bytes: u64,
}

/// All ranges that a process registered or posted, sorted, and what it has of vipl_alloc.
pub(super) struct Memory {
    ranges: Vec<Range>,
    /// By the address of then, which the program's other memory may have had before or after.
    allocated: Mutex<BTreeMap<u64, Allocation>>,
    /// Bytes that vipl_alloc may still give.
    left: u64,
}

impl Memory {
    /// Makes the memory that a recording needs; `most` bytes at most.
    ///
    /// # Errors
    /// It needs more, or a call that succeeded named memory that no address space has.
    pub(super) fn of(recording: &Recording, most: u64) -> Result<Memory> {
        let mut wanted: Vec<(u64, u64)> = Vec::new();
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        for call in &recording.calls {
            let is_success = call.result == "VIP_SUCCESS";
            // The program gave a bad address: the call has no memory now either.
            let mut is_bad = call.result == "VIP_INVALID_PARAMETER";
            let (base, bytes) = match call.name.as_str() {
                "vipl_alloc" | "vipl_free" => {
                    let base = call.number("Address");
                    let end = pages(base, call.number("Length"));
                    match end.filter(|_| is_success && call.name == "vipl_alloc") {
                        Some((_, end)) => live.insert(base, end),
                        None if is_success => live.remove(&base),
                        None => None,
                    };
                    continue;
                }
                "VipRegisterMem" => (call.number("VirtualAddress"), call.number("Length")),
                "VipPostSend" | "VipPostRecv" => {
                    let segments = call.segments();
                    let bytes = 32 + 16 * segments.len().max(2) as u64;
                    is_bad &= call.text("control").is_none();
                    (call.number("DescriptorPtr"), bytes)
                }
                _ => continue,
            };
            // vipl_alloc makes that memory when it is called.
            let is_allocated = live
                .range(..=base)
                .next_back()
                .is_some_and(|(_, end)| base < *end);
            match pages(base, bytes) {
                _ if is_allocated || is_bad => {}
                // The call is not made.
                Some((base, end)) if !is_success && end - base > most => {}
                Some(range) => wanted.push(range),
                None if is_success => {
                    return Err(Error::Usage(format!(
                        "{}:{}: {bytes:#x} bytes at {base:#x} are in no address space",
                        recording.name, call.line
                    )));
                }
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
        let Some(left) = most.checked_sub(bytes) else {
            let most = most >> 20;
            return Err(Error::Usage(format!(
                "{}: it needs more than {most} MiB of memory (--memory)",
                recording.name
            )));
        };
        let make = |(base, end): (u64, u64)| Range {
            base,
            memory: vec![Page([0; PAGE as usize]); ((end - base) / PAGE) as usize]
                .into_boxed_slice(),
        };
        Ok(Memory {
            ranges: merged.into_iter().map(make).collect(),
            allocated: Mutex::new(BTreeMap::new()),
            left,
        })
    }

    /// The address now of an address of then, with so many bytes behind it.
    fn find(&self, then: u64, bytes: u64) -> Option<usize> {
        let place = self.ranges.partition_point(|range| range.base <= then);
        let range = &self.ranges[place.checked_sub(1)?];
        let last = then.checked_add(bytes)?;
        let is_in = then < range.end() && last <= range.end();
        is_in.then(|| range.memory.as_ptr().expose_provenance() + (then - range.base) as usize)
    }

    /// Calls a function with the address now of so many bytes of then, which stay while it runs. `None`: they have no place.
    pub(super) fn with<R>(
        &self,
        then: u64,
        bytes: u64,
        work: impl FnOnce(*mut u8) -> R,
    ) -> Option<R> {
        let allocated = self.allocated.lock();
        let inside = allocated
            .range(..=then)
            .next_back()
            .and_then(|(base, one)| {
                let first = then - base;
                let is_in = first < one.bytes && bytes <= one.bytes - first;
                is_in.then(|| one.now + first as usize)
            });
        let now = inside.or_else(|| self.find(then, bytes))?;
        Some(work(std::ptr::with_exposed_provenance_mut(now)))
    }

    /// The address now of an address of then. One that has no place stays as it is: the library knows no region there.
    pub(super) fn now(&self, then: u64) -> u64 {
        self.with(then, 0, |now| now.expose_provenance() as u64)
            .unwrap_or(then)
    }

    /// Appends bytes from an address of then on; false if not all of them have a place.
    pub(super) fn read(&self, then: u64, bytes: usize, out: &mut Vec<u8>) -> bool {
        let read = self.with(then, bytes as u64, |from| {
            out.reserve(bytes);
            // SAFETY: all of it is in one range, and the room was reserved. Devices may write the range, so no reference to it
            // is made.
            unsafe {
                let to = out.spare_capacity_mut().as_mut_ptr().cast::<u8>();
                from.copy_to_nonoverlapping(to, bytes);
                out.set_len(out.len() + bytes);
            }
        });
        read.is_some()
    }

    /// Writes bytes from an address of then on; false if not all of them have a place.
    pub(super) fn write(&self, then: u64, bytes: &[u8]) -> bool {
        // SAFETY: all of it is in one range. A device may use it if the recorded program did so, too.
        let write =
            |to: *mut u8| unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.with(then, bytes.len() as u64, write).is_some()
    }

    /// Whether so many bytes from an address of then on have a place.
    pub(super) fn has(&self, then: u64, bytes: u64) -> bool {
        self.with(then, bytes, |_| ()).is_some()
    }

    /// Whether vipl_alloc may give so many bytes more.
    pub(super) fn may_allocate(&self, bytes: u64) -> bool {
        let allocated = self.allocated.lock();
        let used: u64 = allocated.values().map(|one| one.bytes).sum();
        bytes <= self.left - used.min(self.left)
    }

    /// vipl_alloc has given `now`, whole pages, for what was `then`.
    pub(super) fn allocated<T>(&self, then: u64, bytes: u64, now: *mut T) {
        let allocation = Allocation {
            now: now.expose_provenance(),
            bytes: bytes.next_multiple_of(PAGE),
        };
        self.allocated.lock().insert(then, allocation);
    }

    /// Frees what vipl_alloc has given, by a function that returns whether it did, and its code.
    pub(super) fn free(
        &self,
        then: u64,
        free: impl FnOnce(Option<usize>) -> (bool, c_int),
    ) -> c_int {
        let mut allocated = self.allocated.lock();
        let (is_free, code) = free(allocated.get(&then).map(|one| one.now));
        if is_free {
            allocated.remove(&then);
        }
        code
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
    fn what_vipl_alloc_gives_is_in_the_place_of_other_memory_until_it_is_free() {
        let memory = memory(
            "1 1 2 vipl_alloc VIP_SUCCESS Length=0x1001 Address=0x10000\n\
             1 3 4 VipRegisterMem VIP_SUCCESS VirtualAddress=0x11000 Length=0x1000\n\
             1 5 6 vipl_free VIP_SUCCESS Address=0x10000\n\
             1 7 8 VipRegisterMem VIP_SUCCESS VirtualAddress=0x10000 Length=0x100\n\
             1 9 10 VipRegisterMem VIP_ERROR_RESOURCE VirtualAddress=0x40000 Length=0x7fff00000000",
        )
        .expect("memory");
        assert!(!memory.has(0x11000, 1), "nothing is allocated yet");
        let other = memory.now(0x10010);
        assert!(other != 0x10010 && memory.may_allocate(0x2000) && !memory.may_allocate(1 << 20));
        let mut given = vec![0_u8; 0x2000];
        let now = given.as_mut_ptr().expose_provenance();
        memory.allocated(0x10000, 0x1001, given.as_mut_ptr());
        assert_eq!(memory.now(0x10010), now as u64 + 0x10);
        assert!(memory.has(0x10000, 0x2000) && !memory.has(0x11000, 0x1001));
        assert!(memory.write(0x11fff, b"x") && !memory.write(0x11fff, b"xy"));
        assert_eq!(given[0x1fff], b'x');
        assert!(
            !memory.may_allocate(memory.left - 0x1fff),
            "they are counted"
        );
        assert_eq!(memory.free(0x10010, |found| (found.is_some(), 3)), 3);
        assert_eq!(
            memory.free(0x10000, |found| (false, found.map_or(0, |_| 4))),
            4
        );
        assert_eq!(memory.now(0x10010), now as u64 + 0x10, "it was refused");
        assert_eq!(memory.free(0x10000, |found| (found == Some(now), 0)), 0);
        assert_eq!(memory.now(0x10010), other);
    }

    #[test]
    fn each_range_has_whole_pages() {
        let memory = memory("1 1 2 VipRegisterMem VIP_SUCCESS VirtualAddress=0x1ff0 Length=0x20")
            .expect("memory");
        assert!(memory.has(0x1000, 0x2000) && !memory.has(0x1000, 0x2001));
        assert!(!memory.has(0xfff, 1) && !memory.has(0x2fff, u64::MAX));
    }
}
