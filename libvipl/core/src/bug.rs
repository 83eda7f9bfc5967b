//! Panics are bugs of the library. A panic that reaches an entry point is logged, and the application
//! continues.

use std::any::Any;

use vipl_abi::VIP_RETURN;

/// Logs a panic that an entry point caught. With `VIPL_ON_BUG=abort` the process ends here.
#[cold]
pub fn caught(panic: &(dyn Any + Send)) -> VIP_RETURN {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    log::error!(target: "core", "a bug in this library: {text}; please report it");
    if crate::process::get().settings.on_bug_abort() {
        std::process::abort();
    }
    VIP_RETURN::VIP_ERROR_RESOURCE
}
