//! One call of the recorded run, made again.

use std::ffi::c_int;
use std::time::Duration;

use vipl_client::raw::Functions;
use vipl_client::raw::abi::*;
use vipl_sys::clock::{self, Instant};

use super::file::Call;
use super::process::{Process, Source};
use given::null;

mod connections;
mod fit;
mod given;
mod names;
mod objects;
mod transfers;

/// Between two polls.
const PAUSE: Duration = Duration::from_micros(20);

/// What came of a call.
pub(super) enum Outcome {
    /// It was not made: the reason.
    Left(&'static str),
    /// It returned this code; and what else is not as it was then.
    Made(c_int, Option<String>),
    /// It has no code; it was made.
    Done,
    /// It returned this code, with another argument than then, which makes no difference to this run: a line about that.
    Changed(c_int, String),
    /// A NIC that was opened then cannot be: its device, and why.
    Unopened(String),
    /// It was not made, since the device does not have what the run needs. No other call is made.
    Unfit(String),
    /// A wait that found nothing then has found something, which is kept for the call that took it then.
    Early,
}

/// What calls need.
pub(super) struct Stage<'a> {
    pub(super) functions: &'a Functions,
    pub(super) device: Option<&'a str>,
    pub(super) patience: Duration,
    /// Whether calls of the run post RDMA Reads.
    pub(super) reads: bool,
    /// Whether messages have the bytes of then.
    pub(super) with_bytes: bool,
    /// The process and NIC at each side of a connection, by its number and the side.
    pub(super) sides: &'a (dyn Fn((u64, u64)) -> Option<(&'a Process, u64)> + Sync),
    /// Whether a host of then was one of the recorded processes'.
    pub(super) is_recorded: &'a (dyn Fn(&[u8]) -> bool + Sync),
}

fn made(code: c_int) -> Outcome {
    Outcome::Made(code, None)
}

fn succeeded(code: c_int) -> bool {
    code == VIP_RETURN::VIP_SUCCESS as c_int
}

/// Calls a function that a library may lack.
macro_rules! optional {
    ($function:expr, $($argument:expr),*) => {
        match $function {
            Some(function) => made(function($($argument),*)),
            None => Outcome::Left("a function that this library does not have"),
        }
    };
}
use optional;

impl Stage<'_> {
    /// Makes a call again.
    pub(super) fn make(&self, process: &Process, call: &Call) -> Outcome {
        if call.result == "left" {
            return Outcome::Left("its thread was cancelled in it, at a moment that no file shows");
        }
        if call.is_beside {
            return Outcome::Left(
                "a wait whose time was up beside another one, which would lose what this one finds",
            );
        }
        // SAFETY: handles of now, or bad ones, which the library checks; pointers to values of these functions, to memory that
        // lives as long as the processes do, or to no memory at all where the program of then gave a bad one.
        unsafe {
            self.object(process, call)
                .or_else(|| self.region(process, call))
                .or_else(|| self.connection(process, call))
                .or_else(|| self.transfer(process, call))
                .or_else(|| self.name(process, call))
        }
        .unwrap_or(Outcome::Left(
            "a function that this vip_replay does not know",
        ))
    }

    /// Repeats a poll until it finds something.
    fn poll(&self, mut one: impl FnMut() -> c_int) -> c_int {
        let limit = Instant::now() + self.patience;
        loop {
            let code = one();
            if code != VIP_RETURN::VIP_NOT_DONE as c_int || Instant::now() >= limit {
                return code;
            }
            clock::sleep(PAUSE);
        }
    }

    fn milliseconds(&self) -> VIP_ULONG {
        self.patience.as_millis() as VIP_ULONG
    }

    /// The time of a request that no peer answered in time: that of then.
    fn as_long_as_then(&self, call: &Call) -> VIP_ULONG {
        self.milliseconds().min(call.number("Timeout") as VIP_ULONG)
    }

    /// Takes something from a source by a function of the time and the place for what it finds. A wait that found nothing then does
    /// not wait, and what it finds now is for the next call that took something.
    fn take(
        &self,
        process: &Process,
        call: &Call,
        one: impl FnOnce(VIP_ULONG, *mut VIP_PVOID) -> c_int,
    ) -> Taken {
        let mut found: VIP_PVOID = null();
        let Some(source) = Source::of(call) else {
            return Taken::Now(one(self.milliseconds(), &raw mut found), found);
        };
        if call.result != "VIP_TIMEOUT" {
            return match process.take(&source) {
                Some((code, found)) => {
                    Taken::Now(code, std::ptr::with_exposed_provenance_mut(found))
                }
                None => Taken::Now(one(self.milliseconds(), &raw mut found), found),
            };
        }
        // One behind it would be found out of its turn.
        if process.keeps(&source) {
            return Taken::Early;
        }
        let code = one(0, &raw mut found);
        if !succeeded(code) && code != VIP_RETURN::VIP_DESCRIPTOR_ERROR as c_int {
            return Taken::Now(code, found);
        }
        process.keep(source, (code, found.expose_provenance()));
        Taken::Early
    }
}

/// What [`Stage::take`] has found.
enum Taken {
    /// A code and an object.
    Now(c_int, VIP_PVOID),
    /// As [`Outcome::Early`].
    Early,
}
