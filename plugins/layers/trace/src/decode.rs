//! Arguments of calls as members of a JSON object.

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::layer::{Argument, Call, arguments, net_address, posted, read, text};
use vipl_plugin_sdk::words;

use crate::flows::{Flows, Last};
use crate::line::Text;

/// Longest text of the application that is shown.
const TEXT_MAX: usize = 64;

/// Writes the arguments, each with a comma behind it; `done`: the function has written its outputs.
pub(crate) fn arguments_of(call: &Call<'_>, done: bool, out: &mut Text) {
    for (number, (name, kind)) in arguments(call.function()).iter().enumerate() {
        out.put("\"");
        out.put(name);
        out.put("\":");
        one(call.argument(number), *kind, done, out);
        out.put(",");
    }
}

/// Whether a call that has succeeded is written by [`transfer`].
pub(crate) fn is_transfer(call: &Call<'_>) -> bool {
    matches!(
        call.function(),
        VIPL_CALL_POST_SEND..=VIPL_CALL_RECV_WAIT | VIPL_CALL_CQ_DONE | VIPL_CALL_CQ_WAIT
    )
}

/// Writes the arguments of a call that transfers data and has succeeded, each with a comma behind it. What bounds the speed of a program
/// under this layer is the length of these lines: they have numbers for handles, and of the usual no word.
#[inline]
pub(crate) fn transfer(call: &Call<'_>, flows: &Flows, last: &mut Last, out: &mut Text) {
    let handle = |key: &str, handle: u64, last: &mut Last, out: &mut Text| {
        out.put(key);
        match flows.number(handle, last) {
            None => out.hex(handle),
            Some(known) => {
                out.decimal(known.number.into());
                if known.nic != 0 {
                    out.put(",\"nic\":");
                    out.decimal(known.nic.into());
                }
            }
        }
        out.put(",");
    };
    let pointed = |at: u64| read::<usize>(std::ptr::with_exposed_provenance(at as usize));
    let (first, function) = (call.argument(0), call.function());
    if matches!(function, VIPL_CALL_CQ_DONE | VIPL_CALL_CQ_WAIT) {
        let out_vi = 1 + usize::from(function == VIPL_CALL_CQ_WAIT);
        handle("\"cq\":", first, last, out);
        if let Some(vi) = pointed(call.argument(out_vi)) {
            handle("\"vi\":", vi as u64, last, out);
        }
        let receives = read::<u32>(call.pointer(out_vi + 1)).unwrap_or(0);
        out.put(if receives == 0 {
            "\"queue\":\"send\","
        } else {
            "\"queue\":\"receive\","
        });
        return;
    }
    handle("\"vi\":", first, last, out);
    let (is_post, at) = match function {
        VIPL_CALL_POST_SEND | VIPL_CALL_POST_RECV => (true, Some(call.argument(1) as usize)),
        VIPL_CALL_SEND_WAIT | VIPL_CALL_RECV_WAIT => (false, pointed(call.argument(2))),
        _ => (false, pointed(call.argument(1))),
    };
    let Some(at) = at else {
        return;
    };
    out.put("\"desc\":");
    out.hex(at as u64);
    out.put(",");
    let Some(found) = posted(std::ptr::with_exposed_provenance(at)) else {
        return;
    };
    if is_post && found.control != VIP_CONTROL_OP_SENDRECV {
        out.put("\"op\":\"");
        out.put(&words::control(found.control));
        out.put("\",");
    }
    if !is_post && !is_usual(found.status) {
        out.put("\"status\":\"");
        out.put(&words::status(found.status));
        out.put("\",");
    }
    out.put("\"bytes\":");
    out.decimal(found.length.into());
    out.put(",");
}

/// A message that was sent or has arrived.
fn is_usual(status: u32) -> bool {
    const SENT: u32 = VIP_STATUS_DONE | VIP_STATUS_OP_SEND;
    const RECEIVED: u32 = VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE;
    matches!(status, SENT | RECEIVED)
}

fn one(value: u64, kind: Argument, done: bool, out: &mut Text) {
    let at = value as usize;
    match kind {
        Argument::Number => out.decimal(value),
        Argument::Timeout if value as VIP_ULONG == VIP_INFINITE => out.put("\"infinite\""),
        Argument::Timeout => out.decimal(value),
        Argument::Text => out.quoted(&text(value, TEXT_MAX)),
        Argument::Net => address(value, out),
        Argument::Descriptor => descriptor(at, out),
        Argument::ViAttributes => vi_attributes(at, out),
        Argument::OutHandle if done => match read::<usize>(std::ptr::with_exposed_provenance(at)) {
            Some(handle) => out.hex(handle as u64),
            None => out.put("\"bad address\""),
        },
        Argument::OutMemory | Argument::OutNumber if done => {
            match read::<u32>(std::ptr::with_exposed_provenance(at)) {
                Some(number) => out.decimal(number.into()),
                None => out.put("\"bad address\""),
            }
        }
        Argument::OutDescriptor if done => completed(at, out),
        _ => out.hex(value),
    }
}

/// Host in hexadecimal, and the discriminator as text.
fn address(at: u64, out: &mut Text) {
    let Some((host, point)) = net_address(at, TEXT_MAX) else {
        out.hex(at);
        return;
    };
    let host: Vec<String> = host.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut shown = host.join(":").into_bytes();
    shown.push(b' ');
    shown.extend(point);
    out.quoted(&shown);
}

fn vi_attributes(at: usize, out: &mut Text) {
    let Some(found) = read::<VIP_VI_ATTRIBUTES>(std::ptr::with_exposed_provenance(at)) else {
        out.hex(at as u64);
        return;
    };
    out.quoted(words::levels(found.ReliabilityLevel).as_bytes());
    out.put(",\"MaxTransferSize\":");
    out.decimal(found.MaxTransferSize as u64);
}

/// A descriptor that is posted: its address, operation and bytes.
fn descriptor(at: usize, out: &mut Text) {
    out.hex(at as u64);
    let Some(found) = posted(std::ptr::with_exposed_provenance(at)) else {
        return;
    };
    out.put(",\"op\":\"");
    out.put(&words::control(found.control));
    out.put("\",\"bytes\":");
    out.decimal(found.length.into());
}

/// A descriptor that was taken off a queue, with the status in which it is.
fn completed(at: usize, out: &mut Text) {
    let Some(taken) = read::<usize>(std::ptr::with_exposed_provenance(at)) else {
        out.put("\"bad address\"");
        return;
    };
    out.hex(taken as u64);
    let Some(found) = posted(std::ptr::with_exposed_provenance(taken)) else {
        return;
    };
    out.put(",\"status\":\"");
    out.put(&words::status(found.status));
    out.put("\",\"bytes\":");
    out.decimal(found.length.into());
}

/// Whether a call posts a message for which the peer needs a receive descriptor.
pub(crate) fn sends_message(call: &Call<'_>) -> bool {
    call.function() == VIPL_CALL_POST_SEND
        && posted(call.pointer(1)).is_some_and(|posted| {
            match posted.control & VIP_CONTROL_OP_MASK {
                VIP_CONTROL_OP_SENDRECV => true,
                VIP_CONTROL_OP_RDMAWRITE => posted.control & VIP_CONTROL_IMMEDIATE != 0,
                _ => false,
            }
        })
}
