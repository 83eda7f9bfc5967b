//! The clan device: a VIA-aware NIC that runs in a process of its own.
//!
//! It does the work of the silicon of such a card. Applications ring doorbells in pages that they share with it; it
//! reads the descriptors there, checks every segment against the table of regions of the process, moves the data,
//! writes the result into the descriptor with DONE last, and raises an interrupt only if a thread waits for one. One
//! thread serves all processes of a user.
//!
//! ```text
//!   doorbell ─▶ descriptor: read, check ─▶ engine: which VI, which receive ─▶ vm: data ─▶ complete ─▶ bell
//! ```
//!
//! No process is trusted. Numbers from shared pages are bounded, addresses are used only in the memory of the process
//! that gave them, and that memory is accessed only by the `process_vm` calls of the kernel, which fail where a load
//! would crash. A process that makes a protocol error loses its own connections.
//!
//! | file | contents |
//! | --- | --- |
//! | `device`, `device/requests` | the loop: polls doorbells, sleeps, is woken; what processes ask for |
//! | `client`, `process` | a process, its socket and its VIs; its memory |
//! | `connections` | attach and detach |
//! | `vis` | all VIs, and the connections within this host |
//! | `links`, `link`, `remote`, `lingering` | the interface of a NIC handle and its connections to other hosts |
//! | `vi` | a VI and its state |
//! | `vi/pair`, `vi/pair/offer`, `vi/pair/rdma` | messages and RDMA between two VIs of this host |
//! | `env`, `outbox` | descriptors, memory, completions and frames, as the protocol asks for them |
//! | `queues`, `posted` | from doorbells to checked descriptors |
//! | `completions` | completions, errors, interrupts |
//! | `pace`, `sharing`, `processor` | when the device polls, yields and sleeps; where it runs |
//! | `events`, `page`, `tools` | what the device sleeps on; its page; its buffers |

mod client;
mod completions;
mod connections;
mod device;
mod env;
mod events;
mod lingering;
mod link;
mod links;
mod outbox;
mod pace;
mod page;
mod posted;
mod process;
mod processor;
mod queues;
mod remote;
mod sharing;
mod tools;
mod vi;
mod vis;

pub use device::{Device, Turn};
