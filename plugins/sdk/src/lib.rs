//! The interface of plug-ins for authors in Rust.
//!
//! A plug-in implements three traits, one per object: [`Provider`] (the plug-in itself), [`Nic`] (one
//! opening of a device) and [`Vi`] (its part of a VI), and names itself with [`plugin!`]. The macro makes
//! the C table and the data symbol; every operation is wrapped so that a panic stays inside. The host
//! holds the VI's lock during every operation of a [`Vi`], which is why they take `&mut self`.
//!
//! [`Port`] is the plug-in's view of the host's VI: queues, attributes, completions and errors.
//! [`descriptor`] walks descriptors and [`region`] checks memory; both read the application's memory through
//! `vipl-guard`, so that a bad address causes an error and no crash. [`settings`] declares and reads settings.
//! [`shm`], [`futex`] and [`thread`] wrap system calls for a library inside an application's process. The module
//! `shim` makes the C table of a plug-in from its traits.

pub mod layer;
pub mod settings;
mod shim;
#[cfg(feature = "testing")]
pub mod testing;
mod traits;

pub use shim::describe;
#[doc(hidden)]
pub use shim::{capability, description, init, operations};
pub use traits::{Nic, OwnTable, Provider, Ready, Regions, Sleep, Vi};
pub use vipl_guard as guard;
pub use vipl_plugin_abi as abi;
pub use vipl_rules::host::{Host, Link, NicHandle, Poll, Status};
pub use vipl_rules::port::{Entry, Port, Queue, Room, Source};
pub use vipl_rules::{host_table, kit, posted as descriptor, refusal, region, words};
pub use vipl_sys::{futex, shm, thread};

/// The version of the crate that uses it, for [`Provider::VERSION`] and [`layer::Layer::VERSION`].
#[macro_export]
macro_rules! version {
    () => {
        match ::std::ffi::CStr::from_bytes_with_nul(
            concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes(),
        ) {
            Ok(version) => version,
            Err(_) => c"",
        }
    };
}

/// Makes the symbol `vipl_plugin_v1` for a [`Provider`]. Behind the colon stand the capabilities of its NIC, which are
/// the names of their traits: [`Ready`], [`Sleep`], [`Regions`], [`OwnTable`].
///
/// ```
/// # use std::ffi::CStr;
/// # use vipl_plugin_sdk::{abi::*, *};
/// # pub struct Quiet;
/// # impl Provider for Quiet {
/// #     const NAME: &'static CStr = c"quiet";
/// #     const VERSION: &'static CStr = c"1";
/// #     type Nic = Quiet;
/// #     fn devices() -> Vec<String> { Vec::new() }
/// #     fn open(_: &str, _: NicHandle, _: &mut vipl_nic_info) -> Result<Quiet, Status> { Ok(Quiet) }
/// # }
/// # impl Nic for Quiet { type Vi = Quiet; }
/// # impl Vi for Quiet {
/// #     type Nic = Quiet;
/// #     fn new(_: &Quiet, _: &Port) -> Result<Quiet, Status> { Ok(Quiet) }
/// #     fn attach(&mut self, _: &Quiet, _: &Port, _: &vipl_connection) -> Result<(), Status> { Ok(()) }
/// #     fn detach(&mut self, _: &Quiet, _: &Port) {}
/// #     fn post_send(&mut self, _: &Quiet, _: &Port) {}
/// #     fn progress(&mut self, _: &Quiet, _: &Port) {}
/// # }
/// impl Sleep for Quiet {
///     fn arm(&self) -> u32 { 0 }
///     fn sleep(&self, _epoch: u32, _timeout_ns: u64) {}
///     fn wake(&self) {}
/// }
/// vipl_plugin_sdk::plugin!(Quiet: Sleep);
/// assert!(testing::Plugin::load(&vipl_plugin_v1).operations().wake.is_some());
/// ```
///
/// A method that is missing does not compile, and neither does a capability without its trait.
///
/// ```compile_fail
/// # use std::ffi::CStr;
/// # use vipl_plugin_sdk::{abi::*, *};
/// # pub struct Quiet;
/// # impl Provider for Quiet {
/// #     const NAME: &'static CStr = c"quiet";
/// #     const VERSION: &'static CStr = c"1";
/// #     type Nic = Quiet;
/// #     fn devices() -> Vec<String> { Vec::new() }
/// #     fn open(_: &str, _: NicHandle, _: &mut vipl_nic_info) -> Result<Quiet, Status> { Ok(Quiet) }
/// # }
/// # impl Nic for Quiet { type Vi = Quiet; }
/// # impl Vi for Quiet {
/// #     type Nic = Quiet;
/// #     fn new(_: &Quiet, _: &Port) -> Result<Quiet, Status> { Ok(Quiet) }
/// #     fn attach(&mut self, _: &Quiet, _: &Port, _: &vipl_connection) -> Result<(), Status> { Ok(()) }
/// #     fn detach(&mut self, _: &Quiet, _: &Port) {}
/// #     fn post_send(&mut self, _: &Quiet, _: &Port) {}
/// #     fn progress(&mut self, _: &Quiet, _: &Port) {}
/// # }
/// impl Sleep for Quiet {
///     fn arm(&self) -> u32 { 0 }
///     fn sleep(&self, _epoch: u32, _timeout_ns: u64) {}
/// }
/// vipl_plugin_sdk::plugin!(Quiet: Sleep);
/// ```
///
/// ```compile_fail
/// # use std::ffi::CStr;
/// # use vipl_plugin_sdk::{abi::*, *};
/// # pub struct Quiet;
/// # impl Provider for Quiet {
/// #     const NAME: &'static CStr = c"quiet";
/// #     const VERSION: &'static CStr = c"1";
/// #     type Nic = Quiet;
/// #     fn devices() -> Vec<String> { Vec::new() }
/// #     fn open(_: &str, _: NicHandle, _: &mut vipl_nic_info) -> Result<Quiet, Status> { Ok(Quiet) }
/// # }
/// # impl Nic for Quiet { type Vi = Quiet; }
/// # impl Vi for Quiet {
/// #     type Nic = Quiet;
/// #     fn new(_: &Quiet, _: &Port) -> Result<Quiet, Status> { Ok(Quiet) }
/// #     fn attach(&mut self, _: &Quiet, _: &Port, _: &vipl_connection) -> Result<(), Status> { Ok(()) }
/// #     fn detach(&mut self, _: &Quiet, _: &Port) {}
/// #     fn post_send(&mut self, _: &Quiet, _: &Port) {}
/// #     fn progress(&mut self, _: &Quiet, _: &Port) {}
/// # }
/// vipl_plugin_sdk::plugin!(Quiet: Sleep);
/// ```
#[macro_export]
macro_rules! plugin {
    ($provider:ty $(: $($capability:ident),+)?) => {
        /// What the library finds in this file.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static vipl_plugin_v1: $crate::abi::vipl_plugin = {
            const OPERATIONS: $crate::abi::vipl_provider = {
                let operations = $crate::operations::<$provider>();
                $($(let operations = $crate::capability::$capability::<$provider>(operations);)+)?
                operations
            };

            unsafe extern "C" fn init(
                host: *const $crate::abi::vipl_host,
                out: *mut $crate::abi::vipl_provider,
            ) -> ::core::ffi::c_int {
                // SAFETY: the host calls it as the interface says.
                unsafe { $crate::init(host, out, &OPERATIONS) }
            }

            $crate::description::<$provider>(init)
        };
    };
}
