//! The application's side of a cLAN-like device.
//!
//! The card itself is another process, `vipl-clan`, which the Kernel Agent owns. A post stores what the device needs of
//! a descriptor into the doorbell page of its VI, and nothing else: no system call, no lock, no data moved beyond what
//! fits into the doorbell. The device moves the data while the application computes, and writes the result into the
//! descriptor. An application that polls finds completions in the VI's pages, earlier.
//!
//! | file | contents |
//! | --- | --- |
//! | `card` | the connection to the device: socket, pages, wake-up |
//! | `interface` | the network interface behind a NIC |
//! | `nic` | one opening: limits, and the operations of a NIC |
//! | `nic/vi` | the operations of a VI |
//! | `nic/vi/progress` | from completions to descriptors |
//! | `queues` | from descriptors to doorbells |
//! | `placing` | data that this side copies itself |
//! | `watch` | the thread that waits for interrupts and for the end of the device |

mod card;
mod interface;
mod nic;
mod placing;
mod queues;
mod watch;

use std::ffi::CStr;

use vipl_clan_proto::vi::INLINE_MAX;
use vipl_plugin_sdk::abi::vipl_nic_info;
use vipl_plugin_sdk::settings::{self, Setting};
use vipl_plugin_sdk::{Host, NicHandle, Provider, Status};

/// Name of the plug-in, for settings and counters, and for the agent.
pub(crate) const NAME: &CStr = c"clan";

/// The plug-in.
pub struct Clan;

impl Provider for Clan {
    const NAME: &'static CStr = NAME;
    const VERSION: &'static CStr = vipl_plugin_sdk::version!();
    const SETTINGS: &'static [Setting] = &[
        settings::bytes(
            c"transfer_max",
            None,
            (32_768, 1 << 30),
            c"largest message; default: max_transfer_size if that is given, else 65472 as on the card",
        ),
        settings::boolean(
            c"rdma_read",
            false,
            c"let RDMA Read work, which the card did not have",
        ),
        settings::bytes(
            c"inline_max",
            Some(c"80"),
            (0, INLINE_MAX as u64),
            c"largest message that goes into the doorbell; 0: descriptors do not, either",
        ),
        settings::boolean(
            c"single_copy",
            true,
            c"let a program that polls fetch a long message itself, in one copy",
        ),
        settings::text(
            c"interface",
            c"name",
            c"Ethernet interface behind /dev/clanvi0 and nic0, for peers on other hosts; empty: this host only",
        ),
        settings::counted(
            c"poll_us",
            c"microseconds",
            c"100",
            (0, 10_000),
            c"how long the device polls before it sleeps",
        ),
    ];
    type Nic = nic::ClanNic;

    fn claim(name: &str) -> Option<(i32, String)> {
        // Not VINIC, "the best device present": within one host loopback is the faster one.
        let plain = matches!(name, "clanvi0" | "nic0" | "clan");
        // Without an interface nothing is sent on any network.
        plain.then(|| {
            let interface = Host::get().setting(NAME, c"interface");
            (100, interface.unwrap_or_default())
        })
    }

    fn devices() -> Vec<String> {
        vec!["clanvi0".to_owned()]
    }

    fn open(argument: &str, nic: NicHandle, info: &mut vipl_nic_info) -> Result<Self::Nic, Status> {
        nic::ClanNic::open(argument, nic, info)
    }
}

vipl_plugin_sdk::plugin!(Clan: Ready, Sleep, OwnTable);
