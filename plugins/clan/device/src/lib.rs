//! The clan device: a VIA-aware NIC that runs in a process of its own.
//!
//! It does what the silicon of such a card does. Programs ring doorbells in pages that they share with it;
//! it reads the descriptors there, checks every segment against the table of regions of the process, moves
//! the data, writes the result into the descriptor with DONE last, and raises an interrupt only where
//! somebody waits for one. One thread serves all processes of a user.
//!
//! ```text
//!   doorbell ─▶ descriptor: read, check ─▶ engine: which VI, which receive ─▶ vm: data ─▶ complete ─▶ bell
//! ```
//!
//! No process is trusted. Numbers from shared pages are bounded, addresses only ever lead into the memory
//! of the process that gave them, and that memory is touched by the kernel's `process_vm` calls alone,
//! which fail where a load would crash. A process that misbehaves loses its own connections.
//!
//! | file | is |
//! | --- | --- |
//! | `device` | the loop: polls doorbells, sleeps, is woken |
//! | `client`, `requests` | a process and its socket; what it asks for |
//! | `connect` | attach and detach: who is whose partner |
//! | `vi`, `vis` | a VI and its state; all of them |
//! | `descriptor` | from doorbells to checked descriptors |
//! | `pair`, `engine` | two VIs of this host; sends between them |
//! | `offer` | long messages that the receiving program fetches itself |
//! | `rdma` | RDMA, between two VIs of this host |
//! | `remote`, `away` | connections to other hosts: attach, detach, and the link's part of the loop |
//! | `link`, `outbox` | the interface of a NIC handle; frames into the kernel |
//! | `env` | descriptors, memory and completions, as the protocol asks for them |
//! | `events` | what the device sleeps on |
//! | `processor` | where it runs |
//! | `sharing` | how it takes turns with applications that poll |
//! | `complete` | completions, errors, interrupts |
//! | `vm` | the memory of other processes |

mod away;
mod client;
mod complete;
mod connect;
mod descriptor;
mod device;
mod engine;
mod env;
mod events;
mod link;
mod offer;
mod outbox;
mod pair;
mod processor;
mod rdma;
mod remote;
mod requests;
mod sharing;
mod vi;
mod vis;
mod vm;

pub use device::{Device, Turn};
