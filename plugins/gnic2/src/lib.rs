//! The device plug-in `gnic2`: Gigabit Ethernet and faster, with a doorbell like that of the GNIC-II.
//!
//! Frames of several posts are collected and started together, as one write to the command register of that card
//! started an idle channel. Frames are as large as the interface allows, up to 9000 bytes. Bandwidth and message rate
//! are high. Everything else is the device class, `vipl-ethernet`.

use std::ffi::CStr;

use vipl_ethernet::interface::Interface;
use vipl_ethernet::{Card, Ethernet, Network, Policy};
use vipl_plugin_sdk::Status;

/// The card.
pub struct Gnic2;

impl Card for Gnic2 {
    const NAME: &'static CStr = c"gnic2";
    const DOORBELL: Policy = Policy::Batch;
    const FRAME_MAX: usize = 9000;

    fn serves(interface: &Interface) -> bool {
        !interface.is_tulip_like()
    }

    fn network(argument: &str) -> Result<Network, Status> {
        Ok(Network::Interface(argument.to_owned()))
    }
}

vipl_plugin_sdk::plugin!(Ethernet<Gnic2>: Ready, Sleep);
