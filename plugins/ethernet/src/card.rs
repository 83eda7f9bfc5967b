//! How a plug-in of this class describes itself, and the network that it opens.

use std::ffi::CStr;

use vipl_link_emulator::Impairments;
use vipl_plugin_sdk::Status;
use vipl_plugin_sdk::settings::{self, Setting};

use crate::doorbell::Policy;
use crate::interface::{self, Interface};

/// Rank of a plug-in for an interface of its kind. An explicit `plugin:interface` needs none.
const RANK: i32 = 50;

/// A plug-in of this class.
pub trait Card: 'static {
    /// Name of the plug-in, for its file, its settings and its counters.
    const NAME: &'static CStr;
    /// When posted frames are passed to the kernel.
    const DOORBELL: Policy;
    /// Largest payload of a frame in bytes; the interface may allow less.
    const FRAME_MAX: usize;
    /// Settings of the plug-in.
    const SETTINGS: &'static [Setting] = &[
        settings::counted(
            c"receive_frames",
            c"frames",
            c"256",
            (32, 16_384),
            c"receive ring of each NIC handle",
        ),
        settings::boolean(
            c"trains",
            true,
            c"let the kernel or the card cut many frames out of one packet",
        ),
    ];

    /// Whether this plug-in serves an interface, if the application does not choose the plug-in.
    fn serves(interface: &Interface) -> bool;

    /// The network that the argument of a device name (`plugin:argument`) selects.
    ///
    /// # Errors
    /// `Invalid`: the argument is not valid.
    fn network(argument: &str) -> Result<Network, Status>;

    /// Rank and argument, if this plug-in serves the device `name`, which is `via_INTERFACE`.
    fn claim(name: &str) -> Option<(i32, String)> {
        let interface = interface::find(name.strip_prefix("via_")?)?;
        Self::serves(&interface).then_some((RANK, interface.name))
    }

    /// Names of the devices that are present and up.
    fn devices() -> Vec<String> {
        interface::all()
            .iter()
            .filter(|interface| interface.up && Self::serves(interface))
            .map(|interface| format!("via_{}", interface.name))
            .collect()
    }
}

/// Where the frames of a NIC go.
pub enum Network {
    /// The interface of this name.
    Interface(String),
    /// Any IP network, by UDP: an address of this host, an interface, or an empty text for the default one.
    Datagrams(String),
    /// Only other processes of this host, through emulated links.
    Emulated {
        /// What each direction of each connection does to frames.
        impairments: Impairments,
        /// Largest payload of a frame in bytes.
        mtu: usize,
        /// Host address.
        address: [u8; 6],
        /// Name of the device as VipQueryNic shows it.
        name: String,
    },
}
