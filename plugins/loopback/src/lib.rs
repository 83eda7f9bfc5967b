//! VIA between the processes of one host, over shared memory: no privilege, no configuration.
//!
//! Each connection has one segment with a ring of slots per direction (`ring`). A small message travels
//! in the slot that announces it, a larger one in the ring's payload area; the receiver copies it out.
//! What is larger still is only announced, and the receiver fetches it from the sender's memory in one copy; or it goes
//! through the payload area in pieces, where that is measured to be faster. RDMA is one copy, made by the initiator
//! without any help from the target. Where the kernel does not let one process touch another's memory, all of it goes in
//! pieces.
//!
//! No lock lies in shared memory, so a process that dies anywhere leaves nothing held. Everything that
//! the partner writes is hostile input: it is read once, checked, and can only hurt this connection.
//!
//! | file | is |
//! | --- | --- |
//! | `vi` | what the host calls: the operations of a NIC and of a VI |
//! | `nic` | one opening: attributes, and the NICs of its peers |
//! | `shared` | what a NIC shares with its peers: bell, marks, regions |
//! | `link` | one connection, and what is under way |
//! | `ring` | the layout of the segment, and its two ends |
//! | `outbox` | what the sender knows to be free in it |
//! | `cache` | hints to the processor about the lines of both sides |
//! | `queue` | the send doorbell: from descriptors to slots |
//! | `progress` | the receive side: from slots to descriptors; acknowledgements |
//! | `large` | messages that are fetched or travel in pieces, both sides |
//! | `road` | which of the two is faster |
//! | `rdma`, `target` | RDMA Write and Read: the initiator; the target |
//! | `segments` | copies out of a list of segments and into one |
//! | `mem` | copies between processes |
//! | `board`, `help` | large copies that both sides work on: the shared words; owner and helper |
//! | `cm` | attach, detach, and how a broken connection is told |
//! | `watch` | the thread that makes progress while the program does not |

#[cfg(not(target_os = "linux"))]
compile_error!("loopback needs memfd, futex and process_vm_*: Linux");

mod board;
mod cache;
mod cm;
mod help;
mod large;
mod link;
mod mem;
mod nic;
mod outbox;
mod progress;
mod queue;
mod rdma;
mod ring;
mod road;
mod segments;
mod shared;
mod target;
#[cfg(test)]
mod testing;
mod ticks;
mod vi;
mod watch;

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
    const VERSION: &'static CStr = c"0.1.0";
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

vipl_plugin_sdk::plugin!(Loopback: Ready, Sleep, OwnTable);
