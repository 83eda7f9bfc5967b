//! From the traits to the C table. Every operation is a function of its own, made for the provider.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use vipl_plugin_abi::*;

use vipl_heap::HEAP;
use vipl_rules::{Host, Port, Status};

/// The plug-in itself.
pub trait Provider: 'static {
    /// Name; the file is `libvipl_NAME.so`.
    const NAME: &'static CStr;
    /// Version, for people.
    const VERSION: &'static CStr;
    /// Settings of the plug-in, made with the functions of [`settings`](crate::settings).
    const SETTINGS: &'static [vipl_setting] = &[];
    /// One opening of a device.
    type Nic: Nic;

    /// Rank and argument, if this plug-in serves the device `name`; by default those that are present.
    fn claim(name: &str) -> Option<(i32, String)> {
        let own = Self::devices().iter().any(|device| device == name);
        own.then(|| (10, String::new()))
    }
    /// Devices that are present.
    fn devices() -> Vec<String>;
    /// Opens the device; fills what differs from the defaults in `info`.
    fn open(
        argument: &str,
        nic: *const vipl_nic,
        info: &mut vipl_nic_info,
    ) -> Result<Self::Nic, Status>;
}

/// One opening of a device. Its methods may run on several threads at once. Those that belong to one of the constants
/// are called only where it is true.
pub trait Nic: Sync + Send + 'static {
    /// The plug-in's part of a VI.
    type Vi: Vi<Nic = Self>;
    /// There is a `ready`, and each [`Vi`] has a `watch`. Otherwise the host asks every connected VI.
    const READY: bool = false;
    /// There are `arm`, `sleep` and `wake`. Otherwise the host sleeps in short steps.
    const SLEEP: bool = false;

    /// Before the NIC is dropped: no VI is left.
    fn close(&mut self) {}

    /// Whether there are `region_add` and `region_remove`; asked once, when the settings are known.
    fn wants_regions() -> bool {
        false
    }

    /// Numbers of VIs that may have something; returns how many were written.
    fn ready(&self, indices: &mut [u32]) -> usize {
        let _ = indices;
        0
    }

    /// Announces a sleeper.
    fn arm(&self) -> u32 {
        0
    }

    /// Sleeps until something happened since `arm` gave `epoch`; 0 only takes the announcement back.
    fn sleep(&self, epoch: u32, timeout_ns: u64) {
        let _ = (epoch, timeout_ns);
    }

    /// Ends every sleep.
    fn wake(&self) {}

    /// A region is registered, or its access changes; may block. `access` is as in [`vipl_region`].
    ///
    /// # Errors
    /// The call of the program fails.
    fn region_add(&self, handle: u32, base: u64, bytes: u64, access: u64) -> Result<(), Status> {
        let _ = (handle, base, bytes, access);
        Ok(())
    }

    /// A region is not used any more; may block.
    fn region_remove(&self, handle: u32) {
        let _ = handle;
    }
}

/// The plug-in's part of a VI; the host holds the VI's lock.
pub trait Vi: Send + 'static {
    /// Where it belongs.
    type Nic;

    /// A new VI, not connected.
    fn new(nic: &Self::Nic, port: &Port) -> Result<Self, Status>
    where
        Self: Sized;
    /// The VI is connected.
    fn attach(
        &mut self,
        nic: &Self::Nic,
        port: &Port,
        connection: &vipl_connection,
    ) -> Result<(), Status>;
    /// The VI is connected no more.
    fn detach(&mut self, nic: &Self::Nic, port: &Port);
    /// The agent says that the peer has gone; what arrived before is to be delivered. If the VI is still connected
    /// afterwards, the host fails it, except with a peer on another host that has gone in good order.
    fn peer_gone(&mut self, nic: &Self::Nic, port: &Port, orderly: bool) {
        let _ = orderly;
        self.progress(nic, port);
    }
    /// The send doorbell.
    fn post_send(&mut self, nic: &Self::Nic, port: &Port);
    /// The receive doorbell.
    fn post_recv(&mut self, nic: &Self::Nic, port: &Port) {
        let _ = (nic, port);
    }
    /// Takes what has arrived, or a part of it while nobody waits for completions; `detach` takes what is left.
    fn progress(&mut self, nic: &Self::Nic, port: &Port);
    /// Whether `ready` shall report this VI.
    fn watch(&mut self, on: bool) {
        let _ = on;
    }
    /// Whether no transfer uses a region that has gone. `since` is 0 in the first call, later what this has left
    /// there. With no time `left` it is not asked again: a transfer that still is under way costs the connection. The
    /// default is for plug-ins whose transfers all happen within operations of this VI.
    fn quiesced(&mut self, port: &Port, since: &mut u64, left: Duration) -> bool {
        let _ = (port, since, left);
        true
    }
}

/// Writes name and host address of a device, and the bytes of them that fit.
pub fn describe(info: &mut vipl_nic_info, name: &str, address: &[u8]) {
    // SAFETY: the array has 64 bytes.
    unsafe { give(name, info.name.as_mut_ptr()) };
    let bytes = address.len().min(VIPL_ADDRESS_MAX);
    info.address[..bytes].copy_from_slice(&address[..bytes]);
    info.address_len = bytes as u16;
}

/// The data symbol of a provider.
pub const fn table<P: Provider>() -> vipl_plugin {
    vipl_plugin {
        magic: VIPL_PLUGIN_MAGIC,
        size: size_of::<vipl_plugin>() as u32,
        abi_major: VIPL_PLUGIN_ABI_MAJOR,
        abi_minor: VIPL_PLUGIN_ABI_MINOR,
        fingerprint: VIPL_PLUGIN_FINGERPRINT,
        kind: VIPL_KIND_PROVIDER,
        reserved: 0,
        name: P::NAME.as_ptr(),
        version: P::VERSION.as_ptr(),
        required: 0,
        optional: 0,
        init: Some(init::<P>),
        settings: P::SETTINGS.as_ptr(),
        setting_count: P::SETTINGS.len() as u32,
        reserved_2: 0,
    }
}

unsafe extern "C" fn init<P: Provider>(host: *const vipl_host, out: *mut vipl_provider) -> c_int {
    // SAFETY: the host's table lives as long as the process, and starts with its size.
    if unsafe { (*host).size } < size_of::<vipl_host>() {
        return VIPL_E_NOT_SUPPORTED;
    }
    // SAFETY: as above.
    let status = unsafe { Host::set(host) };
    if status != VIPL_OK {
        return status;
    }
    // What is behind descriptor 2 may be a file of the application: the host knows.
    std::panic::set_hook(Box::new(|panic| {
        Host::get().log(VIPL_LOG_ERROR, &panic.to_string());
    }));
    let ops = vipl_provider {
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
        ready: P::Nic::READY.then_some(ready::<P>),
        watch: P::Nic::READY.then_some(watch::<P>),
        arm: P::Nic::SLEEP.then_some(arm::<P>),
        sleep: P::Nic::SLEEP.then_some(sleep::<P>),
        wake: P::Nic::SLEEP.then_some(wake::<P>),
        quiesced: Some(quiesced::<P>),
        region_add: P::Nic::wants_regions().then_some(region_add::<P>),
        region_remove: P::Nic::wants_regions().then_some(region_remove::<P>),
    };
    // SAFETY: the host gave room for as much as its own size says, which is the first word.
    unsafe {
        let room = (*out).size.min(size_of::<vipl_provider>());
        std::ptr::copy_nonoverlapping((&raw const ops).cast::<u8>(), out.cast(), room);
    }
    VIPL_OK
}

/// Runs an operation; a panic is a bug of the plug-in and must not cross the boundary.
#[inline(always)]
fn contained<R>(default: R, body: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(_) => {
            Host::get().log(
                VIPL_LOG_ERROR,
                "a bug in a plug-in was caught; please report it",
            );
            default
        }
    }
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
    contained(VIPL_E_RESOURCE, || unsafe {
        if lacks_memory("a NIC") {
            return VIPL_E_RESOURCE;
        }
        vipl_sys::thread::touch_data();
        let mut whole = whole(info, (*info).size);
        let opened = P::open(text(argument), nic, &mut whole);
        let known = (*info).size.min(size_of::<vipl_nic_info>());
        std::ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), info.cast(), known);
        match opened {
            Ok(made) => {
                (*nic).context = Box::into_raw(Box::new(made)).cast::<c_void>();
                VIPL_OK
            }
            Err(status) => status.code(),
        }
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

unsafe extern "C" fn ready<P: Provider>(nic: *const vipl_nic, indices: *mut u32, room: u32) -> u32 {
    // SAFETY: see above.
    contained(0, || unsafe {
        let room = std::slice::from_raw_parts_mut(indices, room as usize);
        nic_of::<P>(nic).ready(room) as u32
    })
}

unsafe extern "C" fn watch<P: Provider>(vi: *mut vipl_vi, on: bool) {
    // SAFETY: see above.
    let (own, _, _) = unsafe { parts::<P>(vi) };
    contained((), || own.watch(on));
}

unsafe extern "C" fn arm<P: Provider>(nic: *const vipl_nic) -> u32 {
    // SAFETY: see above.
    contained(0, || unsafe { nic_of::<P>(nic) }.arm())
}

unsafe extern "C" fn sleep<P: Provider>(nic: *const vipl_nic, epoch: u32, timeout_ns: u64) {
    // SAFETY: see above.
    contained((), || unsafe { nic_of::<P>(nic) }.sleep(epoch, timeout_ns));
}

unsafe extern "C" fn wake<P: Provider>(nic: *const vipl_nic) {
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

unsafe extern "C" fn region_add<P: Provider>(
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

unsafe extern "C" fn region_remove<P: Provider>(nic: *const vipl_nic, handle: u32) {
    // SAFETY: see above.
    contained((), || unsafe { nic_of::<P>(nic) }.region_remove(handle));
}
