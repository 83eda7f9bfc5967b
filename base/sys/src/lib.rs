//! What several parts of this project need of Linux, each thing once.
//!
//! The library lives in somebody else's process, and so do the plug-ins; the agent and the device processes
//! do not. All of them share memory, send descriptors, wait and start threads, and do it by the functions of
//! this crate. It has hardly any state and depends on nothing but `libc`.
//!
//! | module | is |
//! | --- | --- |
//! | [`bell`] | waking threads that wait for shared memory; marks of what has something |
//! | [`cancel`] | no thread is cancelled inside the library, but where that leaves nothing behind |
//! | [`clock`] | the clock, sleeping, and times as the kernel takes them |
//! | [`crc`] | the checksum of frames, CRC32C |
//! | [`elf`] | whether a file is a whole shared library |
//! | [`fd`] | descriptors that a process does not expect: never 0 to 2, checked before they are used |
//! | [`mod@file`] | files whose names come from people |
//! | [`fork`] | memory that a fork wipes |
//! | [`futex`] | sleeping on a word of shared memory |
//! | [`idle`] | whether a thread that polls yields or sleeps |
//! | [`left`] | whether the program has a thread left |
//! | [`membarrier`] | fences that one thread executes for all others |
//! | [`mutex`] | mutexes that survive a fork, and that ThreadSanitizer understands |
//! | [`process_vm`] | copies between the memories of two processes |
//! | [`random`] | pseudo-random numbers from a seed |
//! | [`reserve`] | a heap that has something left when the system's has not |
//! | [`seqpacket`] | packets with descriptors |
//! | [`shm`] | sealed memfds and their mappings |
//! | [`stderr`] | lines for the standard error of somebody else's process |
//! | [`text`] | text of others, without control characters |
//! | [`thread`] | threads that take none of the application's signals |
//! | [`wrap`] | where counters begin that wrap |
//! | [`uncancelled`] | system calls that are no cancellation points |

#[cfg(not(target_os = "linux"))]
compile_error!("VIPL needs memfd, futex, membarrier and process_vm_*: Linux");

pub mod bell;
pub mod cancel;
pub mod clock;
pub mod crc;
pub mod elf;
pub mod fd;
pub mod file;
pub mod fork;
pub mod futex;
pub mod idle;
pub mod left;
pub mod membarrier;
pub mod mutex;
pub mod process_vm;
pub mod random;
pub mod reserve;
pub mod seqpacket;
pub mod shm;
pub mod stderr;
pub mod text;
pub mod thread;
pub mod uncancelled;
pub mod wrap;

/// Atomics, named in one place so that `ctest/loom` can put those of a model checker there.
mod sync {
    pub(crate) use std::sync::atomic::{self, compiler_fence};
}
