//! Settings: a plug-in declares them in [`Provider::SETTINGS`](crate::Provider::SETTINGS), and reads them here. The
//! library has checked the values: an invalid one is reported once, and the default is used.

use std::ffi::CStr;

use vipl_plugin_abi::*;

use crate::Host;

/// Bytes that every process may register, whatever its lock limit.
const REGISTER_BYTES_MIN: u64 = 64 << 20;

/// A setting that a plug-in declares.
#[repr(transparent)]
pub struct Setting(vipl_setting);

const fn declare(kind: u32, name: &'static CStr, help: &'static CStr) -> vipl_setting {
    vipl_setting {
        size: size_of::<vipl_setting>() as u32,
        kind,
        name: name.as_ptr(),
        unit: std::ptr::null(),
        default_value: std::ptr::null(),
        minimum: 0,
        maximum: 0,
        help: help.as_ptr(),
    }
}

/// Declares a switch.
pub const fn boolean(name: &'static CStr, default: bool, help: &'static CStr) -> Setting {
    let default = if default { c"true" } else { c"false" };
    Setting(vipl_setting {
        default_value: default.as_ptr(),
        ..declare(VIPL_SETTING_BOOLEAN, name, help)
    })
}

/// Declares a text; `unit` says what it names.
pub const fn text(name: &'static CStr, unit: &'static CStr, help: &'static CStr) -> Setting {
    Setting(vipl_setting {
        unit: unit.as_ptr(),
        ..declare(VIPL_SETTING_TEXT, name, help)
    })
}

/// Declares a number from one bound to the other; `unit` says of what.
pub const fn counted(
    name: &'static CStr,
    unit: &'static CStr,
    default: &'static CStr,
    (minimum, maximum): (u64, u64),
    help: &'static CStr,
) -> Setting {
    Setting(vipl_setting {
        unit: unit.as_ptr(),
        default_value: default.as_ptr(),
        minimum,
        maximum,
        ..declare(VIPL_SETTING_NUMBER, name, help)
    })
}

/// Declares a number of bytes from one bound to the other. Without a default it has no value unless one is given.
pub const fn bytes(
    name: &'static CStr,
    default: Option<&'static CStr>,
    (minimum, maximum): (u64, u64),
    help: &'static CStr,
) -> Setting {
    Setting(vipl_setting {
        default_value: match default {
            Some(default) => default.as_ptr(),
            None => std::ptr::null(),
        },
        minimum,
        maximum,
        ..declare(VIPL_SETTING_BYTES, name, help)
    })
}

/// Declares a probability from 0 to a number of millionths; the default is 0.
pub const fn probability(name: &'static CStr, millionths: u64, help: &'static CStr) -> Setting {
    Setting(vipl_setting {
        default_value: c"0".as_ptr(),
        maximum: millionths,
        ..declare(VIPL_SETTING_FRACTION, name, help)
    })
}

/// A number or a size, if it has a value: a setting of the plug-in, or one of the library that was given.
pub fn number(plugin: &CStr, key: &CStr) -> Option<u64> {
    Host::get().setting(plugin, key)?.parse().ok()
}

/// A switch of the plug-in.
pub fn truth(plugin: &CStr, key: &CStr) -> bool {
    number(plugin, key) == Some(1)
}

/// The largest message: the setting `max_transfer_size`, else what the plug-in says.
pub fn transfer_max(plugin: &CStr, default: u64) -> u64 {
    number(plugin, c"max_transfer_size").unwrap_or(default)
}

/// Bytes that may be registered: the setting `max_register_bytes`, else the lock limit of the process, at least
/// `REGISTER_BYTES_MIN`; all memory of the host where there is no limit.
pub fn register_bytes_max(plugin: &CStr) -> u64 {
    let given = number(plugin, c"max_register_bytes").unwrap_or(0);
    if given > 0 {
        return given;
    }
    // SAFETY: the structures are valid.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit);
        let memory = match libc::sysconf(libc::_SC_PHYS_PAGES) {
            pages @ 1.. => pages as u64 * libc::sysconf(libc::_SC_PAGESIZE).max(1) as u64,
            // A sandbox may forbid sysinfo.
            _ => isize::MAX as u64,
        };
        if limit.rlim_cur == libc::RLIM_INFINITY || libc::geteuid() == 0 {
            memory
        } else {
            (limit.rlim_cur as u64).max(REGISTER_BYTES_MIN).min(memory)
        }
    }
}
