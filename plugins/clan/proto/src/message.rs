//! The packets of the sockets, in native byte order, since they stay on one host.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of everything in this crate; both sides must have the same one.
pub const VERSION: u32 = 5;

/// Operations of a [`Request`].
pub mod op {
    /// The first request. `key` is the address of a word in the process and `max_transfer` its value, which shows whether
    /// the device can access the process's memory. `vi` is [`VERSION`](super::VERSION). `ptag` is how long the device
    /// polls, in microseconds. If `mtu` is not 0, the data socket of an interface comes with it, whose `address` and
    /// `endpoint` these are. The reply brings [`NicPage`](crate::nic), the device's page and the socket of interrupts.
    pub const OPEN: u32 = 1;
    /// Creates the pages of a VI; the reply brings them.
    pub const CREATE: u32 = 2;
    /// Frees them. No reply.
    pub const DESTROY: u32 = 3;
    /// The VI is connected. If `mtu` is not 0, the peer is `peer_vi` on another host, at `address` and `endpoint`. No reply.
    pub const ATTACH: u32 = 4;
    /// The VI is disconnected. After the reply the device accesses nothing of it.
    pub const DETACH: u32 = 5;
    /// The application's side found an error that the device cannot see, and the connection ends. No reply.
    pub const BREAK: u32 = 6;
    /// A doorbell was rung while the device was asleep; `vi` is the caller's processor. No reply.
    pub const WAKE: u32 = 7;
    /// The agent reports that the peer on another host has exited or, if [`flag::ORDERLY`] is set, has disconnected. The reply
    /// comes after the device has handled it.
    ///
    /// [`flag::ORDERLY`]: super::flag::ORDERLY
    pub const PEER_GONE: u32 = 8;
    /// Memory of the VI's process has been deregistered: the device takes back the VI's offers. The reply is
    /// [`status::BUSY`](super::status::BUSY) while the peer is fetching one.
    pub const RECALL: u32 = 9;
}

/// Bits of [`Request::flags`].
pub mod flag {
    /// The peer may write by RDMA.
    pub const RDMA_WRITE: u16 = 1;
    /// The peer may read by RDMA.
    pub const RDMA_READ: u16 = 2;
    /// Immediate data travels even without its flag.
    pub const CARRY_IMMEDIATE: u16 = 4;
    /// A descriptor is written only if its own region is registered.
    pub const CHECK_DESCRIPTOR: u16 = 8;
    /// Small messages come with their completion, and the application places them.
    pub const INLINE: u16 = 16;
    /// The peer has disconnected.
    pub const ORDERLY: u16 = 32;
    /// The application's side fetches long messages itself when it polls.
    pub const FETCHES: u16 = 64;
    /// All segments of a receive descriptor are checked, not only those that the message needs.
    pub const CHECK_RECEIVE_WHOLE: u16 = 128;
    /// With [`op::OPEN`](super::op::OPEN): addresses of the process have 32 bits.
    pub const NARROW: u16 = 256;
}

/// From a process to the device.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Request {
    /// One of [`op`].
    pub op: u32,
    /// The reply has the same number.
    pub number: u32,
    /// Number of the VI within its NIC.
    pub vi: u32,
    /// Number of the connection among those of this VI, at least 1; counted by the process.
    pub epoch: u32,
    /// The connection's key, which both sides have.
    pub key: u64,
    /// Largest message of the VI in bytes.
    pub max_transfer: u64,
    /// 0 at one side, 1 at the other.
    pub side: u32,
    /// Protection tag of the VI.
    pub ptag: u32,
    /// Number of the next send doorbell.
    pub sends: u32,
    /// Number of the next receive doorbell.
    pub receives: u32,
    /// One `VIP_SERVICE_*` bit.
    pub reliability: u16,
    /// Bits of [`flag`].
    pub flags: u16,
    /// Reliability levels on which RDMA Read works.
    pub read_levels: u16,
    /// Most segments of a descriptor.
    pub segments_max: u16,
    /// Largest frame in bytes behind its Ethernet header; 0: no frames.
    pub mtu: u32,
    /// Number of the peer's VI within its NIC.
    pub peer_vi: u32,
    /// Address of the interface, its own or the peer's.
    pub address: [u8; 6],
    /// The endpoint at that interface.
    pub endpoint: u16,
}

/// Results of a request.
pub mod status {
    /// Success.
    pub const OK: u32 = 0;
    /// Out of memory, file descriptors or another resource.
    pub const RESOURCE: u32 = 1;
    /// A protocol error, or the other side has another version.
    pub const INVALID: u32 = 2;
    /// The device cannot access the memory of the process.
    pub const NOT_PERMITTED: u32 = 3;
    /// Not yet; repeat the request.
    pub const BUSY: u32 = 4;
}

/// From the device to a process, with up to three file descriptors.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Reply {
    /// Number of the request.
    pub number: u32,
    /// One of [`status`].
    pub status: u32,
    /// `errno` of the call that failed, or 0.
    pub errno: u32,
    /// [`VERSION`] of the device.
    pub version: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_no_padding_and_keep_their_size() {
        assert_eq!(size_of::<Request>(), 72);
        assert_eq!(size_of::<Reply>(), 16);
    }
}
