//! The device plug-in `ip`: the network is any IP network, and takes no privilege.
//!
//! Frames are datagrams of a UDP socket, which the Kernel Agent of the host binds at the address by which others know
//! the host. Those of several posts are collected and leave in trains, which the kernel handles like one packet.
//! Everything else is the device class, `vipl-ethernet`.

use std::ffi::CStr;

use vipl_ethernet::interface::Interface;
use vipl_ethernet::{Card, Ethernet, Network, Policy};
use vipl_plugin_sdk::abi::vipl_setting;
use vipl_plugin_sdk::{Status, settings};

/// The card.
pub struct Ip;

impl Card for Ip {
    const NAME: &'static CStr = c"ip";
    const DOORBELL: Policy = Policy::Batch;
    const FRAME_MAX: usize = 9000;
    const SETTINGS: &'static [vipl_setting] = &[settings::counted(
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

    fn network(argument: &str) -> Result<Network, Status> {
        Ok(Network::Datagrams(argument.to_owned()))
    }
}

vipl_plugin_sdk::plugin!(Ethernet<Ip>);
