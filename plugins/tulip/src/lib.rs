//! The device plug-in `tulip`: Fast Ethernet, with a doorbell like that of the DEC Tulip.
//!
//! Such a card has no doorbell for applications: every post traps into the kernel, with one system call for each
//! operation. Frames carry at most 1500 bytes. The latency is low, and little memory is used. Everything else is the
//! device class, `vipl-ethernet`.

use std::ffi::CStr;

use vipl_ethernet::interface::Interface;
use vipl_ethernet::{Card, Ethernet, Network, Policy};
use vipl_plugin_sdk::Status;

/// The card.
pub struct Tulip;

impl Card for Tulip {
    const NAME: &'static CStr = c"tulip";
    const DOORBELL: Policy = Policy::Trap;
    const FRAME_MAX: usize = 1500;

    fn serves(interface: &Interface) -> bool {
        interface.is_tulip_like()
    }

    fn network(argument: &str) -> Result<Network, Status> {
        Ok(Network::Interface(argument.to_owned()))
    }
}

vipl_plugin_sdk::plugin!(Ethernet<Tulip>: Ready, Sleep);
