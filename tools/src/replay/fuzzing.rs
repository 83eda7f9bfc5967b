//! What the fuzzer reaches: all that is done with files before a call is made.

use super::file::Recording;
use super::memory::Memory;
use super::process::{Process, Source};
use super::{hosts, peers, sides, threads};

/// Reads a recording and makes its memory, `most` bytes at most; `None` if that is refused.
///
/// # Panics
/// Memory has no place for what it was made for, or has one for more.
#[must_use]
pub fn read(text: &str, most: u64) -> Option<()> {
    let recording = Recording::parse("file", text).ok()?;
    let memory = Memory::of(&recording, most).ok()?;
    threads([&recording].into_iter()).ok()?;
    let _ = peers::are_here(std::slice::from_ref(&recording));
    let process = Process::new(recording, memory);
    let calls = &process.recording.calls;
    for call in calls {
        let (at, bytes) = (call.number("VirtualAddress"), call.number("Length"));
        let is_region = call.name == "VipRegisterMem" && call.result == "VIP_SUCCESS";
        if let (true, true) = (is_region, process.memory.has(at, bytes)) {
            assert!(bytes <= most, "{call:?}");
            let mut all = Vec::new();
            assert!(
                process.memory.read(at, bytes as usize, &mut all),
                "{call:?}"
            );
            assert!(process.memory.write(at, &all), "{call:?}");
        }
        process.posted(
            call.number("DescriptorPtr"),
            call.segments()
                .iter()
                .map(|[at, _, bytes]| (*at, *bytes))
                .collect(),
        );
        assert!(process.message(call.number("DescriptorPtr"), 4096).len() <= 4096);
        if let Some(source) = Source::of(call) {
            process.keep(source.clone(), (0, 1));
            assert_eq!(process.take(&source), Some((0, 1)));
        }
    }
    let _ = (hosts(calls.iter()), sides(std::slice::from_ref(&process)));
    Some(())
}
