//! The C types and constants of VIPL 1.0 (Intel, 2001), exactly as programs were compiled against them.
//!
//! It contains layouts and values only, no code. `headers/vipl.h` is generated from this crate and from the
//! entry points in `libvipl/src`, so names are those of the C header. The `const` assertions at the end pin
//! every size and offset for both the 64-bit and the 32-bit ABI.
//!
//! Enumerations appear only as return values and outputs of the library: a value that comes *from* C
//! is always an integer, because an unknown enum value would be undefined behaviour in Rust.

#![no_std]
#![forbid(unsafe_code)]
#![allow(non_camel_case_types, non_snake_case)]

mod constants;
mod enums;
mod layout;
mod types;

pub use constants::*;
pub use enums::*;
pub use types::*;
