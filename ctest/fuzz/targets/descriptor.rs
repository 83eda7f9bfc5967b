//! The descriptor walker of the plug-in SDK against an oracle that knows nothing but the specification.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../../base/rules/tests/walker/mod.rs"]
mod walker;

fuzz_target!(|bytes: &[u8]| {
    walker::compare(bytes);
});
