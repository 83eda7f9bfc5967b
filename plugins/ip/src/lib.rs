//! The device plug-in `ip`: NICs over any IP network, without privileges.
//!
//! Frames are datagrams of a UDP socket, which the Kernel Agent of the host binds to the address by which other hosts
//! reach it. Frames of several posts are collected and leave in trains, which the kernel handles like one packet.
//! Everything else is the device class, `vipl-ethernet`.

use std::ffi::CStr;

use vipl_ethernet::interface::{self, Interface};
use vipl_ethernet::{Card, Ethernet, Network, Policy};
use vipl_plugin_sdk::settings::{self, Setting};
use vipl_plugin_sdk::{Host, Status};

/// The card.
pub struct Ip;

/// Rank for an interface that this process may not use as Ethernet: above that of the plug-ins for Ethernet.
const RANK: i32 = 60;
/// Rank for "the best device present", above that of loopback.
const RANK_BEST: i32 = 2;

/// Whether this process may use an interface as raw Ethernet. If the agent does not answer, the process gets neither raw
/// Ethernet nor UDP, and the plug-ins for Ethernet report why.
fn is_ethernet(interface: &str) -> bool {
    let asked = Host::get().link_ask(interface);
    !matches!(asked, Err(Status::NotPermitted | Status::Invalid))
}

impl Card for Ip {
    const NAME: &'static CStr = c"ip";
    const DOORBELL: Policy = Policy::Batch;
    const FRAME_MAX: usize = 9000;
    const SETTINGS: &'static [Setting] = &[settings::counted(
        c"mtu",
        c"bytes",
        c"9000",
        (256, 9000),
        c"longest datagram; the interface allows less",
    )];

    /// Interfaces belong to the plug-ins for Ethernet.
    fn serves(_interface: &Interface) -> bool {
        false
    }

    /// Claims names of Ethernet interfaces that this process may not use as Ethernet: an application of an unprivileged
    /// user reaches other hosts all the same.
    fn claim(name: &str) -> Option<(i32, String)> {
        let addressed = interface::addressed();
        if let "VINIC" | "VINIC0" = name {
            let ethernet = interface::all().into_iter().find(|found| found.up);
            let best = !addressed.is_empty() && !ethernet.is_some_and(|one| is_ethernet(&one.name));
            return best.then(|| (RANK_BEST, String::new()));
        }
        let name = name.strip_prefix("via_")?;
        let own = addressed.iter().any(|known| known == name);
        (own && !is_ethernet(name)).then(|| (RANK, name.to_owned()))
    }

    /// Only interfaces that are no Ethernet; the plug-ins for Ethernet list the others.
    fn devices() -> Vec<String> {
        let others = interface::addressed().into_iter();
        others
            .filter(|name| interface::find(name).is_none())
            .map(|name| format!("via_{name}"))
            .collect()
    }

    fn network(argument: &str) -> Result<Network, Status> {
        Ok(Network::Datagrams(argument.to_owned()))
    }
}

vipl_plugin_sdk::plugin!(Ethernet<Ip>: Ready, Sleep);
