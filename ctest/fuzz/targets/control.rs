//! The control channel of `vip_pingpong` and `vip_perf`: whatever a client sends is a request in bounds, or is
//! refused in words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vipl_tools::control::parse;
use vipl_tools::request::{Bounds, CHANNELS_MAX, CROWD_SLOT, Request, THREADS_MAX, TURNS_MAX};

/// A small device and a large one.
const BOUNDS: [Bounds; 2] = [
    Bounds {
        levels: 1,
        transfer_max: 32768,
        queue_max: 1,
        vi_max: 1,
        memory: 1 << 16,
    },
    Bounds {
        levels: 7,
        transfer_max: u32::MAX as u64,
        queue_max: 1 << 16,
        vi_max: 1 << 20,
        memory: u64::MAX,
    },
];

fn check(request: &Request, bounds: &Bounds) {
    let fits = |total: Option<usize>| total.is_some_and(|total| total as u64 <= bounds.memory);
    let channels = |first: u32, count: u64| u64::from(first) + count <= CHANNELS_MAX;
    match request {
        Request::PingPong(spec, channel) => {
            assert!(spec.vi.transfer_max <= bounds.transfer_max);
            assert!(spec.bytes as u64 <= spec.vi.transfer_max);
            assert!(spec.vi.level & bounds.levels != 0 && channels(*channel, 1));
            assert!(fits(spec.layout().total()));
        }
        Request::Stream(spec, channel) => {
            assert!(spec.bytes as u64 <= spec.vi.transfer_max);
            assert!((1..=bounds.queue_max.max(1)).contains(&spec.window));
            assert!(fits(spec.layout(false).total()) && channels(*channel, 1));
        }
        Request::Duplex(spec, channel) => {
            let [sends, receives] = [true, false].map(|sends| spec.layout(sends).total());
            let both = sends.zip(receives).and_then(|(a, b)| a.checked_add(b));
            assert!(spec.bytes as u64 <= spec.vi.transfer_max);
            assert!(fits(both) && channels(*channel, 2));
        }
        Request::Threads(spec, count, first) => {
            let one = spec.layout(false).total();
            assert!(spec.bytes as u64 <= spec.vi.transfer_max);
            assert!((1..=THREADS_MAX.min(bounds.vi_max)).contains(&(*count as u64)));
            assert!(fits(one.and_then(|bytes| bytes.checked_mul(*count))));
            assert!(channels(*first, *count as u64));
        }
        Request::Crowd(_, vi, count, first) => {
            assert!(vi.transfer_max <= bounds.transfer_max);
            assert!((1..=bounds.vi_max).contains(&(*count as u64)));
            assert!(fits(count.checked_mul(CROWD_SLOT)) && channels(*first, *count as u64));
        }
        Request::Go(turns) => assert!(*turns <= TURNS_MAX),
        Request::Target(_) | Request::Hello | Request::End | Request::Quit => {}
    }
}

fuzz_target!(|bytes: &[u8]| {
    let question = match parse(bytes) {
        Ok(question) => question,
        Err(error) => return harmless(&error.to_string()),
    };
    for bounds in &BOUNDS {
        match Request::read(&question, bounds) {
            Ok(request) => check(&request, bounds),
            Err(error) => harmless(&error.to_string()),
        }
    }
});

/// What goes to both sides' terminals fits into a document, and has no control characters.
fn harmless(said: &str) {
    assert!(said.len() <= 4096, "{said}");
    assert!(!said.contains(char::is_control), "{said:?}");
}
