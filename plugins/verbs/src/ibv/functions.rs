//! The functions of `libibverbs.so.1`, each by its name and version. The library is opened with the first NIC, so that
//! programs on hosts without RDMA never load it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::*;

macro_rules! functions {
    ($($name:ident: $version:literal = fn($($argument:ty),*) -> $result:ty;)*) => {
        /// Those that every version since IBVERBS_1.11 has (rdma-core 32, 2020).
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Whether the device promises that data becomes visible in order; since IBVERBS_1.14.
            pub(crate) ibv_query_qp_data_in_order: Option<unsafe extern "C" fn(*mut ibv_qp, u32, u32) -> c_int>,
        }

        impl Functions {
            /// # Safety
            /// `library` is `libibverbs.so.1`.
            unsafe fn find(library: *mut c_void) -> Result<Functions, String> {
                // SAFETY: the types are those of the header.
                unsafe {
                    Ok(Functions {
                        $($name: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(
                            symbol(library, concat!(stringify!($name), "\0"), concat!($version, "\0"))
                                .ok_or_else(|| format!("it has no {} of version {}", stringify!($name), $version))?,
                        ),)*
                        ibv_query_qp_data_in_order: symbol(library, "ibv_query_qp_data_in_order\0", "IBVERBS_1.14\0")
                            .map(|found| std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut ibv_qp, u32, u32) -> c_int>(found)),
                    })
                }
            }
        }
    };
}

functions! {
    ibv_get_device_list: "IBVERBS_1.1" = fn(*mut c_int) -> *mut *mut c_void;
    ibv_free_device_list: "IBVERBS_1.1" = fn(*mut *mut c_void) -> ();
    ibv_get_device_name: "IBVERBS_1.1" = fn(*mut c_void) -> *const c_char;
    ibv_open_device: "IBVERBS_1.1" = fn(*mut c_void) -> *mut ibv_context;
    ibv_close_device: "IBVERBS_1.1" = fn(*mut ibv_context) -> c_int;
    ibv_query_device: "IBVERBS_1.1" = fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: "IBVERBS_1.1" = fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    _ibv_query_gid_table: "IBVERBS_1.11" = fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    ibv_get_async_event: "IBVERBS_1.1" = fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event: "IBVERBS_1.1" = fn(*mut ibv_async_event) -> ();
    ibv_alloc_pd: "IBVERBS_1.1" = fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: "IBVERBS_1.1" = fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: "IBVERBS_1.1" = fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: "IBVERBS_1.1" = fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: "IBVERBS_1.0" = fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: "IBVERBS_1.0" = fn(*mut ibv_comp_channel) -> c_int;
    ibv_get_cq_event: "IBVERBS_1.1" = fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: "IBVERBS_1.1" = fn(*mut ibv_cq, u32) -> ();
    ibv_create_cq: "IBVERBS_1.1" = fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq: "IBVERBS_1.1" = fn(*mut ibv_cq) -> c_int;
    ibv_create_qp: "IBVERBS_1.1" = fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: "IBVERBS_1.1" = fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp: "IBVERBS_1.1" = fn(*mut ibv_qp) -> c_int;
}

/// # Safety
/// `library` is open; both texts end with NUL.
unsafe fn symbol(library: *mut c_void, name: &str, version: &str) -> Option<*mut c_void> {
    // SAFETY: as asked of the caller.
    let found = unsafe { libc::dlvsym(library, name.as_ptr().cast(), version.as_ptr().cast()) };
    (!found.is_null()).then_some(found)
}

/// What the system's loader says about its last failure.
fn loader_says() -> String {
    // SAFETY: NULL, or a text that is valid until the next call of this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "no reason is given".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

impl Functions {
    /// Those of the library, which the first call opens for the rest of the process. A failure is tried again: the
    /// library may have been installed.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn get() -> Result<&'static Functions, String> {
        static FOUND: OnceLock<Functions> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Ok(found);
        }
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: the library's constructors only set up its own state.
        let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), flags) };
        if library.is_null() {
            return Err(loader_says());
        }
        // SAFETY: that library.
        let functions = unsafe { Functions::find(library) }?;
        Ok(FOUND.get_or_init(|| functions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_has_them_all() {
        match Functions::get() {
            Ok(functions) => {
                let again = Functions::get().expect("open already");
                assert!(std::ptr::eq(functions, again));
            }
            Err(why) if why.contains("cannot open shared object") => println!("SKIP {why}"),
            Err(why) => panic!("{why}"),
        }
    }
}
