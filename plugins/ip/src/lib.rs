//! The device plug-in `ip`: the network is any IP network, and takes no privilege.
//!
//! Frames are datagrams of a UDP socket, which the Kernel Agent of the host binds at the address by which others know
//! the host. Those of several posts are collected and leave in trains, which the kernel handles like one packet.
//! Everything else is the device class, `vipl-ethernet`.

use std::ffi::CStr;

use vipl_ethernet::interface::{self, Interface};
use vipl_ethernet::{Card, Ethernet, Network, Policy};
use vipl_plugin_sdk::settings::{self, Setting};
use vipl_plugin_sdk::{Host, Status};

/// The card.
pub struct Ip;

/// Rank for an interface whose Ethernet this process may not use: above that of the plug-ins for Ethernet.
const RANK: i32 = 60;
/// Rank for "the best device present", above that of loopback.
const RANK_BEST: i32 = 2;

/// Whether this process may have an interface as raw Ethernet. An agent that does not answer gives it nothing, but
/// nothing over UDP either: the plug-ins for Ethernet then tell why.
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

    /// Names of Ethernet, where it is not permitted: a program of a plain user reaches others all the same.
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

    /// The plug-ins for Ethernet name theirs.
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
