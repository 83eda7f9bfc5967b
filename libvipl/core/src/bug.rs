//! Panics are our own bugs. One that reaches the edge of the library is logged; the application goes on.

use std::any::Any;

use vipl_abi::VIP_RETURN;

/// Panics of this library are written where its log lines are written: what stands behind descriptor 2 may be a file of the
/// application. This is not done in test programs, whose panics are their own.
#[cfg(not(test))]
pub(crate) fn redirect_panics() {
    std::panic::set_hook(Box::new(|info| {
        vipl_sys::stderr::write(format!("vipl: {info}\n").as_bytes());
    }));
}

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
