//! From a card to a plug-in.

use std::ffi::CStr;
use std::marker::PhantomData;

use vipl_plugin_sdk::abi::{vipl_nic, vipl_nic_info, vipl_setting};
use vipl_plugin_sdk::{Provider, Status, settings};

use crate::doorbell::Policy;
use crate::interface::{self, Interface};
use crate::nic::EthernetNic;

/// How well a card serves an interface that is of its kind; the explicit `plugin:interface` needs none.
const RANK: i32 = 50;

/// What differs between the plug-ins of this class.
pub trait Card: 'static {
    /// Name of the plug-in, for its file, its settings and its counters.
    const NAME: &'static CStr;
    /// When posted frames go into the kernel.
    const DOORBELL: Policy;
    /// Largest payload of a frame in bytes; the interface may allow less.
    const FRAME_MAX: usize;
    /// Settings of the plug-in.
    const SETTINGS: &'static [vipl_setting] = &[settings::counted(
        c"receive_frames",
        c"frames",
        c"256",
        (32, 16_384),
        c"receive ring of each NIC handle",
    )];

    /// Whether this card is the one for an interface, when the program leaves the choice open.
    fn serves(interface: &Interface) -> bool;

    /// The network that the argument of an opening (`plugin:argument`) means.
    ///
    /// # Errors
    /// `Invalid`: it means nothing.
    fn network(argument: &str) -> Result<Network, Status>;

    /// Rank and argument, if this card serves the device `name`: `via_INTERFACE`.
    fn claim(name: &str) -> Option<(i32, String)> {
        let interface = interface::find(name.strip_prefix("via_")?)?;
        Self::serves(&interface).then_some((RANK, interface.name))
    }

    /// Names of the devices that are present and switched on.
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
    /// Other processes of this host only, through emulated links.
    Emulated {
        /// Creates the links.
        links: LinkSource,
        /// Largest payload of a frame in bytes.
        mtu: usize,
        /// Host address.
        address: [u8; 6],
        /// Name of the device as VipQueryNic shows it.
        name: String,
    },
}

/// Creates the link for one direction of one connection; the number is the same in every run.
pub type LinkSource = Box<dyn Fn(u64) -> Box<dyn EmulatedLink> + Send + Sync>;

/// A link between two processes of this host that holds frames back, loses or changes them. Times are in
/// nanoseconds.
pub trait EmulatedLink: Send {
    /// Whether the link takes another frame.
    fn has_room(&self) -> bool;

    /// Sends a frame.
    fn send(&mut self, now: u64, frame: &[u8]);

    /// When the next frame is due.
    fn next_due(&self) -> Option<u64>;

    /// Length of the next frame, if it is due.
    fn next_bytes(&self, now: u64) -> Option<usize>;

    /// The next frame, if it is due.
    fn receive(&mut self, now: u64) -> Option<Vec<u8>>;
}

/// The provider for a card.
pub struct Ethernet<C>(PhantomData<C>);

impl<C: Card> Provider for Ethernet<C> {
    const NAME: &'static CStr = C::NAME;
    const VERSION: &'static CStr = c"0.1.0";
    const SETTINGS: &'static [vipl_setting] = C::SETTINGS;
    type Nic = EthernetNic;

    fn claim(name: &str) -> Option<(i32, String)> {
        C::claim(name)
    }

    fn devices() -> Vec<String> {
        C::devices()
    }

    fn open(
        argument: &str,
        nic: *const vipl_nic,
        info: &mut vipl_nic_info,
    ) -> Result<EthernetNic, Status> {
        EthernetNic::open::<C>(C::network(argument)?, nic, info)
    }
}
