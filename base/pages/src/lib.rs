//! What a process that uses VIPL publishes about itself, for `vipstat`: one file of mode 0600 for each process, in memory.
//!
//! ```text
//!   library (writes only, by plain stores)                     vipstat (reads only, by `pread`)
//!     Process, Nic, Cq, Vi, Counter  ──▶  PID-NUMBER.pages  ──▶  Snapshot
//! ```
//!
//! | module | is |
//! | --- | --- |
//! | [`layout`] | the structures in the file, and where each begins |
//! | [`record`] | entries of the flight recorder |
//! | [`folder`] | where the files are, and whose |
//! | [`life`] | whether the process of a file still runs |
//! | [`read`] | a file as values; it is bad input |
//!
//! The library never reads a page for its own use, so whatever another process of the same user writes there cannot lead it
//! astray. Reasons are in decision 126.

pub mod folder;
pub mod layout;
pub mod life;
pub mod read;
pub mod record;

pub use read::Snapshot;
