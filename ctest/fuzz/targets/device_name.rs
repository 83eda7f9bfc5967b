//! Device names, maps and claims: any text. No panic, and the answers are those of a plain reading.
#![no_main]

use std::ffi::{CString, c_char};

use libfuzzer_sys::fuzz_target;
use vipl_core::fuzzing;
use vipl_fuzz::host::provider;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let (name, map) = text.split_once('\n').unwrap_or((&text, ""));

    let plain = fuzzing::plain_name(name);
    let tail = ["/dev/", "/etc/"]
        .iter()
        .find(|folder| name.starts_with(**folder));
    assert_eq!(plain, tail.map_or(name, |folder| &name[folder.len()..]));

    let pairs = fuzzing::device_map(map);
    let expected: Vec<(String, String)> = map
        .split(';')
        .filter_map(|pair| pair.find('=').map(|at| (&pair[..at], &pair[at + 1..])))
        .map(|(from, to)| (from.trim().to_owned(), to.trim().to_owned()))
        .collect();
    assert_eq!(pairs, expected);

    // What loopback claims, and no more; an argument that it does not know opens nothing.
    let Ok(c_name) = CString::new(plain) else {
        return;
    };
    let mut argument = [1 as c_char; 64];
    let claim = provider().claim.expect("claim");
    // SAFETY: a NUL-terminated name and 64 bytes of room.
    let rank = unsafe { claim(c_name.as_ptr(), argument.as_mut_ptr()) };
    let own = ["via_lo", "loopback", "VINIC", "VINIC0"].contains(&plain);
    assert_eq!(rank > 0, own, "{plain:?}");
    if own {
        assert!(argument.contains(&0));
    }
});
