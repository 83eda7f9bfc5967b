//! Settings of a plug-in as values. A text that is none is told once in the log, and the default stands.

use std::ffi::CStr;
use std::ops::RangeInclusive;

use vipl_plugin_abi::{VIPL_LOG_WARN, text};

use crate::Host;

/// What every process may register, whatever its lock limit.
const REGISTER_BYTES_MIN: u64 = 64 << 20;

/// A number from a range.
pub fn number(plugin: &CStr, key: &CStr, default: u64, range: RangeInclusive<u64>) -> u64 {
    let read = |text: &str| text.parse().ok().filter(|value| range.contains(value));
    let what = format!("a number from {} to {}", range.start(), range.end());
    value(plugin, key, read, &what, &default.to_string()).unwrap_or(default)
}

/// A number of bytes from a range, as `64k` too.
pub fn bytes(plugin: &CStr, key: &CStr, default: u64, range: RangeInclusive<u64>) -> u64 {
    let read = |text: &str| text::bytes(text).filter(|value| range.contains(value));
    let what = format!("a size from {} to {} (64k, 1M)", range.start(), range.end());
    value(plugin, key, read, &what, &default.to_string()).unwrap_or(default)
}

/// Yes or no.
pub fn truth(plugin: &CStr, key: &CStr, default: bool) -> bool {
    value(
        plugin,
        key,
        text::truth,
        "true or false",
        &default.to_string(),
    )
    .unwrap_or(default)
}

/// A value, if it was given and makes sense.
fn value<T>(
    plugin: &CStr,
    key: &CStr,
    read: impl FnOnce(&str) -> Option<T>,
    what: &str,
    default: &str,
) -> Option<T> {
    let given = Host::get().setting(plugin, key)?;
    let value = read(&given);
    if value.is_none() {
        let (plugin, key) = (plugin.to_string_lossy(), key.to_string_lossy());
        let text = format!("{plugin}: {key}: {given:?} is not {what}; using {default}");
        Host::get().log(VIPL_LOG_WARN, &text);
    }
    value
}

/// Bytes that may be registered: the setting `max_register_bytes`, else the lock limit of the process, or what
/// it may well use here.
pub fn register_bytes_max(plugin: &CStr) -> u64 {
    let given = bytes(plugin, c"max_register_bytes", 0, 0..=u64::MAX >> 1);
    if given > 0 {
        return given;
    }
    // SAFETY: the structures are valid.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit);
        let pages = libc::sysconf(libc::_SC_PHYS_PAGES).max(1) as u64;
        let memory = pages * libc::sysconf(libc::_SC_PAGESIZE).max(1) as u64;
        if limit.rlim_cur == libc::RLIM_INFINITY || libc::geteuid() == 0 {
            memory
        } else {
            limit.rlim_cur.max(REGISTER_BYTES_MIN).min(memory)
        }
    }
}
