//! The C table of a plug-in, made from its traits: each operation is a function that is generic over the provider.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use vipl_heap::HEAP;
use vipl_plugin_abi::*;
use vipl_rules::{Host, NicHandle, Port, Status};

use crate::settings::Setting;
use crate::traits::{Nic, OwnTable, Provider, Ready, Regions, Sleep, Vi};

/// Writes name and host address of a device, and the bytes of them that fit.
pub fn describe(info: &mut vipl_nic_info, name: &str, address: &[u8]) {
    // SAFETY: the array has 64 bytes.
    unsafe { give(name, info.name.as_mut_ptr()) };
    let bytes = address.len().min(VIPL_ADDRESS_MAX);
    info.address[..bytes].copy_from_slice(&address[..bytes]);
    info.address_len = bytes as u16;
}

/// The data symbol of a plug-in of this kind, without the function that begins it.
pub(crate) const fn symbol(
    kind: u32,
    name: &'static CStr,
    version: &'static CStr,
    settings: &'static [Setting],
) -> vipl_plugin {
    vipl_plugin {
        magic: VIPL_PLUGIN_MAGIC,
        size: size_of::<vipl_plugin>() as u32,
        abi_major: VIPL_PLUGIN_ABI_MAJOR,
        abi_minor: VIPL_PLUGIN_ABI_MINOR,
        fingerprint: VIPL_PLUGIN_FINGERPRINT,
        kind,
        reserved: 0,
        name: name.as_ptr(),
        version: version.as_ptr(),
        required: 0,
        optional: 0,
        init: None,
        // The layout is the same.
        settings: settings.as_ptr().cast(),
        setting_count: settings.len() as u32,
        reserved_2: 0,
        init_layer: None,
    }
}

/// The data symbol of a provider, for [`plugin!`](crate::plugin).
#[doc(hidden)]
pub const fn description<P: Provider>(init: Init) -> vipl_plugin {
    vipl_plugin {
        init: Some(init),
        ..symbol(VIPL_KIND_PROVIDER, P::NAME, P::VERSION, P::SETTINGS)
    }
}

type Init = unsafe extern "C" fn(host: *const vipl_host, out: *mut vipl_provider) -> c_int;

/// The operations that every provider has.
#[doc(hidden)]
pub const fn operations<P: Provider>() -> vipl_provider {
    vipl_provider {
        size: size_of::<vipl_provider>(),
        claim: Some(claim::<P>),
        device: Some(device::<P>),
        nic_open: Some(nic_open::<P>),
        nic_close: Some(nic_close::<P>),
        vi_create: Some(vi_create::<P>),
        vi_destroy: Some(vi_destroy::<P>),
        attach: Some(attach::<P>),
        detach: Some(detach::<P>),
        peer_gone: Some(peer_gone::<P>),
        post_send: Some(post_send::<P>),
        post_recv: Some(post_recv::<P>),
        progress: Some(progress::<P>),
        ready: None,
        watch: None,
        arm: None,
        sleep: None,
        wake: None,
        quiesced: Some(quiesced::<P>),
        region_add: None,
        region_remove: None,
    }
}

/// Functions with the names of the capabilities, each of which adds the operations of one.
#[doc(hidden)]
#[allow(non_snake_case)]
pub mod capability {
    use super::*;

    pub const fn Ready<P: Provider<Nic: Ready>>(operations: vipl_provider) -> vipl_provider {
        vipl_provider {
            ready: Some(ready::<P>),
            watch: Some(watch::<P>),
            ..operations
        }
    }

    pub const fn Sleep<P: Provider<Nic: Sleep>>(operations: vipl_provider) -> vipl_provider {
        vipl_provider {
            arm: Some(arm::<P>),
            sleep: Some(sleep::<P>),
            wake: Some(wake::<P>),
            ..operations
        }
    }

    pub const fn Regions<P: Provider<Nic: Regions>>(operations: vipl_provider) -> vipl_provider {
        vipl_provider {
            region_add: Some(region_add::<P>),
            region_remove: Some(region_remove::<P>),
            ..operations
        }
    }

    pub const fn OwnTable<P: Provider<Nic: OwnTable>>(operations: vipl_provider) -> vipl_provider {
        vipl_provider {
            nic_open: Some(nic_open_with_table::<P>),
            ..operations
        }
    }
}

/// What `init` of a plug-in does.
///
/// # Safety
/// The arguments are those of `vipl_plugin.init`.
#[doc(hidden)]
pub unsafe fn init(
    host: *const vipl_host,
    out: *mut vipl_provider,
    operations: &vipl_provider,
) -> c_int {
    // SAFETY: the host's table lives as long as the process, and starts with its size.
    if unsafe { (*host).size } < size_of::<vipl_host>() {
        return VIPL_E_NOT_SUPPORTED;
    }
    // SAFETY: as above.
    let status = unsafe { meet(host) };
    if status == VIPL_OK {
        // SAFETY: the host gave room for as much as its own size says.
        unsafe { hand_over(operations, out, (*out).size) };
    }
    status
}

/// Makes the host known, and panics lines of its log.
///
/// # Safety
/// As for [`Host::set`].
pub(crate) unsafe fn meet(host: *const vipl_host) -> c_int {
    // SAFETY: as asked of the caller.
    let status = unsafe { Host::set(host) };
    if status == VIPL_OK {
        // What is behind descriptor 2 may be a file of the application: the host knows.
        std::panic::set_hook(Box::new(|panic| {
            Host::get().log(VIPL_LOG_ERROR, &panic.to_string());
        }));
    }
    status
}

/// Writes a table, its own size first, as far as there is room.
///
/// # Safety
/// `out` has room for so many bytes.
pub(crate) unsafe fn hand_over<T>(table: &T, out: *mut T, room: usize) {
    let room = room.min(size_of::<T>());
    // SAFETY: as asked of the caller.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *table).cast::<u8>(), out.cast(), room) };
}

/// Runs an operation; a panic is a bug of the plug-in and must not cross the boundary.
#[inline(always)]
fn contained<R>(default: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        report_bug();
        default
    })
}

#[cold]
fn report_bug() {
    Host::get().log(
        VIPL_LOG_ERROR,
        "a bug in a plug-in was caught; please report it",
    );
}

/// Whether there is no memory for something that is made.
fn lacks_memory(what: &str) -> bool {
    let lacks = HEAP.is_short();
    if lacks {
        let text = format!("there is no memory left for {what}");
        Host::get().log(VIPL_LOG_ERROR, &text);
    }
    lacks
}

/// # Safety
/// NUL-terminated.
unsafe fn text<'a>(text: *const c_char) -> &'a str {
    // SAFETY: as asked of the caller.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// Room for the name or the argument of a device, with its NUL.
const NAME_BYTES: usize = 64;

/// Writes a string, cut if need be.
///
/// # Safety
/// `out` has [`NAME_BYTES`] bytes.
unsafe fn give(value: &str, out: *mut c_char) {
    let bytes = &value.as_bytes()[..value.len().min(NAME_BYTES - 1)];
    // SAFETY: as asked of the caller.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len());
        *out.add(bytes.len()) = 0;
    }
}

/// # Safety
/// The NIC is open: `context` is what `nic_open` made.
#[inline(always)]
unsafe fn nic_of<'a, P: Provider>(nic: *const vipl_nic) -> &'a P::Nic {
    // SAFETY: as asked of the caller.
    unsafe { &*(*nic).context.cast::<P::Nic>() }
}

type ViOf<P> = <<P as Provider>::Nic as Nic>::Vi;

/// # Safety
/// Within an operation of the VI, whose `context` is what `vi_create` made.
#[inline(always)]
unsafe fn parts<'a, P: Provider>(vi: *mut vipl_vi) -> (&'a mut ViOf<P>, &'a P::Nic, &'a Port) {
    // SAFETY: as asked of the caller.
    unsafe {
        (
            &mut *(*vi).context.cast::<ViOf<P>>(),
            nic_of::<P>((*vi).nic),
            Port::new(vi),
        )
    }
}

// SAFETY of all operations below: the host calls them as the interface says (see `vipl-plugin-abi`).

unsafe extern "C" fn claim<P: Provider>(name: *const c_char, argument: *mut c_char) -> c_int {
    // SAFETY: see above.
    contained(0, || match P::claim(unsafe { text(name) }) {
        Some((_, found)) if found.len() >= NAME_BYTES => {
            Host::get().log(
                VIPL_LOG_WARN,
                &format!("{:?}: the name {found:?} is too long", P::NAME),
            );
            0
        }
        Some((rank, found)) => {
            // SAFETY: see above.
            unsafe { give(&found, argument) };
            rank
        }
        None => 0,
    })
}

unsafe extern "C" fn device<P: Provider>(number: u32, name: *mut c_char) -> c_int {
    contained(VIPL_E_INVALID, || match P::devices().get(number as usize) {
        Some(found) => {
            // SAFETY: see above.
            unsafe { give(found, name) };
            VIPL_OK
        }
        None => VIPL_E_INVALID,
    })
}

/// A structure of the host's, as long as it is here: what an older host does not have is 0.
///
/// # Safety
/// `given` points to `size` bytes, and zero is a valid value of each field behind them.
unsafe fn whole<T: Copy>(given: *const T, size: usize) -> T {
    let mut whole = std::mem::MaybeUninit::<T>::zeroed();
    let known = size.min(size_of::<T>());
    // SAFETY: within both, as asked of the caller.
    unsafe {
        std::ptr::copy_nonoverlapping(given.cast::<u8>(), whole.as_mut_ptr().cast(), known);
        whole.assume_init()
    }
}

unsafe extern "C" fn nic_open<P: Provider>(
    argument: *const c_char,
    nic: *mut vipl_nic,
    info: *mut vipl_nic_info,
) -> c_int {
    // SAFETY: see above.
    unsafe { open::<P>(argument, nic, info, |_| None) }
}

unsafe extern "C" fn nic_open_with_table<P: Provider<Nic: OwnTable>>(
    argument: *const c_char,
    nic: *mut vipl_nic,
    info: *mut vipl_nic_info,
) -> c_int {
    // SAFETY: see above.
    unsafe { open::<P>(argument, nic, info, |made| Some(made.table())) }
}

/// # Safety
/// As for `nic_open`. The table lives as long as the NIC, which stays where it is.
unsafe fn open<P: Provider>(
    argument: *const c_char,
    nic: *mut vipl_nic,
    info: *mut vipl_nic_info,
    table: impl FnOnce(&P::Nic) -> Option<&[vipl_region]>,
) -> c_int {
    // SAFETY: as asked of the caller.
    contained(VIPL_E_RESOURCE, || unsafe {
        if lacks_memory("a NIC") {
            return VIPL_E_RESOURCE;
        }
        vipl_sys::thread::touch_data();
        let mut whole = whole(info, (*info).size);
        let made = match P::open(text(argument), NicHandle::new(nic), &mut whole) {
            Ok(made) => Box::new(made),
            Err(status) => return status.code(),
        };
        whole.regions = std::ptr::null_mut();
        if let Some(table) = table(&made) {
            assert_eq!(
                table.len(),
                whole.regions_max as usize,
                "entries of the table"
            );
            whole.regions = table.as_ptr().cast_mut();
        }
        let known = (*info).size.min(size_of::<vipl_nic_info>());
        std::ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), info.cast(), known);
        (*nic).context = Box::into_raw(made).cast::<c_void>();
        VIPL_OK
    })
}

unsafe extern "C" fn nic_close<P: Provider>(nic: *mut vipl_nic) {
    // SAFETY: see above; closed once.
    contained((), || unsafe {
        let mut made = Box::from_raw((*nic).context.cast::<P::Nic>());
        made.close();
    });
}

unsafe extern "C" fn vi_create<P: Provider>(vi: *mut vipl_vi) -> c_int {
    // SAFETY: see above.
    contained(VIPL_E_RESOURCE, || unsafe {
        vipl_sys::thread::touch_data();
        match ViOf::<P>::new(nic_of::<P>((*vi).nic), Port::new(vi)) {
            Ok(made) => {
                (*vi).context = Box::into_raw(Box::new(made)).cast::<c_void>();
                VIPL_OK
            }
            Err(status) => status.code(),
        }
    })
}

unsafe extern "C" fn vi_destroy<P: Provider>(vi: *mut vipl_vi) {
    // SAFETY: see above; destroyed once.
    contained((), || unsafe {
        drop(Box::from_raw((*vi).context.cast::<ViOf<P>>()))
    });
}

unsafe extern "C" fn attach<P: Provider>(
    vi: *mut vipl_vi,
    connection: *const vipl_connection,
) -> c_int {
    // SAFETY: see above.
    contained(VIPL_E_RESOURCE, || unsafe {
        if lacks_memory("a connection") {
            return VIPL_E_RESOURCE;
        }
        vipl_sys::thread::touch_data();
        let (own, nic, port) = parts::<P>(vi);
        own.attach(nic, port, &whole(connection, (*connection).size))
            .map_or_else(Status::code, |()| VIPL_OK)
    })
}

unsafe extern "C" fn detach<P: Provider>(vi: *mut vipl_vi) {
    // SAFETY: see above.
    let (own, nic, port) = unsafe { parts::<P>(vi) };
    contained((), || own.detach(nic, port));
}

unsafe extern "C" fn peer_gone<P: Provider>(vi: *mut vipl_vi, orderly: bool) {
    // SAFETY: see above.
    let (own, nic, port) = unsafe { parts::<P>(vi) };
    contained((), || own.peer_gone(nic, port, orderly));
}

unsafe extern "C" fn post_send<P: Provider>(vi: *mut vipl_vi) {
    // SAFETY: see above.
    let (own, nic, port) = unsafe { parts::<P>(vi) };
    contained((), || own.post_send(nic, port));
}

unsafe extern "C" fn post_recv<P: Provider>(vi: *mut vipl_vi) {
    // SAFETY: see above.
    let (own, nic, port) = unsafe { parts::<P>(vi) };
    contained((), || own.post_recv(nic, port));
}

unsafe extern "C" fn progress<P: Provider>(vi: *mut vipl_vi) {
    // SAFETY: see above.
    let (own, nic, port) = unsafe { parts::<P>(vi) };
    contained((), || own.progress(nic, port));
}

unsafe extern "C" fn ready<P: Provider<Nic: Ready>>(
    nic: *const vipl_nic,
    indices: *mut u32,
    room: u32,
) -> u32 {
    // SAFETY: see above.
    contained(0, || unsafe {
        let room = std::slice::from_raw_parts_mut(indices, room as usize);
        nic_of::<P>(nic).ready(room).min(room.len()) as u32
    })
}

unsafe extern "C" fn watch<P: Provider<Nic: Ready>>(vi: *mut vipl_vi, on: bool) {
    // SAFETY: see above.
    let (own, nic, _) = unsafe { parts::<P>(vi) };
    contained((), || nic.watch(own, on));
}

unsafe extern "C" fn arm<P: Provider<Nic: Sleep>>(nic: *const vipl_nic) -> u32 {
    // SAFETY: see above.
    contained(0, || unsafe { nic_of::<P>(nic) }.arm())
}

unsafe extern "C" fn sleep<P: Provider<Nic: Sleep>>(
    nic: *const vipl_nic,
    epoch: u32,
    timeout_ns: u64,
) {
    // SAFETY: see above.
    contained((), || unsafe { nic_of::<P>(nic) }.sleep(epoch, timeout_ns));
}

unsafe extern "C" fn wake<P: Provider<Nic: Sleep>>(nic: *const vipl_nic) {
    // SAFETY: see above.
    contained((), || unsafe { nic_of::<P>(nic) }.wake());
}

unsafe extern "C" fn quiesced<P: Provider>(
    vi: *mut vipl_vi,
    since: *mut u64,
    left_ns: u64,
) -> bool {
    // SAFETY: see above.
    let ((own, _, port), since) = unsafe { (parts::<P>(vi), &mut *since) };
    let left = Duration::from_nanos(left_ns);
    contained(false, || own.quiesced(port, since, left))
}

unsafe extern "C" fn region_add<P: Provider<Nic: Regions>>(
    nic: *const vipl_nic,
    handle: u32,
    base: u64,
    bytes: u64,
    access: u64,
) -> c_int {
    // SAFETY: see above.
    let nic = unsafe { nic_of::<P>(nic) };
    contained(VIPL_E_RESOURCE, || {
        nic.region_add(handle, base, bytes, access)
            .map_or_else(Status::code, |()| VIPL_OK)
    })
}

unsafe extern "C" fn region_remove<P: Provider<Nic: Regions>>(nic: *const vipl_nic, handle: u32) {
    // SAFETY: see above.
    contained((), || unsafe { nic_of::<P>(nic) }.region_remove(handle));
}
