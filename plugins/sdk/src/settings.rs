//! Settings of a plug-in as values. A text that is none is told once in the log, and the default stands.

use std::ffi::CStr;
use std::ops::RangeInclusive;

use vipl_plugin_abi::VIPL_LOG_WARN;

use crate::Host;

/// What every process may register, whatever its lock limit.
const REGISTER_BYTES_MIN: u64 = 64 << 20;

/// A number from a range.
pub fn number(plugin: &CStr, key: &CStr, default: u64, range: RangeInclusive<u64>) -> u64 {
    let Some(text) = Host::get().setting(plugin, key) else {
        return default;
    };
    match text.parse() {
        Ok(value) if range.contains(&value) => value,
        _ => {
            let (plugin, key) = (plugin.to_string_lossy(), key.to_string_lossy());
            let text = format!("{plugin}.{key}: {text} is not a number from {range:?}");
            Host::get().log(VIPL_LOG_WARN, &text);
            default
        }
    }
}

/// Yes or no; without the setting no.
pub fn truth(plugin: &CStr, key: &CStr) -> bool {
    let text = Host::get().setting(plugin, key).unwrap_or_default();
    matches!(text.as_str(), "1" | "true" | "yes" | "on")
}

/// Bytes that may be registered: the setting `max_register_bytes`, else the lock limit of the process, or what
/// it may well use here.
pub fn register_bytes_max(plugin: &CStr) -> u64 {
    let given = number(plugin, c"max_register_bytes", 0, 0..=u64::MAX >> 1);
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
