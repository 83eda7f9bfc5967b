//! The C entry points of VIPL: what `libvipl.so.1` exports, and nothing else.
//!
//! Each entry point has three steps: it checks the pointers, `vipl-core` resolves the handles and does the
//! work, and the result is converted into a `VIP_RETURN`. There is one file per group of functions, in the
//! order of the specification (§3), whose text is the contract of each function. No function of this library
//! calls another one by its exported name, so an application may define a symbol of the same name.
//!
//! Every function may be called from every thread; none is async-signal-safe (spec §3.0, R4 and R10).

#![allow(non_snake_case)]
// Public items here are public to C.
#![allow(unreachable_pub)]
// The contract of every entry point is its section of the specification.
#![allow(clippy::missing_safety_doc)]

/// The only action before the first call (decision 77): descriptor 2 is examined, because the program may
/// close it, or may have been started without it, and open its own file under that number.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = vipl_sys::stderr::remember;

mod connection;
mod cq;
mod edge;
mod error;
mod ext;
mod mem;
mod nameservice;
mod nic;
mod queue;
mod vi;
