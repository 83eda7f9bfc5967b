//! Device class: Ethernet NICs driven from user space.
//!
//! A plug-in describes a [`Card`] and gets a whole provider, [`Ethernet`]. The protocol is `vipl-wire`, which knows no
//! sockets. This crate gives it descriptors and memory, and carries its frames: to other hosts through an AF_PACKET
//! socket that the Kernel Agent has opened, between processes of one host through shared memory. The application needs
//! no privileges, and there is one thread per NIC handle, which makes progress while the application does not.
//!
//! A member of the class may as well have UDP sockets instead, with the same frames in datagrams.
//!
//! Each module uses those below it:
//!
//! | module | contents |
//! | --- | --- |
//! | `vi` | what the host asks of a NIC handle and of a VI |
//! | `nic` | one opening of a device |
//! | `watch::thread` | the watch thread |
//! | `connection` | the connection of one VI |
//! | `moving` | following a peer to another address |
//! | `trains` | whether frames of a connection share a packet |
//! | `env` | descriptors, memory and completions of this process, as the engine asks for them |
//! | `device` | what the VIs and the watch thread share; the receive path |
//! | `lingering` | connections that have ended here and not yet at the peer |
//! | `version` | version negotiation |
//! | `uplink` | the data socket and the interface's address |
//! | `carrier` | where the frames of one connection go |
//! | `schedule`, `coalescing`, `inbox`, `inlet`, `watch` | parts of the shared state |
//! | `doorbell` | transmission of frames in bursts |
//! | `medium` | addresses of packet sockets and of UDP |
//! | `local`, `segment` | frames between two processes of one host |
//! | `bell` | sleeping and waking, and which VIs have something to do |
//! | `card`, `interface` | what a plug-in says about itself; the host's interfaces |

#[cfg(not(target_os = "linux"))]
compile_error!("AF_PACKET, eventfd and futex: Linux");

mod bell;
mod card;
mod carrier;
mod coalescing;
mod connection;
mod device;
mod doorbell;
mod env;
mod inbox;
mod inlet;
pub mod interface;
mod lingering;
mod local;
mod medium;
mod moving;
mod nic;
mod schedule;
mod segment;
mod trains;
mod try_lock;
mod uplink;
mod version;
mod vi;
mod watch;

use std::ffi::CStr;
use std::marker::PhantomData;

use vipl_abi::{VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION};
use vipl_plugin_sdk::abi::vipl_nic_info;
use vipl_plugin_sdk::settings::Setting;
use vipl_plugin_sdk::{NicHandle, Provider, Status};

use nic::EthernetNic;

pub use card::{Card, Network};
pub use doorbell::Policy;

/// VIs of one NIC handle.
pub(crate) const VIS_MAX: u32 = 16_384;
/// No VI.
pub(crate) const NO_VI: u32 = u32::MAX;
/// Levels on which RDMA Read works.
pub(crate) const READ_LEVELS: u16 = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;

/// The provider for a card.
pub struct Ethernet<C>(PhantomData<C>);

impl<C: Card> Provider for Ethernet<C> {
    const NAME: &'static CStr = C::NAME;
    const VERSION: &'static CStr = vipl_plugin_sdk::version!();
    const SETTINGS: &'static [Setting] = C::SETTINGS;
    type Nic = EthernetNic;

    fn claim(name: &str) -> Option<(i32, String)> {
        C::claim(name)
    }

    fn devices() -> Vec<String> {
        C::devices()
    }

    fn open(
        argument: &str,
        nic: NicHandle,
        info: &mut vipl_nic_info,
    ) -> Result<EthernetNic, Status> {
        EthernetNic::open::<C>(C::network(argument)?, nic, info)
    }
}
