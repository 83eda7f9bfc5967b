//! Declarations of settings: those of the library, and those in a plug-in's table.

use std::ffi::{CStr, c_char};

use vipl_plugin_abi::{
    VIPL_SETTING_BOOLEAN, VIPL_SETTING_BYTES, VIPL_SETTING_FRACTION, VIPL_SETTING_NUMBER, text,
    vipl_plugin, vipl_setting,
};

/// One declared setting.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The default, in the form of a given value. A plug-in's setting may have none.
    pub(crate) default: Option<&'static str>,
    pub(crate) help: &'static str,
}

/// The kind of a value, and its bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Any text; the word describes it.
    Text(&'static str),
    Boolean,
    /// A number with a unit, and its bounds.
    Number(&'static str, u64, u64),
    /// A number of bytes, with or without a unit, and its bounds.
    Bytes(u64, u64),
    /// A decimal number, and its bounds in millionths.
    Fraction(u64, u64),
}

impl Kind {
    /// Its name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Text(word) | Kind::Number(word, _, _) => word,
            Kind::Boolean => "boolean",
            Kind::Bytes(_, _) => "bytes",
            Kind::Fraction(_, _) => "fraction",
        }
    }

    /// Converts a value to the form passed to plug-ins: a boolean is `1` or `0`, a number of bytes has no
    /// unit. `None` if it is invalid.
    pub(crate) fn read(self, given: &str) -> Option<String> {
        match self {
            Kind::Text(_) => Some(given.to_owned()),
            Kind::Boolean => text::truth(given).map(|truth| u8::from(truth).to_string()),
            Kind::Number(_, least, most) => {
                let number = given.parse().ok()?;
                (least..=most).contains(&number).then(|| number.to_string())
            }
            Kind::Bytes(least, most) => {
                let bytes = text::bytes(given)?;
                (least..=most).contains(&bytes).then(|| bytes.to_string())
            }
            Kind::Fraction(least, most) => {
                let number: f64 = given.parse().ok()?;
                let range = least as f64 / 1e6..=most as f64 / 1e6;
                range.contains(&number).then(|| number.to_string())
            }
        }
    }

    /// Its bounds, if any.
    pub(crate) fn range(self) -> Option<String> {
        match self {
            Kind::Text(_) | Kind::Boolean => None,
            Kind::Number(_, least, most) | Kind::Bytes(least, most) => {
                Some(format!("{least} to {most}"))
            }
            Kind::Fraction(least, most) => {
                Some(format!("{} to {}", least as f64 / 1e6, most as f64 / 1e6))
            }
        }
    }

    /// Description of valid values, for a message.
    pub(crate) fn expected(self) -> String {
        match (self, self.range()) {
            (Kind::Bytes(_, _), Some(range)) => format!("a size from {range} (64k, 1M)"),
            (_, Some(range)) => format!("a number from {range}"),
            (Kind::Boolean, None) => "true or false".to_owned(),
            (_, None) => self.name().to_owned(),
        }
    }
}

/// An invalid declaration.
#[derive(Debug, thiserror::Error)]
#[error("setting {number}: {what}")]
pub(crate) struct BadDeclaration {
    number: u32,
    what: &'static str,
}

/// The settings that a plug-in declares.
///
/// # Safety
/// The table of settings is as the plug-in's description says, and lives as long as the process.
pub(crate) unsafe fn of_plugin(plugin: &vipl_plugin) -> Result<Vec<Declared>, BadDeclaration> {
    let mut list = Vec::new();
    let mut place = plugin.settings.cast::<u8>();
    for number in 0..plugin.setting_count {
        let bad = |what| BadDeclaration { number, what };
        if place.is_null() {
            return Err(bad("there is no table"));
        }
        // SAFETY: the table has `setting_count` entries, each of which starts with its size.
        let size = unsafe { place.cast::<u32>().read() } as usize;
        if size < size_of::<vipl_setting>() {
            return Err(bad("the size is too small"));
        }
        // SAFETY: at least as large as this version's structure.
        let setting = unsafe { &*place.cast::<vipl_setting>() };
        // SAFETY: NUL-terminated texts or NULL, constant as the table.
        let (name, default, help, unit) = unsafe {
            (
                constant(setting.name),
                constant(setting.default_value),
                constant(setting.help),
                constant(setting.unit),
            )
        };
        let name = name.filter(|name| !name.is_empty());
        let (least, most) = (setting.minimum, setting.maximum);
        let kind = match setting.kind {
            VIPL_SETTING_BOOLEAN => Kind::Boolean,
            VIPL_SETTING_NUMBER => Kind::Number(unit.unwrap_or("number"), least, most),
            VIPL_SETTING_BYTES => Kind::Bytes(least, most),
            VIPL_SETTING_FRACTION => Kind::Fraction(least, most),
            // A kind of a later version is treated as text.
            _ => Kind::Text(unit.unwrap_or("text")),
        };
        if default.is_some_and(|default| kind.read(default).is_none()) {
            return Err(bad("the default is not a value of its kind"));
        }
        list.push(Declared {
            name: name.ok_or_else(|| bad("there is no name"))?,
            kind,
            default,
            help: help.unwrap_or_default(),
        });
        // SAFETY: as above; the last step may lead to the end of the table.
        place = unsafe { place.add(size) };
    }
    Ok(list)
}

/// A plug-in's constant text; `None` if it is NULL or no UTF-8.
///
/// # Safety
/// NULL or NUL-terminated, for as long as the process lives.
unsafe fn constant(text: *const c_char) -> Option<&'static str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

macro_rules! declare {
    ($($name:literal ($kind:expr) $default:literal $help:literal)*) => {
        &[$(Declared { name: $name, kind: $kind, default: Some($default), help: $help }),*]
    };
}

/// The settings of the library.
#[rustfmt::skip]
pub(crate) const DECLARED: &[Declared] = declare! {
    "strict" (Kind::Boolean) "false" "follow the Developer's Guide to the letter; sets the defaults of the next eight"
    "null_ptag" (Kind::Boolean) "true" "accept a NULL protection tag; it matches everything of its NIC handle"
    "null_mem_attributes" (Kind::Boolean) "true" "accept NULL memory attributes: no tag, no RDMA"
    "check_descriptor_memory" (Kind::Boolean) "false" "check the memory handle of the descriptor itself at each post"
    "lenient_destroy" (Kind::Boolean) "true" "let VipDestroyVi drop descriptors that are still queued"
    "connect_grace_ms" (Kind::Number("milliseconds", 0, 3_600_000)) "2000" "time for which VipConnectRequest retries before VIP_NO_MATCH"
    "disconnect_notice_ms" (Kind::Number("milliseconds", 0, 3_600_000)) "1000" "time from an orderly remote disconnect to VIP_ERROR_CONN_LOST"
    "carry_unflagged_immediate" (Kind::Boolean) "true" "transfer ImmediateData even without VIP_CONTROL_IMMEDIATE"
    "check_receive_whole" (Kind::Boolean) "false" "check all memory of a receive's segments, not only as far as the message reaches"
    "device_map" (Kind::Text("name=plugin:argument;...")) "" "maps device names to plug-ins; `*` matches every name"
    "agent" (Kind::Text("auto, off or PATH")) "auto" "the Kernel Agent: find or start one, a private one, or the one at this socket"
    "agent_program" (Kind::Text("path")) "" "the vipkad to start; default: beside the library"
    "udp_port" (Kind::Number("port", 0, 65_535)) "0" "UDP port of an agent that the library starts; 0: 34998, or any if that is taken"
    "udp_from" (Kind::Text("networks")) "subnets" "whose hosts may connect over UDP without a secret, to an agent that the library starts: subnets, any, or 10.0.0.0/8,fd00::/8 beside the subnets"
    "secret_file" (Kind::Text("path")) "" "secret that an agent must have over UDP, and of one that the library starts"
    "layers" (Kind::Text("names")) "" "layers that see each call, in this order: trace, validate, record, fault, or others"
    "plugin_path" (Kind::Text("directories")) "" "folders searched for plug-ins first"
    "plugins" (Kind::Text("names")) "" "only these plug-ins (a,b), or all but these (^a,b)"
    "spin_us" (Kind::Number("microseconds", 0, 10_000_000)) "20" "time that a wait polls before it sleeps; what other threads use of the processor does not count"
    "yield_after" (Kind::Number("polls", 0, 1_000_000_000)) "1000" "empty polls after which a thread yields its processor, sooner if others use it; 0: never"
    "max_transfer_size" (Kind::Bytes(32_768, 1 << 30)) "65536" "largest message"
    "max_register_bytes" (Kind::Bytes(0, i64::MAX as u64)) "0" "memory that may be registered; 0: the plug-in's default, for loopback RLIMIT_MEMLOCK but at least 64 MiB"
    "hosts" (Kind::Text("path")) "/etc/vip_hosts" "table of hosts for the name service"
    "publish" (Kind::Text("on, off or FOLDER")) "on" "whether vipstat sees the process; FOLDER: a folder in memory for its file"
    "flight" (Kind::Boolean) "false" "keep the last 256 descriptors of each queue where vipstat finds them, also after a crash"
    "log" (Kind::Text("levels")) "warn" "error, warn, info, debug, trace; also subsystem=level, comma separated"
    "log_file" (Kind::Text("path")) "" "file to which the log is appended instead of standard error"
    "on_bug" (Kind::Text("continue or abort")) "continue" "what to do when the library catches a bug of its own"
};

/// The default of a setting in the strict mode, if it differs there (spec §17).
pub(super) fn in_strict_mode(name: &str) -> Option<&'static str> {
    match name {
        "null_ptag" | "null_mem_attributes" | "lenient_destroy" | "carry_unflagged_immediate" => {
            Some("false")
        }
        "check_descriptor_memory" | "check_receive_whole" => Some("true"),
        "connect_grace_ms" | "disconnect_notice_ms" => Some("0"),
        _ => None,
    }
}
