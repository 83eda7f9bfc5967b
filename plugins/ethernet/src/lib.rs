//! Device class: Ethernet NICs driven from user space.
//!
//! A plug-in names a [`Card`] and gets a whole provider, [`Ethernet`]. The protocol is `vipl-wire`, which
//! knows nothing of sockets; this crate lends it the program's descriptors and memory (`env`) and carries
//! its frames: through an AF_PACKET socket that the Kernel Agent opened, to other hosts, or through shared
//! memory, between processes of one host. There are no privileges in the program, and no thread but one
//! that looks after things while the program does not.
//!
//! | file | is |
//! | --- | --- |
//! | `nic` | one opening: attributes, limits, what its VIs share |
//! | `vi` | one VI's part: the connection, and what each operation does |
//! | `env` | descriptors, memory and completions, as the engine asks for them |
//! | `carrier` | where the frames of one connection go |
//! | `doorbell` | frames into the kernel |
//! | `gathering` | small messages that share a frame |
//! | `reading` | frames out of the receive ring, to the VIs that they are for |
//! | `inbox` | frames for a VI that another VI's thread has read |
//! | `segment` | frames between two processes of one host |
//! | `bell` | sleeping, waking, and which VIs have something |
//! | `watch` | the thread that makes progress while the program makes none |
//! | `farewell` | connections that have ended here and not yet at the partner |
//! | `strangers` | hosts that speak another version of the protocol |
//! | `interface` | names, drivers and speeds of the host's interfaces |

#[cfg(not(target_os = "linux"))]
compile_error!("AF_PACKET, eventfd and futex: Linux");

mod bell;
mod carrier;
mod doorbell;
mod env;
mod farewell;
mod gathering;
mod inbox;
pub mod interface;
mod nic;
mod provider;
mod reading;
mod segment;
mod strangers;
mod turn;
mod vi;
mod watch;

use vipl_abi::{VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION};

pub use doorbell::Policy;
pub use provider::{Card, EmulatedLink, Ethernet, LinkSource, Network};

/// VIs of one NIC handle.
pub(crate) const VIS_MAX: u32 = 1024;
/// Levels on which RDMA Read works.
pub(crate) const READ_LEVELS: u16 = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;
