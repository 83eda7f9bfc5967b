//! Layers in Rust: plug-ins that see the calls of the application ([`Layer`]), named by [`layer!`](crate::layer!).
//!
//! ```
//! # use std::ffi::CStr;
//! # use std::sync::atomic::{AtomicU64, Ordering};
//! # use vipl_plugin_sdk::Status;
//! # use vipl_plugin_sdk::layer::{Call, Host, Layer, Local};
//! /// Counts sends.
//! pub struct Count(AtomicU64);
//!
//! impl Layer for Count {
//!     const NAME: &'static CStr = c"count";
//!     const VERSION: &'static CStr = c"1";
//!
//!     fn new(_host: Host) -> Result<Count, Status> {
//!         Ok(Count(AtomicU64::new(0)))
//!     }
//!
//!     fn after(&self, call: &Call<'_>, _local: &mut Local, result: vipl_plugin_sdk::layer::Outcome) {
//!         if call.name() == c"VipPostSend" && result.is_success() {
//!             self.0.fetch_add(1, Ordering::Relaxed);
//!         }
//!     }
//! }
//! vipl_plugin_sdk::layer!(Count);
//! ```

use std::ffi::{CStr, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

use vipl_abi::{VIP_RETURN, VIP_VI_HANDLE};
use vipl_plugin_abi::*;
use vipl_rules::Status;

use crate::settings::Setting;
use crate::shim;

mod peek;
mod signature;

pub use peek::{Plain, Posted, Segment, bytes, net_address, posted, read, text};
pub use signature::{Argument, arguments};

/// What a layer keeps of a call between `before` and `after`; zero at first.
pub type Local = [u64; VIPL_LAYER_WORDS];

/// A layer. Its methods run on any thread of the application, several at once. Memory of the application is read with
/// [`read`], [`bytes`] and [`posted`], which survive a bad address. A panic stays inside, with a line in the log.
pub trait Layer: Sized + Sync + Send + 'static {
    /// Name; the file is `libvipl_layer_NAME.so`.
    const NAME: &'static CStr;
    /// Version, for people.
    const VERSION: &'static CStr;
    /// Settings of the layer, made with the functions of [`settings`](crate::settings).
    const SETTINGS: &'static [Setting] = &[];

    /// The process's layer; in a child made by `fork` a new one, and the parent's is left as it is.
    ///
    /// # Errors
    /// The layer is left out; the log should say why.
    fn new(host: Host) -> Result<Self, Status>;

    /// A call begins. A result is the answer to the call, which then goes no further.
    fn before(&self, call: &Call<'_>, local: &mut Local) -> Option<VIP_RETURN> {
        let _ = (call, local);
        None
    }

    /// A call ends.
    fn after(&self, call: &Call<'_>, local: &mut Local, result: Outcome) {
        let _ = (call, local, result);
    }

    /// Something happens without a call. The library may hold locks: do not block, and of the host call `log` only.
    fn event(&self, event: &vipl_event) {
        let _ = event;
    }

    /// The process ends. Do not wait for a lock: its owner may have stopped anywhere.
    fn process_ends(&self) {}
}

/// How a call ended: with a `VIP_RETURN`, or `None` if its thread was cancelled in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome(pub Option<VIP_RETURN>);

impl Outcome {
    /// VIP_SUCCESS.
    pub fn is_success(self) -> bool {
        self.0 == Some(VIP_RETURN::VIP_SUCCESS)
    }

    /// The function has written to its outputs: VIP_SUCCESS, or a descriptor that completed with an error.
    pub fn has_outputs(self) -> bool {
        matches!(
            self.0,
            Some(VIP_RETURN::VIP_SUCCESS | VIP_RETURN::VIP_DESCRIPTOR_ERROR)
        )
    }
}

/// One call of the application.
#[derive(Clone, Copy)]
pub struct Call<'a>(&'a vipl_call);

impl Call<'_> {
    /// The function, `VIPL_CALL_*`.
    #[inline(always)]
    pub fn function(&self) -> u32 {
        self.0.function
    }

    /// Its name; an empty one for a function that this layer does not know.
    pub fn name(&self) -> &'static CStr {
        function_name(self.0.function)
    }

    /// The bits of the argument with this number, see `vipl_call.arguments`; 0 if it has fewer.
    #[inline(always)]
    pub fn argument(&self, number: usize) -> u64 {
        self.0.arguments.get(number).copied().unwrap_or(0)
    }

    /// The same as a pointer of the application, which may be bad.
    #[inline(always)]
    pub fn pointer<T>(&self, number: usize) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.argument(number) as usize)
    }

    /// Where the application goes on after the call, if the library knows.
    pub fn caller(&self) -> Option<usize> {
        (!self.0.caller.is_null()).then(|| self.0.caller.addr())
    }
}

/// The connection of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The same number at both sides.
    pub id: u64,
    /// 0 at one side, 1 at the other.
    pub side: u32,
    /// One `VIP_SERVICE_*` bit.
    pub reliability: u16,
}

/// The library, for a layer.
#[derive(Clone, Copy)]
pub struct Host(&'static vipl_layer_host);

impl Host {
    /// Writes a line to the log; `level` is a `VIPL_LOG_*`.
    pub fn log(self, level: c_int, text: &str) {
        crate::Host::get().log(level, text);
    }

    /// A setting of this layer, or of the library.
    pub fn value(self, layer: &CStr, key: &CStr) -> Option<String> {
        crate::Host::get().setting(layer, key)
    }

    /// The connection of the VI with this handle, if it has one. Not within `event`.
    pub fn connection(self, vi: u64) -> Option<Connection> {
        let mut found = vipl_layer_connection {
            size: size_of::<vipl_layer_connection>(),
            id: 0,
            side: 0,
            reliability: 0,
        };
        // SAFETY: any handle, and room of the stated size.
        let status = unsafe { (self.0.connection)(handle(vi), &raw mut found) };
        (status == VIPL_OK).then_some(Connection {
            id: found.id,
            side: found.side,
            reliability: found.reliability as u16,
        })
    }

    /// The number of a VI within its NIC handle, which `vipstat` shows. Not within `event`.
    pub fn vi_number(self, vi: u64) -> Option<u32> {
        let mut number = 0;
        // SAFETY: any handle, and room for a number.
        let status = unsafe { (self.0.vi_number)(handle(vi), &raw mut number) };
        (status == VIPL_OK).then_some(number)
    }

    /// Breaks the connection of the VI with this handle by this asynchronous error; false: it is not connected. Not within `event`.
    pub fn fail(self, vi: u64, code: c_int) -> bool {
        // SAFETY: any handle and any number.
        unsafe { (self.0.fail)(handle(vi), code) == VIPL_OK }
    }
}

fn handle(bits: u64) -> VIP_VI_HANDLE {
    std::ptr::with_exposed_provenance_mut(bits as usize)
}

/// The place of a layer's state, for [`layer!`](crate::layer!).
#[doc(hidden)]
pub struct Place<L>(AtomicPtr<L>);

impl<L: Layer> Place<L> {
    #[doc(hidden)]
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Place(AtomicPtr::new(std::ptr::null_mut()))
    }

    fn get(&self) -> Option<&'static L> {
        // SAFETY: NULL, or from a leaked box.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// What `init_layer` does.
    ///
    /// # Safety
    /// The arguments are those of `vipl_plugin.init_layer`.
    #[doc(hidden)]
    pub unsafe fn init(
        &self,
        host: *const vipl_layer_host,
        out: *mut vipl_layer,
        operations: &vipl_layer,
    ) -> c_int {
        // SAFETY: the host's table lives as long as the process, and starts with its size.
        let host = unsafe { &*host };
        if host.size < size_of::<vipl_layer_host>() {
            return VIPL_E_NOT_SUPPORTED;
        }
        // SAFETY: the table for all plug-ins, as above.
        let status = unsafe { shim::meet(host.host) };
        if status != VIPL_OK {
            return status;
        }
        match catch_unwind(AssertUnwindSafe(|| L::new(Host(host)))) {
            // In a child the parent's state is leaked: threads that do not exist here may have left it in any form.
            Ok(Ok(layer)) => self
                .0
                .store(Box::into_raw(Box::new(layer)), Ordering::Release),
            Ok(Err(status)) => return status.code(),
            Err(_) => return VIPL_E_RESOURCE,
        }
        // SAFETY: the host gave room for as much as its own size says.
        unsafe { shim::hand_over(operations, out, (*out).size) };
        VIPL_OK
    }

    /// # Safety
    /// The arguments are those of `vipl_layer.before`.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn before(
        &self,
        call: *const vipl_call,
        local: *mut Local,
        result: *mut c_int,
    ) -> bool {
        let answer = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the host's, during the call.
            unsafe { self.get()?.before(&Call(&*call), &mut *local) }
        }));
        match answer {
            Ok(Some(answer)) => {
                // SAFETY: as above.
                unsafe { *result = answer as c_int };
                true
            }
            _ => false,
        }
    }

    /// # Safety
    /// The arguments are those of `vipl_layer.after`.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn after(&self, call: *const vipl_call, local: *mut Local, result: c_int) {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Some(layer) = self.get() {
                // SAFETY: the host's, during the call.
                unsafe { layer.after(&Call(&*call), &mut *local, Outcome(VIP_RETURN::of(result))) };
            }
        }));
    }

    /// # Safety
    /// The argument is that of `vipl_layer.event`.
    #[doc(hidden)]
    pub unsafe fn event(&self, event: *const vipl_event) {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Some(layer) = self.get() {
                // SAFETY: the host's, during the call.
                layer.event(unsafe { &*event });
            }
        }));
    }

    #[doc(hidden)]
    pub fn end(&self) {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Some(layer) = self.get() {
                layer.process_ends();
            }
        }));
    }
}

type Init = unsafe extern "C" fn(host: *const vipl_layer_host, out: *mut vipl_layer) -> c_int;

/// The data symbol of a layer.
#[doc(hidden)]
pub const fn description<L: Layer>(init: Init) -> vipl_plugin {
    vipl_plugin {
        init_layer: Some(init),
        ..shim::symbol(VIPL_KIND_LAYER, L::NAME, L::VERSION, L::SETTINGS)
    }
}

/// Makes the symbol `vipl_plugin_v1` for a [`Layer`](crate::layer::Layer).
#[macro_export]
macro_rules! layer {
    ($layer:ty) => {
        /// What the library finds in this file.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static vipl_plugin_v1: $crate::abi::vipl_plugin = {
            use ::core::ffi::c_int;
            use $crate::abi::{vipl_call, vipl_event, vipl_layer, vipl_layer_host};
            use $crate::layer::{Local, Place};

            static PLACE: Place<$layer> = Place::new();
            const OPERATIONS: vipl_layer = vipl_layer {
                size: size_of::<vipl_layer>(),
                before: Some(before),
                after: Some(after),
                event: Some(event),
                end: Some(end),
            };

            unsafe extern "C" fn init(host: *const vipl_layer_host, out: *mut vipl_layer) -> c_int {
                // SAFETY: the host calls it as the interface says.
                unsafe { PLACE.init(host, out, &OPERATIONS) }
            }
            unsafe extern "C" fn before(
                call: *const vipl_call,
                local: *mut Local,
                result: *mut c_int,
            ) -> bool {
                // SAFETY: as above.
                unsafe { PLACE.before(call, local, result) }
            }
            unsafe extern "C" fn after(call: *const vipl_call, local: *mut Local, result: c_int) {
                // SAFETY: as above.
                unsafe { PLACE.after(call, local, result) }
            }
            unsafe extern "C" fn event(event: *const vipl_event) {
                // SAFETY: as above.
                unsafe { PLACE.event(event) }
            }
            unsafe extern "C" fn end() {
                PLACE.end()
            }

            $crate::layer::description::<$layer>(init)
        };
    };
}
