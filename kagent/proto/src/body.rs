//! Bodies of the messages. `is_valid` checks the values of a body received from a process.

use std::net::{IpAddr, SocketAddr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Longest host address in bytes.
pub const HOST_BYTES_MAX: usize = 32;
/// Longest data address in bytes.
pub const DATA_ADDRESS_BYTES_MAX: usize = 256;
/// Longest discriminator in bytes.
pub const DISCRIMINATOR_BYTES_MAX: usize = 64;
/// Maximum addresses in one [`NeighbourList`].
pub const NEIGHBOURS_MAX: usize = 24;
/// Bytes of the name of a provider, zero padded.
pub const PROVIDER_BYTES: usize = 32;
/// Bytes of the name of a network interface, zero padded.
pub const INTERFACE_BYTES: usize = 16;
/// Size of the name of a link, NUL included.
pub const LINK_BYTES: usize = 64;
/// Bytes of the name of a device process, zero padded.
pub const DEVICE_BYTES: usize = 32;
/// Bytes of the version of an agent, zero padded.
pub const VERSION_BYTES: usize = 16;
/// Bytes of the path of an agent's program, zero padded.
pub const PROGRAM_BYTES: usize = 256;
/// Bytes of the name of its driver, zero padded.
pub const DRIVER_BYTES: usize = 32;
/// Largest segment that a connection may ask for, in bytes.
pub const SEGMENT_BYTES_MAX: u32 = 16 << 20;

/// A connection point: host address and discriminator.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Point {
    /// Bytes used in `host`.
    pub host_len: u16,
    /// Bytes used in `discriminator`.
    pub discriminator_len: u16,
    /// Host address; unused bytes are 0.
    pub host: [u8; HOST_BYTES_MAX],
    /// Discriminator; unused bytes are 0.
    pub discriminator: [u8; DISCRIMINATOR_BYTES_MAX],
}

impl Point {
    /// Whether the lengths are within the arrays.
    pub fn is_valid(&self) -> bool {
        usize::from(self.host_len) <= HOST_BYTES_MAX
            && usize::from(self.discriminator_len) <= DISCRIMINATOR_BYTES_MAX
    }
    /// The host address.
    pub fn host(&self) -> &[u8] {
        &self.host[..usize::from(self.host_len).min(HOST_BYTES_MAX)]
    }
    /// The discriminator.
    pub fn discriminator(&self) -> &[u8] {
        let len = usize::from(self.discriminator_len).min(DISCRIMINATOR_BYTES_MAX);
        &self.discriminator[..len]
    }
    /// Builds a point; `None` when a part is too long.
    pub fn new(host: &[u8], discriminator: &[u8]) -> Option<Point> {
        let mut point = Point {
            host_len: host.len().try_into().ok()?,
            discriminator_len: discriminator.len().try_into().ok()?,
            host: [0; HOST_BYTES_MAX],
            discriminator: [0; DISCRIMINATOR_BYTES_MAX],
        };
        point.host.get_mut(..host.len())?.copy_from_slice(host);
        point
            .discriminator
            .get_mut(..discriminator.len())?
            .copy_from_slice(discriminator);
        Some(point)
    }
}

/// The data address of a NIC: opaque bytes of its plug-in, which peers receive unchanged.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct DataAddress {
    /// Bytes used.
    pub length: u32,
    /// 0.
    pub reserved: u32,
    /// The address; unused bytes are 0.
    pub bytes: [u8; DATA_ADDRESS_BYTES_MAX],
}

impl DataAddress {
    /// No bytes at all.
    pub const NONE: DataAddress = DataAddress {
        length: 0,
        reserved: 0,
        bytes: [0; DATA_ADDRESS_BYTES_MAX],
    };

    /// `None` if it is too long.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut made = Self::NONE;
        made.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        made.length = bytes.len() as u32;
        Some(made)
    }

    /// Whether the length is within the array.
    pub fn is_valid(&self) -> bool {
        self.length as usize <= DATA_ADDRESS_BYTES_MAX
    }

    /// The bytes used.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..(self.length as usize).min(DATA_ADDRESS_BYTES_MAX)]
    }
}

/// The attributes of a VI, as reported to its peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Attributes {
    /// Largest message in bytes.
    pub max_transfer_size: u64,
    /// Quality of service; always 0.
    pub qos: u64,
    /// Exactly one reliability level.
    pub reliability: u16,
    /// 1: the peer may write by RDMA.
    pub rdma_write: u8,
    /// 1: the peer may read by RDMA.
    pub rdma_read: u8,
    /// 0.
    pub reserved: u32,
}

/// `Op::HELLO`, first message of every process. Reply: [`Welcome`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Hello {
    /// Feature bits requested by the process.
    pub features: u64,
}

impl Hello {
    /// `features`: refusals for [`Reason::NO_SERVER`](crate::Reason::NO_SERVER) may be a [`Waited`](crate::Waited).
    pub const WAITED: u64 = 1;
}

/// `Op::WELCOME`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Welcome {
    /// Feature bits that both ends support.
    pub features: u64,
    /// Process id of the agent, for messages.
    pub agent_pid: u32,
    /// Inode of the agent's network namespace; 0: unknown. Its interfaces are those of that namespace.
    pub network: u32,
    /// Version of the agent, zero padded. Older agents send neither this nor the following fields.
    pub version: [u8; VERSION_BYTES],
    /// Path of its program, zero padded; the beginning of a longer one.
    pub program: [u8; PROGRAM_BYTES],
    /// Bit mask of the restrictions of its environment, for messages.
    pub surroundings: u32,
    /// Inode of its mount namespace; 0: unknown.
    pub mounts: u32,
}

impl Welcome {
    /// `surroundings`: a seccomp filter, inherited from the program that started it.
    pub const SECCOMP: u32 = 1;
    /// `surroundings`: no `/proc`.
    pub const NO_PROC: u32 = 2;

    /// Reads the body of an agent, which may be older: missing fields are 0.
    pub fn read(body: &[u8]) -> Welcome {
        let mut bytes = [0; size_of::<Welcome>()];
        let known = body.len().min(bytes.len());
        bytes[..known].copy_from_slice(&body[..known]);
        zerocopy::transmute!(bytes)
    }
}

/// `Op::NIC_OPEN`: a process opened a device. With it: up to two descriptors that peers will receive (the
/// NIC's bell page and its region table). Reply: [`NicOpened`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NicOpen {
    /// Name space of the address: the plug-in's name, zero padded.
    pub provider: [u8; PROVIDER_BYTES],
    /// Bytes used in `host`.
    pub host_len: u16,
    /// 0.
    pub reserved: [u16; 3],
    /// Host address of the device; several NICs may have the same one.
    pub host: [u8; HOST_BYTES_MAX],
    /// From [`LinkOpened`], or 0: the NIC reaches processes of this host only. An endpoint serves one
    /// NIC and ends with it; the NIC's address is then that of the interface.
    pub link: u64,
    /// The data address of the device.
    pub data_address: DataAddress,
}

impl NicOpen {
    /// Whether the addresses fit.
    pub fn is_valid(&self) -> bool {
        (1..=HOST_BYTES_MAX).contains(&usize::from(self.host_len))
            && self.provider[0] != 0
            && self.data_address.is_valid()
    }
}

/// `Op::NIC_OPENED`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NicOpened {
    /// The agent's identifier of the NIC; never 0, never reused.
    pub nic: u64,
}

/// `Op::LINK_OPEN`: requests a data socket on a network interface. Reply: [`LinkOpened`], or `Op::DONE` with
/// `INVALID` (no such interface, or no Ethernet), `NOT_PERMITTED` (not for this user), `NO_PRIVILEGE`,
/// `NO_SYSTEM_AGENT`, `NO_SECRET`, `NOT_SEALED`, `OTHER_NETWORK`, `BUSY` (another agent serves the interface)
/// or `RESOURCE`.
///
/// `Op::LINK_ASK`: asks whether the process may have one. Nothing is opened. Reply: `Op::DONE` with `OK`,
/// `INVALID`, `NOT_PERMITTED`, `NO_PRIVILEGE`, `NO_SYSTEM_AGENT` or `RESOURCE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LinkOpen {
    /// Name of the link, zero padded: that of an interface, or `udp:` followed by a local address, an
    /// interface, or nothing for the source address of packets to other networks. With `sealed-udp:` the
    /// agent must have a secret.
    pub interface: [u8; LINK_BYTES],
}

impl LinkOpen {
    /// Whether the name is not empty and is terminated.
    pub fn is_valid(&self) -> bool {
        self.interface[0] != 0 && self.interface[LINK_BYTES - 1] == 0
    }
}

/// `Op::LINK_ADOPT`: a process holds a data socket over UDP issued by a previous agent. With it: the socket.
/// Reply: [`LinkOpened`], or `Op::DONE` as for `Op::LINK_OPEN`; also `INVALID` if the socket does not match
/// the body, and `BUSY` if this agent has, or must have, another port, so that other hosts know the process
/// by an address that is not this agent's.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LinkAdopt {
    /// As in [`LinkOpened`].
    pub endpoint: u16,
    /// Bytes used in `host`.
    pub host_len: u16,
    /// As in [`LinkOpened`].
    pub host: [u8; HOST_BYTES_MAX],
}

impl LinkAdopt {
    /// IP address and port of the agent. `None` if it is not valid.
    pub fn address(&self) -> Option<SocketAddr> {
        let used = self.host.get(..usize::from(self.host_len))?;
        let (ip, port) = used.split_last_chunk::<2>()?;
        let ip = <[u8; 4]>::try_from(ip)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(ip).map(IpAddr::from))
            .ok()?;
        Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
    }
}

/// `Op::LINK_OPENED`. With it: the data socket, the last descriptor; on Ethernet before it, if the kernel has one, the
/// socket for trains.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LinkOpened {
    /// The agent's identifier of this endpoint, for [`NicOpen`]; never 0, never reused.
    pub link: u64,
    /// Number of the interface.
    pub interface_index: u32,
    /// Largest payload of a frame in bytes.
    pub mtu: u32,
    /// Speed in Mbit/s; 0: unknown.
    pub speed_mbit: u32,
    /// Number of the endpoint, carried in frames for this process; unique among the data sockets of an
    /// interface.
    pub endpoint: u16,
    /// Bytes used in `host`.
    pub host_len: u16,
    /// Address of the interface.
    pub host: [u8; HOST_BYTES_MAX],
    /// Name of the interface, zero padded.
    pub interface: [u8; INTERFACE_BYTES],
    /// Name of its driver, zero padded.
    pub driver: [u8; DRIVER_BYTES],
}

/// `Op::DEVICE_OPEN`: requests a connection to the device process of this name, which the agent starts for
/// the process's user if it does not run. Reply: [`DeviceOpened`], or `Op::DONE` with `INVALID` (there is no
/// such program) or `RESOURCE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct DeviceOpen {
    /// Name of the device: lower-case letters and digits, zero padded.
    pub device: [u8; DEVICE_BYTES],
}

impl DeviceOpen {
    /// Whether the name is not empty, is terminated, and cannot name a file in another folder.
    pub fn is_valid(&self) -> bool {
        let used = self.device.iter().take_while(|byte| **byte != 0).count();
        let (name, rest) = self.device.split_at(used);
        !name.is_empty()
            && !rest.is_empty()
            && rest.iter().all(|byte| *byte == 0)
            && name
                .iter()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    }
}

/// `Op::DEVICE_OPENED`. With it: a `SOCK_SEQPACKET` socket connected to the device. It hangs up when the
/// device exits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct DeviceOpened {
    /// Process id of the device.
    pub pid: u32,
    /// 0.
    pub reserved: u32,
}

/// A packet from the agent to a device process; with it, the device's end of a new process's socket. A device
/// reads such packets from its standard input, a `SOCK_SEQPACKET` socket, and exits when that hangs up.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Introduction {
    /// [`Introduction::VERSION`].
    pub version: u32,
    /// Process id of the new process, reported by the kernel.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// 0.
    pub reserved: u32,
}

impl Introduction {
    /// Version of the protocol between agent and devices.
    pub const VERSION: u32 = 1;
}

/// `Op::NIC_CLOSE`: rejects unanswered connection handles of this NIC, cancels waits and requests, and ends
/// connections in good order. Reply: `Op::DONE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NicClose {
    /// The NIC.
    pub nic: u64,
}

/// `Op::WAIT`: VipConnectWait. Reply: [`Incoming`], or `Op::DONE` with a status.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Wait {
    /// The NIC.
    pub nic: u64,
    /// Milliseconds; `u64::MAX` is no limit.
    pub timeout_ms: u64,
    /// Only the discriminator is used.
    pub local: Point,
    /// 0.
    pub reserved: u32,
}

/// `Op::INCOMING`: a request matched.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Incoming {
    /// The agent's identifier of the request and of the later connection; never 0, never reused.
    pub connection: u64,
    /// The requester's VI.
    pub attributes: Attributes,
    /// The requester's NIC address and local discriminator.
    pub remote: Point,
    /// 0.
    pub reserved: u32,
}

/// `Op::REQUEST` and `Op::PEER`: VipConnectRequest and VipConnectPeerRequest. Reply: [`Connected`], or
/// `Op::DONE` with a status.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Request {
    /// The NIC.
    pub nic: u64,
    /// The requester's identifier of its VI, reported to the peer.
    pub vi: u64,
    /// Milliseconds, not 0; `u64::MAX` is no limit.
    pub timeout_ms: u64,
    /// Grace period for a waiting server before `Status::NO_MATCH`, in milliseconds; not used by `PEER`.
    pub grace_ms: u64,
    /// Bytes of the shared segment requested by this side's plug-in; the larger request applies.
    pub segment_bytes: u32,
    /// 0.
    pub reserved: u32,
    /// The requester's VI.
    pub attributes: Attributes,
    /// Only the discriminator is used: the host address is the NIC's.
    pub local: Point,
    /// The requested connection point.
    pub remote: Point,
}

impl Request {
    /// Whether lengths and sizes are within bounds.
    pub fn is_valid(&self) -> bool {
        self.local.is_valid()
            && self.remote.is_valid()
            && self.timeout_ms > 0
            && self.segment_bytes <= SEGMENT_BYTES_MAX
    }
}

/// `Op::ACCEPT`: VipConnectAccept. Reply: [`Connected`]; or `Op::DONE` with `TIMEOUT` when the requester
/// gave up, a `CONFLICT_*` (the request stays), or `INVALID`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Accept {
    /// From [`Incoming`].
    pub connection: u64,
    /// The accepter's identifier of its VI, reported to the peer.
    pub vi: u64,
    /// The accepter's VI.
    pub attributes: Attributes,
    /// Bytes of the shared segment requested by this side's plug-in.
    pub segment_bytes: u32,
    /// 0.
    pub reserved: u32,
}

/// `Op::CONNECTED`: sent to both sides at the same time. With it: the connection's shared segment (a zeroed
/// memfd, sealed against resizing), then the descriptors of the peer's `NicOpen`.
///
/// With `remote` 1 the peer is on another host. Then there are no descriptors, and the process must be ready
/// for frames before its peer sends any: it attaches its VI and then calls `Op::CONFIRM`. The reply reports
/// whether the connection is established.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Connected {
    /// The agent's identifier of this side of the connection: at the accepter that of [`Incoming`], at every
    /// other side a new one. Only `key` is common to both.
    pub connection: u64,
    /// Unpredictable, equal at both sides.
    pub key: u64,
    /// The peer's NIC.
    pub peer_nic: u64,
    /// The peer's identifier of its VI.
    pub peer_vi: u64,
    /// Process id of the peer, as seen by the agent.
    pub peer_pid: u32,
    /// 0 at the accepter (or one of two peers), 1 at the other.
    pub side: u32,
    /// Size of the segment in bytes.
    pub segment_bytes: u32,
    /// 1: the peer is on another host; `peer_nic`, `peer_pid` and `segment_bytes` are 0.
    pub remote: u32,
    /// The peer's VI.
    pub attributes: Attributes,
    /// Remote peer: its endpoint.
    pub remote_endpoint: u16,
    /// Remote peer: bytes used in `remote_host`.
    pub remote_host_len: u16,
    /// 1: `seal` is valid.
    pub sealed: u32,
    /// Remote peer: its host address.
    pub remote_host: [u8; HOST_BYTES_MAX],
    /// The data address of the peer's NIC.
    pub data_address: DataAddress,
    /// Remote peer, if the hosts share a secret: the secret of this connection, known to its two sides only.
    pub seal: [u8; 32],
}

/// `Op::REJECT` and `Op::DISCONNECT`. Reply: `Op::DONE`, `OK` even if the peer has disconnected or exited.
///
/// `Op::CONFIRM`: the VI of a connection to another host is attached. Reply: `Op::DONE` with `OK` when the
/// peer has confirmed as well; otherwise with the status of the failed connection, whose identifier is then
/// invalid.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ConnectionRef {
    /// The connection.
    pub connection: u64,
}

/// `Op::CANCEL`. Reply: `Op::DONE`; the cancelled call receives its own reply first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cancel {
    /// Id of the call to cancel.
    pub call: u64,
}

/// `Op::ADOPT`: hands one side of a connection made by a previous agent over to this one. Reply: [`Adopted`];
/// `PEER_GONE` follows if the other side is not adopted in time, or has disconnected.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Adopt {
    /// This agent's identifier of the NIC.
    pub nic: u64,
    /// From [`Connected`]; it identifies the connection at both sides.
    pub key: u64,
    /// The process's identifier of its VI.
    pub vi: u64,
    /// From [`Connected`].
    pub side: u32,
    /// 0.
    pub reserved: u32,
    /// This side's VI. Those of both sides must agree.
    pub attributes: Attributes,
}

impl Adopt {
    /// Whether key and side are within bounds.
    pub fn is_valid(&self) -> bool {
        self.key != 0 && self.side <= 1
    }
}

/// `Op::ADOPTED`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Adopted {
    /// This agent's identifier of this side of the connection.
    pub connection: u64,
}

/// `Op::NEIGHBOURS`: lists the addresses on the NIC's link. Reply: [`NeighbourList`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Neighbours {
    /// The NIC.
    pub nic: u64,
}

/// `Op::NEIGHBOUR_LIST`: addresses in use, each once, the NIC's own first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NeighbourList {
    /// Bytes of each address.
    pub host_len: u32,
    /// Addresses that follow.
    pub count: u32,
    /// The addresses.
    pub hosts: [[u8; HOST_BYTES_MAX]; NEIGHBOURS_MAX],
}

/// `Op::PEER_GONE`, an event: the peer of a connection disconnected or exited.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct PeerGone {
    /// The connection.
    pub connection: u64,
    /// 1: the peer disconnected or exited in good order (`Op::GOODBYE`); 0: it died.
    pub orderly: u32,
    /// 0.
    pub reserved: u32,
}

// `Op::BUDGETS` has no body: asks for the resource usage of the process's user. Reply: `BudgetList`.
//
// `Op::GOODBYE` has no body and no reply: the process is about to exit in good order.
