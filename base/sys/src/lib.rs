//! Linux functions shared by several parts of this project.
//!
//! The library and the plug-ins run in the application's process; the agent and the device processes have
//! their own. All of them share memory, send descriptors, wait and start threads by the functions of this
//! crate. It has little state and depends on `libc` only.
//!
//! | module | is |
//! | --- | --- |
//! | [`bell`] | waking threads that wait for shared memory; ready bits |
//! | [`cancel`] | threads are cancelled in the library only where no state is left behind |
//! | [`clock`] | the clock, sleeping, and times for the kernel |
//! | [`crc`] | the checksum of frames, CRC32C |
//! | [`elf`] | whether a file is a whole shared library |
//! | [`fd`] | descriptors that a process does not expect: never 0 to 2, checked before they are used |
//! | [`mod@file`] | files named by users |
//! | [`fork`] | memory that a fork wipes |
//! | [`futex`] | sleeping on a word of shared memory |
//! | [`idle`] | whether a thread that polls yields or sleeps |
//! | [`left`] | whether the application has a thread left |
//! | [`membarrier`] | fences that one thread executes for all others |
//! | [`memory_file`] | memory that other processes may map |
//! | [`mutex`] | mutexes that survive a fork, and that ThreadSanitizer understands |
//! | [`process_vm`] | copies between the memories of two processes |
//! | [`random`] | pseudo-random numbers from a seed |
//! | [`rdma`] | RDMA devices of this host, from `/sys` |
//! | [`reserve`] | a heap with a reserve for exhausted memory |
//! | [`seqpacket`] | packets with descriptors |
//! | [`shm`] | sealed memfds and their mappings |
//! | [`stderr`] | lines for the standard error of the application's process |
//! | [`table`] | tables that take memory for what is used |
//! | [`text`] | text from untrusted sources, without control characters |
//! | [`thread`] | threads that take none of the application's signals |
//! | [`wrap`] | initial values of wrapping counters |
//! | [`uncancelled`] | system calls that are not cancellation points |

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
pub mod memory_file;
pub mod mutex;
pub mod process_vm;
pub mod random;
pub mod rdma;
pub mod reserve;
pub mod seqpacket;
pub mod shm;
pub mod stderr;
pub mod table;
pub mod text;
pub mod thread;
pub mod uncancelled;
pub mod wrap;

/// Atomics, in one place so that `ctest/loom` can substitute those of a model checker.
mod sync {
    pub(crate) use std::sync::atomic::{self, compiler_fence};
}
