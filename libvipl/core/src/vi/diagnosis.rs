//! Log lines about descriptors completed with an error: at `warn` for the first of a VI's queue with this
//! Status, at `debug` for the following ones.
//!
//! Status only contains the kind of error. The checks of spec §5.7 are repeated here, on the current content
//! of the descriptor, until one fails, regardless of the plug-in and process that processed it.

use vipl_abi::*;
use vipl_pages::record::Happened;
use vipl_plugin_abi::VIPL_REGION_RDMA_READ;

use super::Vi;
use super::queue::Which;
use crate::logger;
use crate::memory::table::{objection, remote_objections};
use crate::text::status;
use crate::trace::peek::{image, segment};

/// Subsystem of these lines.
const TARGET: &str = "desc";

/// Possible causes for a descriptor that passes all checks now.
fn unexplained(which: Which, errors: u32) -> &'static str {
    if which == Which::Recv && errors & VIP_STATUS_PROTECTION_ERROR != 0 {
        "it is valid now; a buffer cannot be written (it is mapped for reading only, or not any more), or the descriptor was \
         changed while it was posted"
    } else {
        "it is valid now; was it changed while it was posted?"
    }
}

/// Logs one line about a failed descriptor, unless it was only flushed.
#[cold]
pub(crate) fn failed(vi: &Vi, which: Which, descriptor: *mut VIP_DESCRIPTOR, bits: u32) {
    let errors = bits & VIP_STATUS_ERROR_MASK;
    if errors == VIP_STATUS_DESC_FLUSHED_ERROR {
        return;
    }
    vi.happened(Happened::Failed(which == Which::Send, bits));
    let kind = ("descriptor", errors, which == Which::Send);
    let level = logger::first(kind, vi.handle.addr(), log::Level::Debug);
    if !log::log_enabled!(target: TARGET, level) {
        return;
    }
    let why = match which {
        Which::Send => sent(vi, descriptor, bits),
        Which::Recv => received(vi, descriptor, bits),
    };
    let queue = if which == Which::Send {
        "send"
    } else {
        "receive"
    };
    log::log!(
        target: TARGET,
        level,
        "VI {:?}: {queue} descriptor {:?} failed with {}: {}",
        vi.handle,
        descriptor,
        status(bits),
        why.unwrap_or_else(|| unexplained(which, errors).to_owned())
    );
}

/// Logs one line about an RDMA operation that was refused: at the target with the checks that fail. The range is its handle,
/// address and bytes.
#[cold]
pub(crate) fn refused(vi: &Vi, at_target: bool, flag: u32, range: (u32, u64, u64)) {
    let level = logger::first(
        ("refused", at_target, flag),
        vi.handle.addr(),
        log::Level::Debug,
    );
    if !log::log_enabled!(target: TARGET, level) {
        return;
    }
    let (handle, base, bytes) = range;
    let operation = if flag == VIPL_REGION_RDMA_READ {
        "RDMA Read"
    } else {
        "RDMA Write"
    };
    let place = match bytes {
        0 => String::new(),
        bytes => format!(", {bytes} bytes at {base:#x} of region {handle:#x}"),
    };
    let this = vi.handle;
    if !at_target {
        log::log!(
            target: TARGET,
            level,
            "VI {this:?}: the peer refused an {operation}{place}; the peer's log says why"
        );
        return;
    }
    let (enable, permits) = if flag == VIPL_REGION_RDMA_READ {
        ("EnableRdmaRead", vi.abi.rdma_read)
    } else {
        ("EnableRdmaWrite", vi.abi.rdma_write)
    };
    let mut why = Vec::new();
    if permits == 0 {
        why.push(format!("this VI has no {enable}"));
    }
    why.extend(remote_objections(
        vi.abi.nic,
        range,
        vi.abi.ptag,
        (flag, enable),
    ));
    if why.is_empty() {
        let now = "all checks pass now; the memory is mapped for reading only, or VI, region or tag have been changed since";
        why.push(now.to_owned());
    }
    log::log!(
        target: TARGET,
        level,
        "VI {this:?}: an {operation} of the peer was refused{place}: {}",
        why.join("; ")
    );
}

fn sent(vi: &Vi, descriptor: *mut VIP_DESCRIPTOR, bits: u32) -> Option<String> {
    if bits & VIP_STATUS_RDMA_PROT_ERROR != 0 {
        return Some("the peer does not permit this VI to access the remote range; check EnableRdmaWrite or EnableRdmaRead on its VI and its region, the protection tags, and that the whole range is inside the region".to_owned());
    }
    if bits & VIP_STATUS_REMOTE_DESC_ERROR != 0 {
        return Some("the peer's receive descriptor failed, or it had posted none; post receives before the peer sends, large enough".to_owned());
    }
    if bits & VIP_STATUS_TRANSPORT_ERROR != 0 {
        return Some("the peer could not receive it (no receive posted, or one that failed: its own log says so), or the connection broke".to_owned());
    }
    let Some(image) = image(descriptor) else {
        return Some("its memory cannot be read".to_owned());
    };
    let operation = image.control & VIP_CONTROL_OP_MASK;
    let (rdma, read) = (
        operation != VIP_CONTROL_OP_SENDRECV,
        operation == VIP_CONTROL_OP_RDMAREAD,
    );
    if operation == VIP_CONTROL_OP_RESERVED || image.control & VIP_CONTROL_RESERVED != 0 {
        return Some(format!(
            "Control is {:#x}, with reserved bits",
            image.control
        ));
    }
    if let Some(text) = too_many(vi, image.seg_count) {
        return Some(text);
    }
    if rdma && image.seg_count == 0 {
        return Some("RDMA without an address segment".to_owned());
    }
    if read && image.control & VIP_CONTROL_IMMEDIATE != 0 {
        return Some("RDMA Read with immediate data".to_owned());
    }
    if read && vi.abi.reliability & vi.nic.info.rdma_read_support == 0 {
        return Some("RDMA Read on a reliability level that does not support it".to_owned());
    }
    let first = u16::from(rdma);
    let total: u64 = (first..image.seg_count)
        .map_while(|number| segment(descriptor, number))
        .map(|segment| u64::from(segment.length))
        .sum();
    if total != u64::from(image.length) {
        let length = image.length;
        return Some(format!(
            "Length is {length}, its data segments have {total} bytes; it must be their sum"
        ));
    }
    if total > vi.abi.max_transfer_size {
        let most = vi.abi.max_transfer_size;
        return Some(format!(
            "{total} bytes are more than the VI's MaxTransferSize, {most}"
        ));
    }
    segments(vi, descriptor, first, image.seg_count)
}

fn received(vi: &Vi, descriptor: *mut VIP_DESCRIPTOR, bits: u32) -> Option<String> {
    let Some(image) = image(descriptor) else {
        return Some("its memory cannot be read".to_owned());
    };
    let wrong = image.control & (VIP_CONTROL_OP_MASK | VIP_CONTROL_RESERVED);
    if wrong != 0 {
        let control = image.control;
        return Some(format!(
            "Control is {control:#x}; a receive has no operation and no reserved bits"
        ));
    }
    if let Some(text) = too_many(vi, image.seg_count) {
        return Some(text);
    }
    if bits & VIP_STATUS_LENGTH_ERROR != 0 {
        let room: u64 = (0..image.seg_count)
            .map_while(|number| segment(descriptor, number))
            .map(|segment| u64::from(segment.length))
            .sum();
        return Some(format!(
            "the message is larger than its buffers, {room} bytes; post larger receives, or send less"
        ));
    }
    if bits & VIP_STATUS_RDMA_PROT_ERROR != 0 {
        return Some("an RDMA Write with immediate data was refused: check EnableRdmaWrite on this VI and on the region, the protection tags, and that the whole range is inside the region".to_owned());
    }
    segments(vi, descriptor, 0, image.seg_count)
}

fn too_many(vi: &Vi, segments: u16) -> Option<String> {
    let most = vi.nic.info.segments_max;
    (u32::from(segments) > most).then(|| format!("{segments} segments, the device allows {most}"))
}

/// The first data segment that may not be accessed, and the region that was checked.
fn segments(vi: &Vi, descriptor: *mut VIP_DESCRIPTOR, first: u16, count: u16) -> Option<String> {
    (first..count).find_map(|number| {
        let Some(segment) = segment(descriptor, number) else {
            return Some(format!("segment {number} of {count} cannot be read"));
        };
        if segment.length == 0 {
            return None;
        }
        let why = objection(
            vi.abi.nic,
            segment.handle,
            segment.address,
            segment.length.into(),
            vi.abi.ptag,
        )?;
        let (length, address) = (segment.length, segment.address);
        Some(format!(
            "segment {number} of {count}, {length} bytes at {address:#x}: {why}"
        ))
    })
}
