//! Files of the layer `record`, which come from anywhere: `vip_replay` reads them, or refuses them in words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vipl_tools::replay::fuzzing::read;

/// Bytes of memory that a file may ask for.
const MOST: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let _ = read(&text, MOST);
    // The fuzzer does not have to find the first line.
    let _ = read(&format!("vipl-record 1 7 boot\n{text}"), MOST);
});
