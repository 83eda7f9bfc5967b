//! The functions of `vipl_host` that help plug-ins in C: this crate's code behind C functions, for the table of a host.
//! They are called as the interface specifies.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use vipl_abi::{
    VIP_DATA_SEGMENT, VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION,
    VIP_STATUS_OP_MASK, VIP_STATUS_OP_RECEIVE,
};
use vipl_guard::Segment;
use vipl_plugin_abi::*;

use crate::host::Host;
use crate::port::{Port, Queue, Room, Source};
use crate::posted::{self, Outgoing, Segments};
use crate::region::Table;

pub use vipl_plugin_abi::vipl_host;

// Where a request keeps the segments of its descriptor.
const _: () = assert!(
    size_of::<Segments>() <= size_of::<[u64; 6]>() && align_of::<Segments>() <= align_of::<u64>()
);

/// Size of a request in the first version.
const REQUEST_MIN: usize = size_of::<vipl_request>();

/// RDMA Read does not exist on Unreliable. A plug-in without it refuses it on the other levels.
const READ_LEVELS: u16 = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;

const EMPTY: vipl_request = vipl_request {
    size: 0,
    operation: 0,
    fault: 0,
    number: 0,
    segment_count: 0,
    length: 0,
    immediate: 0,
    flagged: 0,
    fenced: 0,
    remote_handle: 0,
    remote_address: 0,
    host: [MaybeUninit::zeroed(); 6],
};

/// A request without its segments.
fn of_send(port: &Port, sent: &Outgoing) -> vipl_request {
    vipl_request {
        immediate: port.carried(sent).0,
        flagged: sent.flagged.into(),
        fenced: sent.fenced.into(),
        remote_handle: sent.remote.handle,
        remote_address: sent.remote.address,
        ..of(&sent.segments, sent.length)
    }
}

/// The part of a request that sends and receives have.
fn of(segments: &Segments, length: u32) -> vipl_request {
    let mut request = vipl_request {
        operation: segments.opcode(),
        number: segments.number(),
        segment_count: segments.len().into(),
        length,
        ..EMPTY
    };
    // SAFETY: room and alignment are asserted above.
    unsafe { (&raw mut request.host).cast::<Segments>().write(*segments) };
    request
}

/// Hands a request to a plug-in. False: it has no room.
///
/// # Safety
/// `out` is the plug-in's, as large as it says.
unsafe fn give(out: *mut vipl_request, mut request: vipl_request) -> bool {
    // SAFETY: as asked of the caller.
    let room = unsafe { (*out).size };
    if room < REQUEST_MIN {
        let text = format!("a plug-in has set vipl_request.size to {room}, which is too small");
        Host::get().log(VIPL_LOG_ERROR, &text);
        return false;
    }
    request.size = room;
    let known = room.min(size_of::<vipl_request>());
    // SAFETY: within both.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const request).cast::<u8>(), out.cast(), known);
    }
    true
}

/// # Safety
/// A request that [`give`] has filled.
unsafe fn segments<'a>(request: *const vipl_request) -> &'a Segments {
    // SAFETY: as asked of the caller.
    unsafe { &*(&raw const (*request).host).cast::<Segments>() }
}

/// See `vipl_host.next_send`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn next_send(vi: *mut vipl_vi, out: *mut vipl_request) -> bool {
    // SAFETY: within an operation.
    let port = unsafe { Port::new(vi) };
    port.next_send(READ_LEVELS).is_some_and(|sent| {
        // SAFETY: the plug-in's structure.
        unsafe { give(out, of_send(port, &sent)) }
    })
}

/// See `vipl_host.next_receive`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn next_receive(
    vi: *mut vipl_vi,
    length: u32,
    out: *mut vipl_request,
) -> bool {
    // SAFETY: within an operation.
    let port = unsafe { Port::new(vi) };
    port.next_receive(length).is_some_and(|segments| {
        // SAFETY: the plug-in's structure.
        unsafe { give(out, of(&segments, length)) }
    })
}

/// See `vipl_host.next_notice`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn next_notice(vi: *mut vipl_vi) -> bool {
    // SAFETY: within an operation.
    unsafe { Port::new(vi) }.next_notice()
}

/// See `vipl_host.send_at`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn send_at(vi: *mut vipl_vi, number: u32, out: *mut vipl_request) -> bool {
    // SAFETY: within an operation.
    let port = unsafe { Port::new(vi) };
    let entry = port.outstanding(Queue::Send, number);
    let found = entry.map(|entry| posted::outgoing(port, &entry, READ_LEVELS));
    // SAFETY: the plug-in's structure.
    unsafe {
        give_found(
            out,
            number,
            found.map(|sent| sent.map(|sent| of_send(port, &sent))),
        )
    }
}

/// See `vipl_host.receive_at`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn receive_at(
    vi: *mut vipl_vi,
    number: u32,
    length: u32,
    out: *mut vipl_request,
) -> bool {
    // SAFETY: within an operation.
    let port = unsafe { Port::new(vi) };
    let entry = port.outstanding(Queue::Recv, number);
    let found = entry.map(|entry| match port.check_receive(&entry, Some(length)) {
        Ok(segments) => Ok(of(&segments, length)),
        Err(fault) => Err((fault.status | VIP_STATUS_OP_RECEIVE).into()),
    });
    // SAFETY: the plug-in's structure.
    unsafe { give_found(out, number, found) }
}

/// Hands out a descriptor that was asked for by its number; false if it cannot be processed.
///
/// # Safety
/// As for [`give`].
unsafe fn give_found(
    out: *mut vipl_request,
    number: u32,
    found: Option<Result<vipl_request, posted::Fault>>,
) -> bool {
    let (good, request) = match found {
        Some(Ok(request)) => (true, request),
        Some(Err(fault)) => {
            let (operation, fault) = (fault.status & VIP_STATUS_OP_MASK, fault.status);
            let request = vipl_request {
                operation,
                fault,
                number,
                ..EMPTY
            };
            (false, request)
        }
        None => (false, vipl_request { number, ..EMPTY }),
    };
    // SAFETY: as asked of the caller.
    unsafe { give(out, request) && good }
}

/// See `vipl_host.segment`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn segment(
    request: *const vipl_request,
    number: u32,
    out: *mut VIP_DATA_SEGMENT,
) -> bool {
    // SAFETY: a request of this file.
    let segments = unsafe { segments(request) };
    let found = u16::try_from(number)
        .ok()
        .filter(|number| *number < segments.len())
        .and_then(|number| segments.get(number).ok());
    found.is_some_and(|found| {
        // SAFETY: the plug-in's structure; the layout is the same.
        unsafe { out.cast::<Segment>().write(found) };
        true
    })
}

/// Memory of a plug-in in C: the first byte, and how many there are.
struct Raw(*mut u8, usize);

// SAFETY: the plug-in's own, as the interface says.
unsafe impl Room for Raw {
    fn range(self) -> (*mut u8, usize) {
        (self.0, self.1)
    }
}

// SAFETY: as above.
unsafe impl Source for Raw {
    fn range(self) -> (*const u8, usize) {
        (self.0, self.1)
    }
}

/// See `vipl_host.gather`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn gather(
    vi: *mut vipl_vi,
    request: *const vipl_request,
    offset: u32,
    to: *mut c_void,
    bytes: u32,
) -> bool {
    // SAFETY: within an operation, with a request of `next_send` and room for `bytes`.
    unsafe {
        let room = Raw(to.cast::<u8>(), bytes as usize);
        Port::new(vi).gather(segments(request), offset, room)
    }
}

/// See `vipl_host.scatter`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn scatter(
    vi: *mut vipl_vi,
    request: *const vipl_request,
    offset: u32,
    from: *const c_void,
    bytes: u32,
) -> bool {
    // SAFETY: within an operation, with a request of `next_receive` and `bytes` bytes.
    unsafe {
        let source = Raw(from.cast_mut().cast::<u8>(), bytes as usize);
        Port::new(vi).scatter(segments(request), offset, source)
    }
}

/// # Safety
/// One of a VI's two queues.
unsafe fn which(queue: *const vipl_queue) -> Queue {
    // SAFETY: as asked of the caller.
    match unsafe { (*queue).which } {
        0 => Queue::Send,
        _ => Queue::Recv,
    }
}

/// See `vipl_host.complete`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn complete(
    vi: *mut vipl_vi,
    queue: *mut vipl_queue,
    status: u32,
    length: u32,
    immediate: u32,
) -> bool {
    // SAFETY: within an operation, with one of the VI's queues.
    let (port, queue) = unsafe { (Port::new(vi), which(queue)) };
    let data = (queue == Queue::Recv).then_some((length, immediate));
    port.complete(queue, status, data)
}

/// See `vipl_host.refuse`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn refuse(vi: *mut vipl_vi, queue: *mut vipl_queue, status: u32) {
    // SAFETY: within an operation, with one of the VI's queues.
    unsafe { Port::new(vi).refuse(which(queue), status) };
}

/// See `vipl_host.region_check`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn region_check(
    vi: *const vipl_vi,
    handle: u32,
    base: u64,
    bytes: u64,
    flag: u32,
) -> bool {
    // SAFETY: a VI that exists, whose NIC is open.
    let (table, tag) = unsafe {
        let nic = &*(*vi).nic;
        (Table::new(nic.regions, nic.region_count), (*vi).ptag)
    };
    let base = vipl_guard::own_address(base);
    if flag == 0 {
        table.is_local(handle, base, bytes, tag)
    } else {
        table.is_remote(handle, base, bytes, tag, flag)
    }
}

/// See `vipl_host.copy`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn copy(to: *mut c_void, from: *const c_void, bytes: usize) -> bool {
    // SAFETY: faults are caught.
    unsafe { vipl_guard::copy(to.cast(), from.cast(), bytes) }.is_ok()
}

/// `vipl_host.guard`
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn guard(start: usize, end: usize, fixup: usize) -> c_int {
    let range = vipl_guard::Range { start, end, fixup };
    // SAFETY: instructions of the plug-in, as the interface says.
    registered(unsafe { vipl_guard::register_range(range) })
}

const _: () = assert!(size_of::<vipl_guard_entry>() == size_of::<vipl_guard::Entry>());
const _: () = assert!(size_of::<VIP_DATA_SEGMENT>() == size_of::<Segment>());

/// `vipl_host.guard_table`
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn guard_table(entries: *const vipl_guard_entry, count: usize) -> c_int {
    if count == 0 {
        return VIPL_OK;
    }
    // SAFETY: a table of so many entries, which lives as long as the process. Both types are the same three fields.
    registered(vipl_guard::register(unsafe {
        std::slice::from_raw_parts(entries.cast(), count)
    }))
}

fn registered(there_was_room: bool) -> c_int {
    if there_was_room {
        VIPL_OK
    } else {
        VIPL_E_RESOURCE
    }
}

/// The table of a host: its own functions by their names in [`vipl_host`], and the helpers of this module.
#[macro_export]
macro_rules! host_table {
    ($($own:ident),* $(,)?) => {
        $crate::kit::vipl_host {
            size: size_of::<$crate::kit::vipl_host>(),
            $($own,)*
            guard: $crate::kit::guard,
            guard_table: $crate::kit::guard_table,
            next_send: $crate::kit::next_send,
            next_receive: $crate::kit::next_receive,
            gather: $crate::kit::gather,
            scatter: $crate::kit::scatter,
            complete: $crate::kit::complete,
            refuse: $crate::kit::refuse,
            region_check: $crate::kit::region_check,
            copy: $crate::kit::copy,
            next_notice: $crate::kit::next_notice,
            send_at: $crate::kit::send_at,
            receive_at: $crate::kit::receive_at,
            segment: $crate::kit::segment,
        }
    };
}
