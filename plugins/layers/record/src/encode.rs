//! Calls as words of a line. `docs/LAYERS.md` describes the format, which `vip_replay` reads.

use std::fmt::Write;

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::layer::{
    Argument, Call, Outcome, Posted, arguments, bytes, net_address, posted, read, text,
};
use vipl_sys::crc;

/// Longest text and most bytes of one message that are written.
const TEXT_MAX: usize = 4096;
const DATA_MAX: usize = 16 << 20;
/// A pointer that is not NULL and at which nothing can be read.
const BAD: &str = "bad";

fn hexadecimal(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
}

/// The arguments; `done`: the function has written its outputs. Descriptors that are posted are written by [`descriptor`],
/// before the call.
pub(crate) fn arguments_of(call: &Call<'_>, done: bool, out: &mut String) {
    for (number, (name, kind)) in arguments(call.function()).iter().enumerate() {
        let value = call.argument(number);
        let at = value as usize;
        let _ = write!(out, " {name}=");
        match kind {
            Argument::Text if value == 0 => out.push('-'),
            Argument::Text if is_bad(at) => out.push_str(BAD),
            Argument::Text => hexadecimal(&text(value, TEXT_MAX), out),
            Argument::Net => address(value, out),
            Argument::ViAttributes => vi_attributes(at, out),
            Argument::MemAttributes => mem_attributes(at, out),
            Argument::OutHandle if done => {
                let found = read::<usize>(std::ptr::with_exposed_provenance(at));
                let _ = write!(out, "{:#x}", found.unwrap_or(0));
            }
            Argument::OutMemory | Argument::OutNumber if done => {
                let found = read::<u32>(std::ptr::with_exposed_provenance(at));
                let _ = write!(out, "{:#x}", found.unwrap_or(0));
            }
            Argument::OutDescriptor if done => {
                let receives = matches!(call.function(), VIPL_CALL_RECV_DONE | VIPL_CALL_RECV_WAIT);
                completed(at, receives, out);
            }
            Argument::OutHandle
            | Argument::OutMemory
            | Argument::OutNumber
            | Argument::OutDescriptor
            | Argument::Out
                if !done && value != 0 && is_bad(at) =>
            {
                out.push_str(BAD);
            }
            _ => {
                let _ = write!(out, "{value:#x}");
            }
        }
    }
}

/// Whether nothing can be read there.
fn is_bad(at: usize) -> bool {
    read::<u8>(std::ptr::with_exposed_provenance(at)).is_none()
}

/// Host and discriminator.
fn address(at: u64, out: &mut String) {
    match net_address(at, TEXT_MAX) {
        Some((host, point)) if at != 0 => {
            hexadecimal(&host, out);
            out.push('/');
            hexadecimal(&point, out);
        }
        None if at != 0 => out.push_str(BAD),
        _ => out.push('-'),
    }
}

fn vi_attributes(at: usize, out: &mut String) {
    match read::<VIP_VI_ATTRIBUTES>(std::ptr::with_exposed_provenance(at)) {
        Some(found) if at != 0 => {
            let _ = write!(
                out,
                "{:#x}:{:#x}:{:#x}:{}:{}:{:#x}",
                found.ReliabilityLevel,
                found.MaxTransferSize,
                found.Ptag.addr(),
                found.EnableRdmaWrite,
                found.EnableRdmaRead,
                found.QoS.addr()
            );
        }
        None if at != 0 => out.push_str(BAD),
        _ => out.push('-'),
    }
}

fn mem_attributes(at: usize, out: &mut String) {
    match read::<VIP_MEM_ATTRIBUTES>(std::ptr::with_exposed_provenance(at)) {
        Some(found) if at != 0 => {
            let _ = write!(
                out,
                "{:#x}:{}:{}",
                found.Ptag.addr(),
                found.EnableRdmaWrite,
                found.EnableRdmaRead
            );
        }
        None if at != 0 => out.push_str(BAD),
        _ => out.push('-'),
    }
}

/// A descriptor that is about to be posted, and its data if `with_bytes`.
pub(crate) fn descriptor(call: &Call<'_>, with_bytes: bool, out: &mut String) {
    let Some(found) = posted(call.pointer(1)) else {
        return;
    };
    let _ = write!(
        out,
        " control={:#x} length={:#x} immediate={:#x} segments=",
        found.control, found.length, found.immediate
    );
    let mut written = 0;
    while let Some(segment) = found.segment(written) {
        let comma = if written == 0 { "" } else { "," };
        let (address, handle, length) = (segment.address, segment.handle, segment.length);
        let _ = write!(out, "{comma}{address:#x}:{handle:#x}:{length:#x}");
        written += 1;
    }
    // There are more than a descriptor may have, or a part of it cannot be read.
    if written != found.segments {
        let _ = write!(out, " count={}", found.segments);
    }
    let reads = found.control & VIP_CONTROL_OP_MASK == VIP_CONTROL_OP_RDMAREAD;
    if with_bytes && call.function() == VIPL_CALL_POST_SEND && !reads {
        out.push_str(" data=");
        data(&found, DATA_MAX, |piece| hexadecimal(piece, out));
    }
}

/// Gives the bytes of a descriptor's data segments, `most` at most.
fn data(of: &Posted, most: usize, mut give: impl FnMut(&[u8])) {
    let mut left = most;
    let mut piece = [0; 4096];
    for segment in of.data() {
        let mut done = 0;
        while done < segment.length as usize && left > 0 {
            let take = piece.len().min(segment.length as usize - done).min(left);
            if !bytes(segment.address + done as u64, &mut piece[..take]) {
                return;
            }
            give(&piece[..take]);
            done += take;
            left -= take;
        }
    }
}

/// A descriptor that was taken off a queue; of a receive also a checksum of the message.
fn completed(at: usize, receives: bool, out: &mut String) {
    let taken = read::<usize>(std::ptr::with_exposed_provenance(at)).unwrap_or(0);
    let _ = write!(out, "{taken:#x}");
    let Some(found) = posted(std::ptr::with_exposed_provenance(taken)) else {
        return;
    };
    let _ = write!(
        out,
        " status={:#x} length={:#x} immediate={:#x}",
        found.status, found.length, found.immediate
    );
    if receives && found.status & VIP_STATUS_OP_MASK == VIP_STATUS_OP_RECEIVE {
        let mut message = Vec::new();
        data(&found, (found.length as usize).min(DATA_MAX), |piece| {
            message.extend_from_slice(piece)
        });
        let _ = write!(out, " sum={:#x}", crc::crc32c(&message));
    }
}

/// The result in words.
pub(crate) fn result(result: Outcome) -> String {
    result
        .0
        .map_or_else(|| "left".to_owned(), |code| format!("{code:?}"))
}
