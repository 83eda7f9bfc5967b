//! VIA between the processes of one host, over shared memory: no privilege, no configuration.
//!
//! Each connection has one segment with a ring of slots per direction. A small message travels in the slot that announces
//! it, a larger one in the ring's payload area; the receiver copies it out. A large message is only announced, and the
//! receiver fetches it from the sender's memory in one copy, or it travels through the payload area in pieces, whichever is
//! measured to be faster. RDMA is one copy by the initiator: a store where the target's memory is from `vipl_alloc`. Where the kernel does not let one process access
//! another's memory, all data goes through the ring.
//!
//! No lock lies in shared memory, so a process that dies anywhere leaves nothing held. Everything that a peer writes is
//! hostile input: it is read once, checked, and can only hurt this connection.
//!
//! ```text
//!   vi ─▶ connection     attach, post, poll, close; the only one that knows all, and that ends a connection
//!           │
//!           ├─▶ request       a send descriptor, loaded and judged once; the method by which it travels
//!           ├─▶ transfer::{inline, eager, fetch, pieces, write, read}      start at the sender, arrived at the receiver
//!           │     │
//!           │     ├─▶ send          Sender: slots that leave, descriptors that complete in order ─▶ outbox
//!           │     ├─▶ receive       Receiver: slots that arrive, descriptors that they complete
//!           │     ├─▶ shared_copy   large copies that both sides work on: offer, poll, help, withdraw ─▶ board
//!           │     ├─▶ copy          copies between processes, and the protocol of `copying`
//!           │     └─▶ choice        fetch or pieces
//!           ▼
//!         peer                the peer's words, bell and ready bit; what this side publishes ─▶ segment, shared, watch
//! ```
//!
//! | below them | is |
//! | --- | --- |
//! | `segment` | the layout of the shared segment, slots, and the words of each side |
//! | `buffers` | lists of data segments, copies out of them and into them |
//! | `ending` | why and how a connection ends |
//! | `nic`, `shared` | one opening: attributes, the NICs of its peers; the bell, ready bits and regions that peers map |
//! | `window` | memory of `vipl_alloc` that peers map |
//! | `watch` | the thread that makes progress while the program does not |
//! | `prefetch`, `ticks` | cache hints; a cheap clock |

#[cfg(not(target_os = "linux"))]
compile_error!("loopback needs memfd, futex and process_vm_*: Linux");

mod board;
mod buffers;
mod choice;
mod connection;
mod copy;
mod ending;
mod nic;
mod outbox;
mod peer;
mod prefetch;
mod receive;
mod request;
mod segment;
mod send;
mod shared;
mod shared_copy;
#[cfg(test)]
mod testing;
mod ticks;
mod transfer;
mod vi;
mod watch;
mod window;

/// Atomics, which the models of `ctest/loom` replace.
mod sync {
    pub(crate) use std::sync::atomic;
}

use std::ffi::CStr;

use vipl_plugin_sdk::abi::vipl_nic_info;
use vipl_plugin_sdk::settings::{self, Setting};
use vipl_plugin_sdk::{NicHandle, Provider, Status};

/// Name of the plug-in, for settings and counters.
pub(crate) const NAME: &CStr = c"loopback";

/// The plug-in.
pub struct Loopback;

impl Provider for Loopback {
    const NAME: &'static CStr = NAME;
    const VERSION: &'static CStr = vipl_plugin_sdk::version!();
    const SETTINGS: &'static [Setting] = &[
        settings::boolean(
            c"single_copy",
            true,
            c"let RDMA, and large messages where that is faster, go straight from process to process",
        ),
        settings::bytes(
            c"eager_max",
            Some(c"16384"),
            (40, 65_536),
            c"largest message that goes through the ring",
        ),
    ];
    type Nic = nic::LoopbackNic;

    fn claim(name: &str) -> Option<(i32, String)> {
        match name {
            "via_lo" | "loopback" => Some((100, String::new())),
            // "The best device present": every device that leaves this host is better.
            "VINIC" | "VINIC0" => Some((1, String::new())),
            _ => None,
        }
    }

    fn devices() -> Vec<String> {
        vec!["via_lo".to_owned()]
    }

    fn open(argument: &str, nic: NicHandle, info: &mut vipl_nic_info) -> Result<Self::Nic, Status> {
        nic::LoopbackNic::open(argument, nic, info)
    }
}

vipl_plugin_sdk::plugin!(Loopback: Ready, Sleep, OwnTable, Regions);
