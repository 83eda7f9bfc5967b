//! Settings: the variables `FI_VIPL_*`, declared to libfabric.

use std::ffi::{CStr, c_int};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::credit::SMALLEST_WINDOW;
use crate::fi::{FI_PARAM_INT, FI_PARAM_SIZE_T, FI_PARAM_STRING};
use crate::libfabric;
use crate::packet::SMALLEST_CHUNK;

/// When a transfer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// When it is in the peer's memory.
    Reception,
    /// When it has left.
    Delivery,
}

/// Their values in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `FI_VIPL_DEVICE`
    pub device: String,
    /// `FI_VIPL_WINDOW`
    pub window: u32,
    /// `FI_VIPL_CHUNK`
    pub chunk: u32,
    /// `FI_VIPL_RELIABILITY`, if it is set.
    pub level: Option<Level>,
    /// `FI_VIPL_CONNECT_TIMEOUT`
    pub connect_timeout: Duration,
    /// `FI_VIPL_LINGER`
    pub linger: Duration,
    /// `FI_VIPL_RDM`
    pub rdm: bool,
}

const DEVICE: &str = "via_lo";
/// Receives of a connection. A program sends 64 messages and then waits for all of them, as programs of MPI do, and all of them leave
/// at once: beside the reserve for control there is room for 88.
const WINDOW: u32 = 96;
/// Holds the longest packet that `ofi_rxm` sends by itself, 16 KiB and its header, in one piece.
const CHUNK: u32 = 16896;
const LARGEST_CHUNK: u32 = 1 << 20;
const LARGEST_WINDOW: u32 = 4096;

const DECLARED: [(&CStr, c_int, &CStr); 8] = [
    (
        c"device",
        FI_PARAM_STRING,
        c"device to open, as VipOpenNic takes it (default: via_lo)",
    ),
    (
        c"window",
        FI_PARAM_SIZE_T,
        c"receives that each connection keeps posted (default: 96)",
    ),
    (
        c"chunk",
        FI_PARAM_SIZE_T,
        c"bytes of each of those receives; longer messages travel in pieces (default: 16896)",
    ),
    (
        c"reliability",
        FI_PARAM_STRING,
        c"delivery or reception: when a transfer is complete (default: reception; for FI_EP_RDM delivery)",
    ),
    (
        c"connect_timeout",
        FI_PARAM_INT,
        c"milliseconds in which a connection must come about (default: 10000)",
    ),
    (
        c"linger",
        FI_PARAM_INT,
        c"milliseconds that a closing endpoint waits for what it has sent (default: 1000)",
    ),
    (
        c"rdm",
        FI_PARAM_INT,
        c"0: no messages with tags without ofi_rxm; otherwise programs that need nothing else are offered them (default: 1)",
    ),
    (
        c"library",
        FI_PARAM_STRING,
        c"path of libvipl.so.1 (default: beside the provider, else where the loader looks)",
    ),
];

/// Declares them to libfabric.
pub(crate) fn declare() {
    for (name, kind, help) in DECLARED {
        libfabric::define(name, kind, help);
    }
}

/// The settings; read at the first call.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        for (name, _) in std::env::vars_os() {
            if let Some(name) = name.to_str().filter(|name| is_unknown(name)) {
                libfabric::say(&format!(
                    "{name} is no setting of the provider; fi_info -e lists them"
                ));
            }
        }
        Settings::from(|name| std::env::var(format!("FI_VIPL_{name}")).ok())
    })
}

/// Whether a variable is named like a setting, and is none.
fn is_unknown(variable: &str) -> bool {
    let declared = |name: &str| {
        DECLARED
            .iter()
            .any(|(setting, ..)| setting.to_bytes().eq_ignore_ascii_case(name.as_bytes()))
            && !name.bytes().any(|byte| byte.is_ascii_lowercase())
    };
    variable
        .strip_prefix("FI_VIPL_")
        .is_some_and(|name| !declared(name))
}

impl Settings {
    fn from(value: impl Fn(&str) -> Option<String>) -> Settings {
        let number = |name: &str, default: u32, least: u32, most: u32| -> u32 {
            let Some(text) = value(name) else {
                return default;
            };
            let Ok(number) = u32::from_str(text.trim()) else {
                libfabric::say(&format!(
                    "FI_VIPL_{name}={text} is no number; using {default}"
                ));
                return default;
            };
            if !(least..=most).contains(&number) {
                libfabric::say(&format!(
                    "FI_VIPL_{name}={number} is not within {least} and {most}"
                ));
            }
            number.clamp(least, most)
        };
        let level = match value("RELIABILITY").as_deref() {
            None => None,
            Some("reception") => Some(Level::Reception),
            Some("delivery") => Some(Level::Delivery),
            Some(other) => {
                libfabric::say(&format!(
                    "FI_VIPL_RELIABILITY={other} is neither delivery nor reception"
                ));
                None
            }
        };
        let milliseconds =
            |name, default| Duration::from_millis(u64::from(number(name, default, 0, 3_600_000)));
        Settings {
            device: value("DEVICE")
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| DEVICE.to_owned()),
            window: number("WINDOW", WINDOW, SMALLEST_WINDOW, LARGEST_WINDOW),
            chunk: number("CHUNK", CHUNK, SMALLEST_CHUNK, LARGEST_CHUNK),
            level,
            connect_timeout: milliseconds("CONNECT_TIMEOUT", 10_000),
            linger: milliseconds("LINGER", 1_000),
            rdm: number("RDM", 1, 0, 1) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_are_found() {
        for name in ["FI_VIPL_DEVICE", "FI_VIPL_CONNECT_TIMEOUT", "FI_PROVIDER"] {
            assert!(!is_unknown(name), "{name}");
        }
        for name in [
            "FI_VIPL_DEVCE",
            "FI_VIPL_device",
            "FI_VIPL_",
            "FI_VIPL_LINGER_MS",
        ] {
            assert!(is_unknown(name), "{name}");
        }
    }

    #[test]
    fn values_are_bounded() {
        let default = Settings::from(|_| None);
        assert_eq!((default.device.as_str(), default.window), (DEVICE, WINDOW));
        let settings = Settings::from(|name| {
            let value = match name {
                "DEVICE" => "sim:",
                "WINDOW" => "1",
                "CHUNK" => "99999999",
                "RELIABILITY" => "delivery",
                "CONNECT_TIMEOUT" => "soon",
                _ => return None,
            };
            Some(value.to_owned())
        });
        assert_eq!(settings.device, "sim:");
        assert_eq!(settings.window, SMALLEST_WINDOW);
        assert_eq!(settings.chunk, LARGEST_CHUNK);
        assert_eq!(
            (default.level, settings.level),
            (None, Some(Level::Delivery))
        );
        assert_eq!(settings.connect_timeout, default.connect_timeout);
    }
}
