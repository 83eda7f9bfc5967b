//! RDMA NICs: a VI is a reliable queue pair of InfiniBand or RoCE, a descriptor a work request, a protection tag a
//! protection domain, a region a memory region. The device moves the data, without a copy.
//!
//! | file | contents |
//! | --- | --- |
//! | `ibv`, `ibv/functions` | the part of libibverbs that is used, and its opening |
//! | `device`, `device/queue_pair` | an open device and what is made of it |
//! | `choice` | which device a name means, and why it cannot be used |
//! | `nic`, `card` | one opening: limits, and the operations of a NIC; what its connections need |
//! | `nic/vi` | the operations of a VI |
//! | `link`, `link/send`, `link/receive`, `link/copies` | a connection: set-up, queues, end |
//! | `link/pieces`, `link/scratch`, `pages` | segments and memory for the device |
//! | `tags` | protection tags, regions, and the keys that peers read |
//! | `record`, `exchange`, `uplink` | what the two sides tell each other, on one host and between hosts |
//! | `watch` | the thread that waits for the device and for peers |
//! | `counters` | bytes copied, wake-ups |
//!
//! No hardware was at hand: what only hardware does is written after the InfiniBand specification and the sources of
//! drivers, and `docs/VERBS-HARDWARE.md` says what to try.

mod card;
mod choice;
mod counters;
mod device;
mod exchange;
mod ibv;
mod link;
mod nic;
mod pages;
mod record;
mod tags;
mod uplink;
mod watch;

use std::ffi::{CStr, c_int};
use std::io;

use vipl_plugin_sdk::abi::vipl_nic_info;
use vipl_plugin_sdk::{Host, NicHandle, Provider, Status};

/// Name of the plug-in, for settings.
pub(crate) const NAME: &CStr = c"verbs";
/// Rank for "the best device present" and for interfaces: above that of the plug-ins for Ethernet.
const RANK: i32 = 70;
/// Rank for the name of an RDMA device, which no other plug-in knows.
const RANK_OWN: i32 = 100;

/// Writes a line of the log.
pub(crate) fn say(level: c_int, text: &str) {
    Host::get().log(level, &format!("verbs: {text}"));
}

/// An error of the system, with the limit that is behind it.
pub(crate) fn explained(error: &io::Error) -> String {
    if error.raw_os_error() != Some(libc::ENOMEM) {
        return error.to_string();
    }
    // SAFETY: room for the answer.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit);
        limit.rlim_cur
    };
    match limit {
        libc::RLIM_INFINITY => error.to_string(),
        limit => format!(
            "{error}; the device pins memory, of which RLIMIT_MEMLOCK permits {limit} bytes: ulimit -l"
        ),
    }
}

/// The plug-in.
pub struct Verbs;

impl Provider for Verbs {
    const NAME: &'static CStr = NAME;
    const VERSION: &'static CStr = vipl_plugin_sdk::version!();
    type Nic = nic::VerbsNic;

    /// Names of RDMA devices, and those of interfaces and of the best device where the hardware there is up. Software is
    /// slower than the plug-in `ip`.
    fn claim(name: &str) -> Option<(i32, String)> {
        if let "VINIC" | "VINIC0" = name {
            let best = choice::hardware_at(None)?;
            return Some((RANK, best.interface.unwrap_or(best.device)));
        }
        if let Some(interface) = name.strip_prefix("via_") {
            choice::hardware_at(Some(interface))?;
            return Some((RANK, interface.to_owned()));
        }
        let is_device = choice::names().iter().any(|device| device == name);
        is_device.then(|| (RANK_OWN, name.to_owned()))
    }

    fn devices() -> Vec<String> {
        choice::names()
    }

    fn open(argument: &str, nic: NicHandle, info: &mut vipl_nic_info) -> Result<Self::Nic, Status> {
        nic::VerbsNic::open(argument, nic, info)
    }
}

vipl_plugin_sdk::plugin!(Verbs: Sleep, Regions);
