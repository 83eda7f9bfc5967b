//! The packets of the sockets, in native byte order: all of it stays on one host.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of everything in this crate; both sides must have the same.
pub const VERSION: u32 = 4;

/// What a [`Request`] asks for.
pub mod op {
    /// The first one: `key` is the address of a word in the process and `max_transfer` its value, which
    /// shows whether the device can reach the process's memory; `vi` is [`VERSION`](super::VERSION);
    /// `ptag` the time in microseconds that the device shall poll. With `mtu` not 0 it brings the data socket
    /// of an interface, whose `address` and `endpoint` these are. Reply with [`NicPage`](crate::nic), the
    /// device's page and the socket of interrupts.
    pub const OPEN: u32 = 1;
    /// Makes the pages of a VI; the reply brings them.
    pub const CREATE: u32 = 2;
    /// Frees them. No reply.
    pub const DESTROY: u32 = 3;
    /// The VI is connected; with `mtu` not 0 to `peer_vi` on another host, at `address` and `endpoint`. No
    /// reply.
    pub const ATTACH: u32 = 4;
    /// It is not any more. After the reply the device touches nothing of it.
    pub const DETACH: u32 = 5;
    /// The program's side found an error of its own in what arrived, and the connection ends. No reply.
    pub const BREAK: u32 = 6;
    /// There is something on a doorbell, and the device was asleep; `vi` is the processor on which the caller
    /// runs. No reply.
    pub const WAKE: u32 = 7;
    /// The agent says that the peer on another host has gone, in good order if [`flag::ORDERLY`] is set.
    /// When the reply comes, the device has done with it what there was to do.
    ///
    /// [`flag::ORDERLY`]: super::flag::ORDERLY
    pub const PEER_GONE: u32 = 8;
    /// Memory of the VI's program has gone: what it has on offer the device takes back, and finds what that
    /// means. The reply is [`status::BUSY`](super::status::BUSY) while the peer is fetching.
    pub const RECALL: u32 = 9;
}

/// Bits of [`Request::flags`].
pub mod flag {
    /// The peer may write by RDMA.
    pub const RDMA_WRITE: u16 = 1;
    /// The peer may read by RDMA.
    pub const RDMA_READ: u16 = 2;
    /// Immediate data travels without its flag, too.
    pub const CARRY_IMMEDIATE: u16 = 4;
    /// A descriptor is written only while its own region is registered.
    pub const CHECK_DESCRIPTOR: u16 = 8;
    /// Messages that fit come with their completion, to be copied out by the program.
    pub const INLINE: u16 = 16;
    /// The peer has disconnected.
    pub const ORDERLY: u16 = 32;
    /// The program's side fetches long messages itself when it looks.
    pub const FETCHES: u16 = 64;
    /// Segments of receive descriptors are checked whole, not only as far as the message goes.
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
    /// Repeated by the reply.
    pub number: u32,
    /// Number of the VI within its NIC.
    pub vi: u32,
    /// Number of the connection of this VI, at least 1; counted by the process.
    pub epoch: u32,
    /// The connection's key, the same at both sides.
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
    /// Levels on which RDMA Read works.
    pub read_levels: u16,
    /// Segments of one descriptor.
    pub segments_max: u16,
    /// Largest frame in bytes behind its Ethernet header; 0: no frames.
    pub mtu: u32,
    /// Number of the peer's VI within its NIC.
    pub peer_vi: u32,
    /// Address of the interface, one's own or the peer's.
    pub address: [u8; 6],
    /// The endpoint there.
    pub endpoint: u16,
}

/// Why a request was refused.
pub mod status {
    /// It was not.
    pub const OK: u32 = 0;
    /// Out of something.
    pub const RESOURCE: u32 = 1;
    /// It makes no sense, or another version speaks.
    pub const INVALID: u32 = 2;
    /// The device cannot reach the memory of the process.
    pub const NOT_PERMITTED: u32 = 3;
    /// Not yet: ask again.
    pub const BUSY: u32 = 4;
}

/// From the device to a process, with up to three descriptors.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Reply {
    /// Number of the request.
    pub number: u32,
    /// One of [`status`].
    pub status: u32,
    /// `errno` of what failed, or 0.
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
