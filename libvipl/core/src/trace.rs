//! Calls of the application as lines of the log: every call at level `trace`, failed ones at `warn` or `info`.
//!
//! An entry point describes its call by the names and values of its arguments ([`Call`]); this module decides
//! what is logged. Layers see the same description. While calls are not watched, an entry point costs one load and one
//! branch ([`crate::watch`]).

use std::cell::RefCell;
use std::fmt::Write;

use log::Level;
use vipl_abi::VIP_RETURN;

use crate::layers::{self, Passing};
use crate::logger;
use crate::plugin::layer_host::LAYER_HOST;
use crate::process;

mod explain;
pub(crate) mod peek;
mod show;

pub use show::Argument;

/// Subsystem of all lines about calls.
const TARGET: &str = "call";
/// Maximum number of different polls that are merged at a time.
const POLLS_MAX: usize = 16;

/// Most arguments of a function.
const ARGUMENTS_MAX: usize = 6;

/// One call of the application, described by its entry point. It is made at each call that is watched, so it takes
/// nothing from the heap.
pub struct Call {
    /// The function.
    name: &'static str,
    /// The same for layers, `VIPL_CALL_*`.
    function: u32,
    arguments: [(&'static str, Argument); ARGUMENTS_MAX],
    inputs: u8,
    outputs: u8,
}

impl Call {
    /// A call of this function, with the arguments that it reads and those that it writes to.
    #[inline(always)]
    pub fn new<const I: usize, const O: usize>(
        name: &'static str,
        function: u32,
        inputs: [(&'static str, Argument); I],
        outputs: [(&'static str, Argument); O],
    ) -> Call {
        const { assert!(I + O <= ARGUMENTS_MAX) };
        let mut arguments = [("", Argument::Number(0)); ARGUMENTS_MAX];
        arguments[..I].copy_from_slice(&inputs);
        arguments[I..I + O].copy_from_slice(&outputs);
        Call {
            name,
            function,
            arguments,
            inputs: I as u8,
            outputs: O as u8,
        }
    }

    /// The function.
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn inputs(&self) -> &[(&'static str, Argument)] {
        &self.arguments[..usize::from(self.inputs)]
    }

    fn outputs(&self) -> &[(&'static str, Argument)] {
        &self.arguments[usize::from(self.inputs)..][..usize::from(self.outputs)]
    }

    /// `VipDestroyVi(ViHandle 0x1234)`, with the targets of the inputs.
    fn text(&self) -> String {
        let mut text = format!("{}(", self.name);
        for (place, (name, argument)) in self.inputs().iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}{name} {}", argument.input(name));
        }
        text.push(')');
        text
    }

    /// The values written by the function.
    fn written(&self) -> String {
        let mut text = String::new();
        for (name, argument) in self.outputs() {
            let _ = write!(text, ", {name} {}", argument.output());
        }
        text
    }

    /// Whether its duration depends on the peer.
    fn waits(&self) -> bool {
        self.name.ends_with("Wait") || self.name == "VipConnectRequest"
    }
}

/// Calls that are repeated until they succeed.
fn is_poll(result: VIP_RETURN) -> bool {
    matches!(result, VIP_RETURN::VIP_NOT_DONE | VIP_RETURN::VIP_TIMEOUT)
}

/// Polls of one thread without a result, and the number of repetitions of each since its line.
#[derive(Default)]
struct Folded(Vec<(String, u64)>);

impl Folded {
    /// Counts a poll; false if it has no line yet.
    fn count(&mut self, line: &str) -> bool {
        match self.0.iter_mut().find(|(known, _)| known == line) {
            Some((_, times)) => {
                *times += 1;
                true
            }
            None => {
                if self.0.len() >= POLLS_MAX {
                    self.report();
                }
                self.0.push((line.to_owned(), 0));
                false
            }
        }
    }

    /// Logs how often polls were repeated, and resets the counts.
    fn report(&mut self) {
        for (line, times) in self.0.drain(..).filter(|(_, times)| *times > 0) {
            log::trace!(target: TARGET, "{line}, {times} times more");
        }
    }
}

impl Drop for Folded {
    fn drop(&mut self) {
        self.report();
    }
}

thread_local! {
    static FOLDED: RefCell<Folded> = RefCell::default();
}

/// Begins a call off the data path. The first one of a process reads the settings and loads the layers.
pub fn begin() {
    layers::load(&LAYER_HOST);
    logger::reset_logged();
}

/// A traced call.
struct Traced(Option<(Call, String)>);

impl Traced {
    /// Records the arguments before the function uses them.
    fn new(call: Call) -> Traced {
        if !log::log_enabled!(target: TARGET, Level::Trace) {
            return Traced(None);
        }
        vipl_guard::install();
        let text = call.text();
        if call.waits() {
            log::trace!(target: TARGET, "{text} ...");
        }
        Traced(Some((call, text)))
    }

    /// Logs it with its result.
    fn end(self, result: VIP_RETURN) {
        let Some((call, text)) = self.0 else { return };
        let good = matches!(
            result,
            VIP_RETURN::VIP_SUCCESS | VIP_RETURN::VIP_DESCRIPTOR_ERROR
        );
        let written = if good { call.written() } else { String::new() };
        let line = format!("{text} = {result:?}{written}");
        let _ = FOLDED.try_with(|folded| {
            let mut folded = folded.borrow_mut();
            if is_poll(result) {
                if folded.count(&line) {
                    return;
                }
            } else {
                folded.report();
            }
            log::trace!(target: TARGET, "{line}");
        });
    }
}

/// A watched call: a line of the log, and its way through the layers.
pub struct Watched {
    line: Traced,
    layers: Option<Passing>,
}

impl Watched {
    /// Shows a call to whom it may concern before the function does anything. `caller` is where the application goes on
    /// after it, or 0. The second value is the result if a layer answers the call.
    pub fn new(describe: impl Fn() -> Call, caller: usize) -> (Watched, Option<VIP_RETURN>) {
        let call = describe();
        let all = call.inputs().iter().chain(call.outputs());
        let bits = all.map(|(_, argument)| argument.bits());
        let (layers, answer) = match Passing::begin(call.function, bits, caller) {
            Some((passing, answer)) => (Some(passing), answer),
            None => (None, None),
        };
        let line = Traced::new(call);
        (Watched { line, layers }, answer)
    }

    /// The call has ended.
    pub fn end(self, result: VIP_RETURN) {
        if let Some(layers) = self.layers {
            layers.end(result);
        }
        self.line.end(result);
    }
}

/// Logs a failed call and the reason in one line, unless the function that detected the error has logged one.
#[cold]
pub fn failed(call: &Call, result: VIP_RETURN) {
    process::get();
    explain::explain(call, result);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_polls_are_counted() {
        let mut folded = Folded::default();
        assert!(!folded.count("a"));
        assert!(folded.count("a"));
        assert!(!folded.count("b"));
        assert!(folded.count("a"));
        assert_eq!(folded.0[0], ("a".to_owned(), 2));
        folded.report();
        assert!(!folded.count("a"), "a line again");
    }
}
