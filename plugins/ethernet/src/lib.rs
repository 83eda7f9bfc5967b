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
//! | module | content |
//! | --- | --- |
//! | `provider` | from a card to the SDK's provider |
//! | `operations` | what the host asks of a NIC handle and of a VI |
//! | `nic` | one opening of a device |
//! | `progress` | the watch thread |
//! | `device` | what the VIs and the watch thread share; the receive path |
//! | `connected` | the connection of one VI |
//! | `moving` | following a peer to another address |
//! | `env` | descriptors, memory and completions, as the protocol engine asks for them |
//! | `lingering` | connections that have ended here and not yet at the peer |
//! | `version` | version negotiation |
//! | `uplink` | the data socket and the interface's address |
//! | `carrier` | where the frames of one connection go |
//! | `schedule`, `coalescing`, `inbox`, `watch` | parts of the shared state |
//! | `doorbell` | transmission of frames in bursts |
//! | `medium` | what carries frames: packet sockets or UDP |
//! | `segment` | frames between two processes of one host |
//! | `bell` | sleeping and waking, and which VIs have something to do |
//! | `card`, `interface` | what a plug-in says about itself; the host's interfaces |

#[cfg(not(target_os = "linux"))]
compile_error!("AF_PACKET, eventfd and futex: Linux");

mod bell;
mod card;
mod carrier;
mod coalescing;
mod connected;
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
mod operations;
mod progress;
mod provider;
mod schedule;
mod segment;
mod try_lock;
mod uplink;
mod version;
mod watch;

use vipl_abi::{VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION};

pub use card::{Card, Network};
pub use doorbell::Policy;
pub use provider::Ethernet;

/// VIs of one NIC handle.
pub(crate) const VIS_MAX: u32 = 1024;
/// No VI.
pub(crate) const NO_VI: u32 = u32::MAX;
/// Levels on which RDMA Read works.
pub(crate) const READ_LEVELS: u16 = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;
