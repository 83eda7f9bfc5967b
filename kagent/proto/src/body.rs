//! Bodies of the messages. `is_valid` says whether a body that a process sent may be used at all.

use std::net::{IpAddr, SocketAddr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Longest host address in bytes.
pub const HOST_BYTES_MAX: usize = 32;
/// Longest data address in bytes.
pub const DATA_ADDRESS_BYTES_MAX: usize = 256;
/// Longest discriminator in bytes.
pub const DISCRIMINATOR_BYTES_MAX: usize = 64;
/// Most addresses in one [`NeighbourList`].
pub const NEIGHBOURS_MAX: usize = 24;
/// Bytes of the name of a provider, zero padded.
pub const PROVIDER_BYTES: usize = 32;
/// Bytes of the name of a network interface, zero padded.
pub const INTERFACE_BYTES: usize = 16;
/// Room for the name of a link, NUL included.
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

/// Where a NIC receives data, in the terms of its plug-in: opaque bytes that partners get as they are.
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

    /// `None`: too long.
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

/// The attributes of a VI that its partner learns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Attributes {
    /// Largest message in bytes.
    pub max_transfer_size: u64,
    /// Quality of service; always 0.
    pub qos: u64,
    /// Exactly one reliability level.
    pub reliability: u16,
    /// 1: the partner may write by RDMA.
    pub rdma_write: u8,
    /// 1: the partner may read by RDMA.
    pub rdma_read: u8,
    /// 0.
    pub reserved: u32,
}

/// `Op::HELLO`, first message of every process. Reply: [`Welcome`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Hello {
    /// Feature bits the process would like; none are defined yet.
    pub features: u64,
}

/// `Op::WELCOME`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Welcome {
    /// Feature bits that both have.
    pub features: u64,
    /// Process id of the agent, for messages to people.
    pub agent_pid: u32,
    /// Inode of the agent's network namespace; 0: unknown. Its interfaces are those of that namespace.
    pub network: u32,
    /// Version of the agent, zero padded. Older agents send nothing from here on.
    pub version: [u8; VERSION_BYTES],
    /// Path of its program, zero padded; the beginning of a longer one.
    pub program: [u8; PROGRAM_BYTES],
    /// What it runs in, by bits; for messages to people.
    pub surroundings: u32,
    /// Inode of its mount namespace; 0: unknown.
    pub mounts: u32,
}

impl Welcome {
    /// `surroundings`: a seccomp filter, of the program that started it.
    pub const SECCOMP: u32 = 1;
    /// `surroundings`: no `/proc`.
    pub const NO_PROC: u32 = 2;

    /// What an agent has sent. What it does not know yet is 0.
    pub fn read(body: &[u8]) -> Welcome {
        let mut bytes = [0; size_of::<Welcome>()];
        let known = body.len().min(bytes.len());
        bytes[..known].copy_from_slice(&body[..known]);
        zerocopy::transmute!(bytes)
    }
}

/// `Op::NIC_OPEN`: a process opened a device. Beside it: up to two descriptors that partners will get
/// (the NIC's bell page and its region table). Reply: [`NicOpened`].
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
    /// Where the device receives data.
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
    /// The agent's name for the NIC; never 0, never reused.
    pub nic: u64,
}

/// `Op::LINK_OPEN`: a process wants a data socket on a network interface. Reply: [`LinkOpened`], or
/// `Op::DONE` with `INVALID` (no such interface, or no Ethernet), `NOT_PERMITTED` (not for this user),
/// `NO_PRIVILEGE`, `NO_SYSTEM_AGENT`, `NO_SECRET`, `NOT_SEALED`, `OTHER_NETWORK`, `BUSY` (another agent serves the interface) or `RESOURCE`.
///
/// `Op::LINK_ASK`: whether the process may have one. Nothing is opened. Reply: `Op::DONE` with `OK`, `INVALID`,
/// `NOT_PERMITTED`, `NO_PRIVILEGE`, `NO_SYSTEM_AGENT` or `RESOURCE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LinkOpen {
    /// Name of the link, zero padded: that of an interface, or `udp:` and what it is to be bound to, an address of
    /// this host or an interface; nothing: the address that reaches other networks. With `sealed-udp:` the agent must
    /// have a secret.
    pub interface: [u8; LINK_BYTES],
}

impl LinkOpen {
    /// Whether there is a name that ends.
    pub fn is_valid(&self) -> bool {
        self.interface[0] != 0 && self.interface[LINK_BYTES - 1] == 0
    }
}

/// `Op::LINK_ADOPT`: a process has a data socket over UDP that an agent before this one has given it. Beside it: that
/// socket. Reply: [`LinkOpened`], or `Op::DONE` as for `Op::LINK_OPEN`; also `INVALID` if the socket is not what the body
/// says, and `BUSY` if this agent has, or must have, another port, so that others know the process by an address that is not
/// this agent's.
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
    /// IP address and port of the agent. `None`: it is not one.
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

/// `Op::LINK_OPENED`. Beside it: the data socket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LinkOpened {
    /// The agent's name for this endpoint, for [`NicOpen`]; never 0, never reused.
    pub link: u64,
    /// Number of the interface.
    pub interface_index: u32,
    /// Largest payload of a frame in bytes.
    pub mtu: u32,
    /// Speed in Mbit/s; 0: unknown.
    pub speed_mbit: u32,
    /// What frames for this process carry; one of its own for each data socket of an interface.
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

/// `Op::DEVICE_OPEN`: a process wants to speak with the device process of this name, which the agent starts for
/// the process's user if it does not run. Reply: [`DeviceOpened`], or `Op::DONE` with `INVALID` (there is no
/// such program) or `RESOURCE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct DeviceOpen {
    /// Name of the device: lower-case letters and digits, zero padded.
    pub device: [u8; DEVICE_BYTES],
}

impl DeviceOpen {
    /// Whether there is a name that ends, and that names a file in no other folder.
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

/// `Op::DEVICE_OPENED`. Beside it: a socket `SOCK_SEQPACKET`, the other end of which the device has. It hangs up
/// when the device ends.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct DeviceOpened {
    /// Process id of the device.
    pub pid: u32,
    /// 0.
    pub reserved: u32,
}

/// What the agent sends to a device process, beside it the device's end of a new process's socket. A device
/// reads such packets from its standard input, a `SOCK_SEQPACKET` socket, and ends when that hangs up.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Introduction {
    /// [`Introduction::VERSION`].
    pub version: u32,
    /// Process id of the new process, as the system says.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// 0.
    pub reserved: u32,
}

impl Introduction {
    /// Version of what the agent says to devices.
    pub const VERSION: u32 = 1;
}

/// `Op::NIC_CLOSE`: connection handles of this NIC that were not answered are rejected, waits and
/// requests are cancelled, connections end in good order. Reply: `Op::DONE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NicClose {
    /// Which NIC.
    pub nic: u64,
}

/// `Op::WAIT`: VipConnectWait. Reply: [`Incoming`], or `Op::DONE` with a status.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Wait {
    /// At which NIC.
    pub nic: u64,
    /// Milliseconds; `u64::MAX` is no limit.
    pub timeout_ms: u64,
    /// Only the discriminator counts.
    pub local: Point,
    /// 0.
    pub reserved: u32,
}

/// `Op::INCOMING`: a request matched.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Incoming {
    /// The agent's name for the request and the later connection; never 0, never reused.
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
    /// From which NIC.
    pub nic: u64,
    /// The requester's name for its VI, told to the partner.
    pub vi: u64,
    /// Milliseconds, not 0; `u64::MAX` is no limit.
    pub timeout_ms: u64,
    /// How long to look for a waiter before `Status::NO_MATCH`, in milliseconds; not used by `PEER`.
    pub grace_ms: u64,
    /// Bytes of the shared segment that this side's plug-in wants; the larger wish wins.
    pub segment_bytes: u32,
    /// 0.
    pub reserved: u32,
    /// The requester's VI.
    pub attributes: Attributes,
    /// Only the discriminator counts: the host address is the NIC's.
    pub local: Point,
    /// Whom to reach.
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
    /// The accepter's name for its VI, told to the partner.
    pub vi: u64,
    /// The accepter's VI.
    pub attributes: Attributes,
    /// Bytes of the shared segment that this side's plug-in wants.
    pub segment_bytes: u32,
    /// 0.
    pub reserved: u32,
}

/// `Op::CONNECTED`: both sides get it in the same instant. Beside it: the connection's shared segment
/// (a memfd, zeroed, sealed against resizing), then the descriptors the partner's `NicOpen` brought.
///
/// With `remote` 1 the partner is on another host. There are no descriptors then, and the process has to
/// be ready for frames before its partner sends any: it attaches its VI and then calls `Op::CONFIRM`.
/// The reply to that says whether there is a connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Connected {
    /// The agent's name for this side of the connection: the accepter's is that of [`Incoming`], every
    /// other side gets a new one. Only `key` is common to both.
    pub connection: u64,
    /// Unguessable, the same at both sides.
    pub key: u64,
    /// The partner's NIC.
    pub peer_nic: u64,
    /// The partner's own name for its VI.
    pub peer_vi: u64,
    /// Process id of the partner as the agent sees it.
    pub peer_pid: u32,
    /// 0 at the accepter (or one of two peers), 1 at the other.
    pub side: u32,
    /// Size of the segment in bytes.
    pub segment_bytes: u32,
    /// 1: the partner is on another host; `peer_nic`, `peer_pid` and `segment_bytes` are 0.
    pub remote: u32,
    /// The partner's VI.
    pub attributes: Attributes,
    /// Remote partner: its endpoint.
    pub remote_endpoint: u16,
    /// Remote partner: bytes used in `remote_host`.
    pub remote_host_len: u16,
    /// 1: `seal` is valid.
    pub sealed: u32,
    /// Remote partner: its host address.
    pub remote_host: [u8; HOST_BYTES_MAX],
    /// Where the partner's NIC receives data.
    pub data_address: DataAddress,
    /// Remote partner, where the hosts have a secret in common: one that only the two sides of this connection have.
    pub seal: [u8; 32],
}

/// `Op::REJECT` and `Op::DISCONNECT`. Reply: `Op::DONE`, `OK` also when the partner has already gone.
///
/// `Op::CONFIRM`: the VI of a connection to another host is attached. Reply: `Op::DONE` with `OK` when the
/// partner has confirmed as well, else with the reason why there is no connection; its name is then void.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ConnectionRef {
    /// Which connection.
    pub connection: u64,
}

/// `Op::CANCEL`. Reply: `Op::DONE`; the cancelled call still gets its own reply first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cancel {
    /// Id of the call that shall end.
    pub call: u64,
}

/// `Op::ADOPT`: hands one side of a connection that an earlier agent made to this one. Reply: [`Adopted`];
/// `PEER_GONE` follows when the other side does not come, or has come and left.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Adopt {
    /// At which NIC, by this agent's name for it.
    pub nic: u64,
    /// From [`Connected`]; it joins the two sides.
    pub key: u64,
    /// The process's name for its VI.
    pub vi: u64,
    /// From [`Connected`].
    pub side: u32,
    /// 0.
    pub reserved: u32,
    /// This side's VI; those of both sides agree, or they were never connected.
    pub attributes: Attributes,
}

impl Adopt {
    /// Whether there may be such a side of such a connection.
    pub fn is_valid(&self) -> bool {
        self.key != 0 && self.side <= 1
    }
}

/// `Op::ADOPTED`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Adopted {
    /// This agent's name for this side of the connection.
    pub connection: u64,
}

/// `Op::NEIGHBOURS`: which addresses the NIC's link has. Reply: [`NeighbourList`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Neighbours {
    /// At which NIC.
    pub nic: u64,
}

/// `Op::NEIGHBOUR_LIST`: addresses in use on this host, each once, the asker's own first.
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

/// `Op::PEER_GONE`, an event: the other side of a connection left.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct PeerGone {
    /// Which connection.
    pub connection: u64,
    /// 1: the partner disconnected or left in good order (`Op::GOODBYE`); 0: it died.
    pub orderly: u32,
    /// 0.
    pub reserved: u32,
}

// `Op::BUDGETS` has no body: what the user of the process has at the agent. Reply: `BudgetList`.
//
// `Op::GOODBYE` has no body and no reply: the process is about to end in good order.
