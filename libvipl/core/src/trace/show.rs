//! Arguments of a call as text. Memory of the application is read by guarded copies: an invalid pointer is
//! shown as such, regardless of how the function handles it.

use std::ffi::{c_char, c_int, c_void};
use std::fmt::Write;

use vipl_abi::*;

use super::peek::{image, read, segment};
use crate::text::{control, discriminator, hexadecimal, levels, quoted, status};

/// Maximum length of a text of the application.
const TEXT_MAX: usize = 64;
/// Maximum number of segments shown of a descriptor.
const SEGMENTS_MAX: u16 = 4;

/// One argument, by its C type.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub enum Argument {
    /// A handle, or memory whose contents are not shown.
    Pointer(usize),
    Number(u64),
    /// An output boolean.
    Truth(*const c_int),
    Number32(*const u32),
    Number64(*const u64),
    /// An output handle.
    Handle(*const *mut c_void),
    Text(*const c_char),
    NetAddress(*const VIP_NET_ADDRESS),
    ViAttributes(*const VIP_VI_ATTRIBUTES),
    MemAttributes(*const VIP_MEM_ATTRIBUTES),
    NicAttributes(*const VIP_NIC_ATTRIBUTES),
    State(*const VIP_VI_STATE),
    Descriptor(*const VIP_DESCRIPTOR),
    Completed(*const *mut VIP_DESCRIPTOR),
}

macro_rules! from {
    ($($type:ty => $value:ident $made:expr;)*) => {$(
        impl From<$type> for Argument {
            fn from($value: $type) -> Self {
                $made
            }
        }
    )*};
}

from! {
    *mut c_void => pointer Argument::Pointer(pointer.addr());
    u32 => number Argument::Number(number.into());
    u64 => number Argument::Number(number);
    *mut c_int => out Argument::Truth(out);
    *mut u32 => out Argument::Number32(out);
    *mut u64 => out Argument::Number64(out);
    *mut *mut c_void => out Argument::Handle(out);
    *mut c_char => text Argument::Text(text);
    *const c_char => text Argument::Text(text);
    *mut VIP_NET_ADDRESS => address Argument::NetAddress(address);
    *mut VIP_VI_ATTRIBUTES => attributes Argument::ViAttributes(attributes);
    *mut VIP_MEM_ATTRIBUTES => attributes Argument::MemAttributes(attributes);
    *mut VIP_NIC_ATTRIBUTES => attributes Argument::NicAttributes(attributes);
    *mut VIP_VI_STATE => state Argument::State(state);
    *mut VIP_DESCRIPTOR => descriptor Argument::Descriptor(descriptor);
    *mut *mut VIP_DESCRIPTOR => out Argument::Completed(out);
}

impl<A, B> From<Option<unsafe extern "C" fn(A, B)>> for Argument {
    fn from(handler: Option<unsafe extern "C" fn(A, B)>) -> Self {
        Argument::Pointer(handler.map_or(0, |handler| handler as usize))
    }
}

impl<A, B, C, D> From<Option<unsafe extern "C" fn(A, B, C, D)>> for Argument {
    fn from(handler: Option<unsafe extern "C" fn(A, B, C, D)>) -> Self {
        Argument::Pointer(handler.map_or(0, |handler| handler as usize))
    }
}

/// The target of a pointer, or the error of the pointer.
fn behind<T: Copy>(pointer: *const T, show: impl FnOnce(T) -> String) -> String {
    if pointer.is_null() {
        return "NULL".to_owned();
    }
    read(pointer).map_or_else(|| format!("{pointer:p} (bad address)"), show)
}

impl Argument {
    /// Its bits, for layers.
    #[inline(always)]
    pub(super) fn bits(self) -> u64 {
        match self {
            Argument::Number(number) => number,
            other => other.address().unwrap_or(0) as u64,
        }
    }

    /// Its bits, if it is a handle or a pointer.
    pub(super) fn address(self) -> Option<usize> {
        Some(match self {
            Argument::Number(_) => return None,
            Argument::Pointer(address) => address,
            Argument::Truth(at) => at.addr(),
            Argument::Number32(at) => at.addr(),
            Argument::Number64(at) => at.addr(),
            Argument::Handle(at) => at.addr(),
            Argument::Text(at) => at.addr(),
            Argument::NetAddress(at) => at.addr(),
            Argument::ViAttributes(at) => at.addr(),
            Argument::MemAttributes(at) => at.addr(),
            Argument::NicAttributes(at) => at.addr(),
            Argument::State(at) => at.addr(),
            Argument::Descriptor(at) => at.addr(),
            Argument::Completed(at) => at.addr(),
        })
    }

    /// Formats it as an input.
    pub(super) fn input(self, name: &str) -> String {
        match self {
            Argument::Number(number) if name == "Timeout" && number == VIP_INFINITE as u64 => {
                "infinite".to_owned()
            }
            Argument::Number(number) if name.ends_with("Handle") => format!("{number:#x}"),
            Argument::Descriptor(at) => descriptor(at),
            other => other.output(),
        }
    }

    /// Formats it as an output, with the target of the pointer.
    pub(super) fn output(self) -> String {
        match self {
            Argument::Pointer(0) => "NULL".to_owned(),
            Argument::Pointer(address) => format!("{address:#x}"),
            Argument::Number(number) => number.to_string(),
            Argument::Truth(at) => behind(at, |truth| (truth != 0).to_string()),
            Argument::Number32(at) => behind(at, |number| format!("{number:#x}")),
            Argument::Number64(at) => behind(at, |number| number.to_string()),
            Argument::Handle(at) => behind(at, |handle| format!("{handle:?}")),
            Argument::Text(at) => text(at),
            Argument::NetAddress(at) => net_address(at),
            Argument::ViAttributes(at) => behind(at, vi_attributes),
            Argument::MemAttributes(at) => behind(at, mem_attributes),
            Argument::NicAttributes(at) => behind(at.cast::<[c_char; 64]>(), |name| {
                let bytes: Vec<u8> = name.iter().map(|c| *c as u8).collect();
                let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
                format!("{{{}}}", quoted(&bytes[..end]))
            }),
            Argument::State(at) => behind(at.cast::<u32>(), |state| {
                crate::vi::state::name(state).to_owned()
            }),
            Argument::Descriptor(at) => format!("{at:p}"),
            Argument::Completed(at) => behind(at, completed),
        }
    }
}

/// A C string, truncated if long.
fn text(from: *const c_char) -> String {
    if from.is_null() {
        return "NULL".to_owned();
    }
    let mut bytes = Vec::new();
    while bytes.len() < TEXT_MAX {
        match read(from.wrapping_add(bytes.len()).cast::<u8>()) {
            Some(0) => return quoted(&bytes),
            Some(byte) => bytes.push(byte),
            None => return format!("{from:p} (bad address)"),
        }
    }
    quoted(&bytes) + "..."
}

fn net_address(at: *const VIP_NET_ADDRESS) -> String {
    behind(at.cast::<[u16; 2]>(), |[host, point]| {
        let part = |offset: usize, length: u16| -> Option<Vec<u8>> {
            let length = usize::from(length).min(TEXT_MAX);
            let first = at.cast::<u8>().wrapping_add(offset);
            (0..length).map(|n| read(first.wrapping_add(n))).collect()
        };
        let host_bytes = part(4, host);
        match (host_bytes, part(4 + usize::from(host), point)) {
            (Some(host), Some(point)) if point.is_empty() => {
                format!("{{{}}}", hexadecimal(&host))
            }
            (Some(host), Some(point)) => {
                format!("{{{} {}}}", hexadecimal(&host), discriminator(&point))
            }
            _ => format!("{at:p} (bad address)"),
        }
    })
}

fn rights(write: VIP_BOOLEAN, read: VIP_BOOLEAN) -> &'static str {
    match (write != 0, read != 0) {
        (false, false) => "no RDMA",
        (true, false) => "RDMA Write",
        (false, true) => "RDMA Read",
        (true, true) => "RDMA Write and Read",
    }
}

fn vi_attributes(attributes: VIP_VI_ATTRIBUTES) -> String {
    let qos = match attributes.QoS.addr() {
        0 => String::new(),
        other => format!(", QoS {other:#x}"),
    };
    format!(
        "{{{}, MaxTransferSize {}, Ptag {:?}, {}{qos}}}",
        levels(attributes.ReliabilityLevel),
        attributes.MaxTransferSize,
        attributes.Ptag,
        rights(attributes.EnableRdmaWrite, attributes.EnableRdmaRead)
    )
}

fn mem_attributes(attributes: VIP_MEM_ATTRIBUTES) -> String {
    format!(
        "{{Ptag {:?}, {}}}",
        attributes.Ptag,
        rights(attributes.EnableRdmaWrite, attributes.EnableRdmaRead)
    )
}

/// Control segment and segments of a descriptor that is posted.
fn descriptor(at: *const VIP_DESCRIPTOR) -> String {
    if at.is_null() {
        return "NULL".to_owned();
    }
    if !at.addr().is_multiple_of(VIP_DESCRIPTOR_ALIGNMENT) {
        return format!("{at:p} (not aligned to {VIP_DESCRIPTOR_ALIGNMENT} bytes)");
    }
    let Some(image) = image(at) else {
        return format!("{at:p} (bad address)");
    };
    let mut text = format!(
        "{at:p} {{{}, Length {}",
        control(image.control),
        image.length
    );
    for number in 0..image.seg_count.min(SEGMENTS_MAX) {
        let Some(segment) = segment(at, number) else {
            text.push_str(", a bad address");
            break;
        };
        let (address, handle, length) = (segment.address, segment.handle, segment.length);
        let remote = number == 0 && image.control & VIP_CONTROL_OP_MASK != 0;
        let _ = if remote {
            write!(text, ", to {address:#x} of {handle:#x}")
        } else {
            write!(text, ", {length} at {address:#x} of {handle:#x}")
        };
    }
    if image.seg_count > SEGMENTS_MAX {
        let _ = write!(text, ", ... {} segments", image.seg_count);
    }
    text + "}"
}

/// A descriptor that was removed from a queue.
fn completed(at: *mut VIP_DESCRIPTOR) -> String {
    if at.is_null() {
        return "NULL".to_owned();
    }
    let word = |offset: usize| read(at.cast::<u8>().wrapping_add(offset).cast::<u32>());
    match (word(20), word(24), word(28)) {
        (Some(immediate), Some(length), Some(bits)) => {
            let immediate = match bits & VIP_STATUS_IMMEDIATE {
                0 => String::new(),
                _ => format!(", ImmediateData {immediate:#x}"),
            };
            format!(
                "{at:p} {{Status {}, Length {length}{immediate}}}",
                status(bits)
            )
        }
        _ => format!("{at:p} (bad address)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_of_the_program_may_be_bad() {
        vipl_guard::install();
        let nowhere = std::ptr::without_provenance_mut::<c_int>(8);
        let shown = Argument::Truth(nowhere).output();
        assert_eq!(shown, "0x8 (bad address)");
        assert_eq!(Argument::Text(std::ptr::null()).output(), "NULL");
        assert_eq!(Argument::Text(c"a\nb".as_ptr()).output(), "\"a\\nb\"");
        let misplaced = std::ptr::without_provenance_mut::<VIP_DESCRIPTOR>(65);
        assert_eq!(
            Argument::Descriptor(misplaced).input("DescriptorPtr"),
            "0x41 (not aligned to 64 bytes)"
        );
    }

    #[test]
    fn an_address_is_host_and_discriminator() {
        let bytes = [
            6, 0, 5, 0, 2, 0x56, 0x49, 0x4c, 0, 1, b'h', b'e', b'l', b'l', b'o',
        ];
        vipl_guard::install();
        let shown = Argument::NetAddress(bytes.as_ptr().cast()).output();
        assert_eq!(shown, "{02:56:49:4c:00:01 \"hello\"}");
    }
}
