//! The helpers of `vipl_host` for plug-ins in C: this crate's own code behind C functions, for the host to put into
//! its table. They are called as the interface says.

use std::ffi::{c_int, c_void};

use vipl_abi::{
    VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION, VIP_STATUS_OP_RECEIVE,
};
use vipl_plugin_abi::*;

use crate::host::Host;
use crate::port::{Port, Queue, Room, Source};
use crate::posted::Segments;
use crate::region::Table;

pub use vipl_plugin_abi::vipl_host;

// Where a request keeps the segments of its descriptor.
const _: () = assert!(
    size_of::<Segments>() <= size_of::<[u64; 6]>() && align_of::<Segments>() <= align_of::<u64>()
);

/// RDMA Read does not exist on Unreliable. A plug-in without it refuses it on the other levels.
const READ_LEVELS: u16 = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;

/// Fills a request.
///
/// # Safety
/// `out` is the plug-in's, as large as it says.
unsafe fn give(out: *mut vipl_request, request: &mut vipl_request, segments: Segments) -> bool {
    // SAFETY: room and alignment are asserted above; the plug-in's structure as asked of the caller.
    unsafe {
        (&raw mut request.segments)
            .cast::<Segments>()
            .write(segments);
        let room = (*out).size;
        if room < size_of::<vipl_request>() {
            let text = format!("a plug-in has set vipl_request.size to {room}, which is too small");
            Host::get().log(VIPL_LOG_ERROR, &text);
            return false;
        }
        request.size = room;
        out.write(*request);
    }
    true
}

/// # Safety
/// A request that [`give`] has filled.
unsafe fn segments<'a>(request: *const vipl_request) -> &'a Segments {
    // SAFETY: as asked of the caller.
    unsafe { &*(&raw const (*request).segments).cast::<Segments>() }
}

const EMPTY: vipl_request = vipl_request {
    size: 0,
    operation: 0,
    length: 0,
    immediate: 0,
    flagged: 0,
    fenced: 0,
    remote_handle: 0,
    remote_address: 0,
    segments: [0; 6],
};

/// See `vipl_host.next_send`.
///
/// # Safety
/// As the interface says.
pub unsafe extern "C" fn next_send(vi: *mut vipl_vi, out: *mut vipl_request) -> bool {
    // SAFETY: within an operation.
    let port = unsafe { Port::new(vi) };
    let Some(sent) = port.next_send(READ_LEVELS) else {
        return false;
    };
    let mut request = vipl_request {
        operation: sent.operation.opcode(),
        length: sent.length,
        immediate: port.carried(&sent).0,
        flagged: sent.flagged.into(),
        fenced: sent.fenced.into(),
        remote_handle: sent.remote.handle,
        remote_address: sent.remote.address,
        ..EMPTY
    };
    // SAFETY: the plug-in's structure.
    unsafe { give(out, &mut request, sent.segments) }
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
    let mut request = vipl_request {
        operation: VIP_STATUS_OP_RECEIVE,
        length,
        ..EMPTY
    };
    port.next_receive(length).is_some_and(|segments| {
        // SAFETY: the plug-in's structure.
        unsafe { give(out, &mut request, segments) }
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
        }
    };
}
