//! A call on its way through the layers (see `crate::plugin::layers`).
//!
//! ```text
//!   entry point ─▶ before of 1 ─▶ before of 2 ─▶ the library's part ─▶ after of 2 ─▶ after of 1 ─▶ application
//!                                     └── answers itself: after of 1 ─▶ application
//! ```
//!
//! Layers are no frames on the stack while the library works: a thread that waits may be cancelled, and is unwound past
//! them (decision 76).

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use vipl_abi::{VIP_ERROR_DESCRIPTOR, VIP_NIC_HANDLE, VIP_RETURN, VIP_VI_HANDLE};
use vipl_plugin_abi::*;

use crate::plugin::layers::{LAYERS_MAX, Layer, Layers};
use crate::process::{self, Ends};
use crate::watch;

/// Loads the layers at the first call of the process.
pub(crate) fn load(host: &'static vipl_layer_host) {
    let process = process::get();
    process.layers.get_or_init(|| {
        let layers = Arc::new(Layers::load(&process.settings, host));
        if !layers.list().is_empty() {
            let ends: std::sync::Weak<dyn Ends> = Arc::<Layers>::downgrade(&layers);
            process.notify_of_end(ends);
            watch::turn_on();
        }
        layers
    });
}

impl Ends for Layers {
    fn process_ends(&self) {
        for end in self.list().iter().rev().filter_map(|layer| layer.ops.end) {
            // SAFETY: an operation of the layer, called as the interface says.
            unsafe { end() };
        }
    }
}

fn list() -> &'static [Layer] {
    let layers = process::get().layers.get();
    layers.map_or(&[], |layers| layers.list())
}

/// One call, between `begin` and `end`.
pub struct Passing {
    call: vipl_call,
    locals: [[u64; VIPL_LAYER_WORDS]; LAYERS_MAX],
    layers: &'static [Layer],
}

impl Passing {
    /// Shows a call to the layers, the outermost one first; returns the answer of the one that gives one. `None`: there
    /// are no layers.
    #[inline]
    pub fn begin(
        function: u32,
        arguments: impl Iterator<Item = u64>,
        caller: usize,
    ) -> Option<(Passing, Option<VIP_RETURN>)> {
        let layers = list();
        if layers.is_empty() {
            return None;
        }
        let mut call = vipl_call {
            size: size_of::<vipl_call>(),
            function,
            argument_count: 0,
            arguments: [0; VIPL_CALL_ARGUMENTS],
            name: function_name(function).as_ptr().cast::<c_char>(),
            caller: std::ptr::without_provenance::<c_void>(caller),
        };
        for (place, argument) in call.arguments.iter_mut().zip(arguments) {
            *place = argument;
            call.argument_count += 1;
        }
        let mut passing = Passing {
            call,
            locals: [[0; VIPL_LAYER_WORDS]; LAYERS_MAX],
            layers,
        };
        let answer = passing.before();
        Some((passing, answer))
    }

    fn before(&mut self) -> Option<VIP_RETURN> {
        for (place, layer) in self.layers.iter().enumerate() {
            let Some(before) = layer.ops.before else {
                continue;
            };
            let mut result = 0;
            // SAFETY: an operation of the layer, called as the interface says.
            if unsafe {
                before(
                    &raw const self.call,
                    &raw mut self.locals[place],
                    &raw mut result,
                )
            } {
                // Those behind it have not seen the call.
                self.layers = &self.layers[..place];
                return Some(VIP_RETURN::of(result).unwrap_or(VIP_RETURN::VIP_ERROR_RESOURCE));
            }
        }
        None
    }

    /// Tells the layers how the call has ended, the innermost one first.
    #[inline]
    pub fn end(mut self, result: VIP_RETURN) {
        self.after(result as c_int);
    }

    fn after(&mut self, result: c_int) {
        for (place, layer) in std::mem::take(&mut self.layers).iter().enumerate().rev() {
            if let Some(after) = layer.ops.after {
                // SAFETY: as above.
                unsafe { after(&raw const self.call, &raw mut self.locals[place], result) };
            }
        }
    }
}

/// A call without an end: its thread was cancelled.
impl Drop for Passing {
    fn drop(&mut self) {
        self.after(VIPL_CALL_LEFT);
    }
}

fn event(event: &vipl_event) {
    for layer in list() {
        if let Some(operation) = layer.ops.event {
            // SAFETY: an operation of the layer, called as the interface says.
            unsafe { operation(event) };
        }
    }
}

/// Shows an asynchronous error to the layers.
pub(crate) fn error(error: &VIP_ERROR_DESCRIPTOR) {
    if watch::on() {
        event(&vipl_event {
            size: size_of::<vipl_event>(),
            kind: VIPL_EVENT_ERROR,
            code: error.ErrorCode as c_int,
            nic: error.NicHandle,
            vi: error.ViHandle,
            descriptor: error.DescriptorPtr,
        });
    }
}

/// Shows a call of a notify handler to the layers.
pub(crate) fn handler(nic: VIP_NIC_HANDLE, vi: VIP_VI_HANDLE, code: c_int, descriptor: usize) {
    if watch::on() {
        event(&vipl_event {
            size: size_of::<vipl_event>(),
            kind: VIPL_EVENT_HANDLER,
            code,
            nic,
            vi,
            descriptor: std::ptr::with_exposed_provenance_mut(descriptor),
        });
    }
}
