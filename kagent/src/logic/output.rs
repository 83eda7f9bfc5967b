//! Actions for the runtime: sending messages, making segments, opening sockets.

#![forbid(unsafe_code)]

use std::net::SocketAddr;

use kagent_proto::{DEVICE_BYTES, LINK_BYTES};

use crate::logic::address::HostAddress;
use crate::logic::ids::{ClientId, ConnectionId, LinkId};

/// One action for the runtime. Actions are carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output<F> {
    /// Send a message.
    Send(Message<F>),
    /// Make a segment and send it to two processes.
    Join(Join<F>),
    /// Open a data socket for a process.
    OpenLink(OpenLink),
    /// Take over a data socket of a process.
    AdoptLink(AdoptLink<F>),
    /// Report to a process whether it may have a data socket.
    AskLink(OpenLink),
    /// Connect a process to a device process.
    OpenDevice(OpenDevice),
    /// Send a frame, which may be lost.
    Frame(FrameOut),
    /// Close a link that is no longer used.
    CloseLink(LinkId),
    /// A line for the debug log.
    Note(String),
}

/// A frame for another host, without its Ethernet header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameOut {
    /// The link.
    pub link: LinkId,
    /// Destination.
    pub to: HostAddress,
    /// The frame.
    pub bytes: Vec<u8>,
}

/// A process requests a data socket, or asks whether it may have one. The runtime answers with
/// [`handle_link_opened`](crate::Agent::handle_link_opened), or
/// [`handle_link_asked`](crate::Agent::handle_link_asked), before the next input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenLink {
    /// The process.
    pub client: ClientId,
    /// Id of its call.
    pub call: u64,
    /// Name of the link, zero padded.
    pub interface: [u8; LINK_BYTES],
}

/// A process holds a data socket issued by a previous agent. The runtime answers with
/// [`handle_link_opened`](crate::Agent::handle_link_opened) before the next input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptLink<F> {
    /// The process, its call, and the name of the link.
    pub open: OpenLink,
    /// Address of the agent that issued it.
    pub host: SocketAddr,
    /// Its port.
    pub endpoint: u16,
    /// The socket.
    pub socket: F,
}

/// A process requests a connection to a device process of its user. The runtime answers with
/// [`handle_device_opened`](crate::Agent::handle_device_opened) before the next input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDevice {
    /// The process.
    pub client: ClientId,
    /// Id of its call.
    pub call: u64,
    /// User that owns the device.
    pub uid: u32,
    /// Process id of the client.
    pub pid: u32,
    /// Name of the device, zero padded.
    pub device: [u8; DEVICE_BYTES],
}

/// A message to one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<F> {
    /// Destination.
    pub client: ClientId,
    /// The packet.
    pub bytes: Vec<u8>,
    /// Descriptors beside the packet.
    pub fds: Vec<F>,
}

/// Two processes that have just been connected. The runtime makes one zeroed segment sealed against resizing,
/// prepends it to the descriptors of both messages, and sends them. If it cannot make a segment, it sends
/// neither message and passes the `Join` to [`handle_join_failed`](crate::Agent::handle_join_failed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join<F> {
    /// Size of the segment, whole pages.
    pub segment_bytes: u32,
    /// One message for each side.
    pub messages: [Message<F>; 2],
    pub(crate) ends: [JoinEnd; 2],
}

/// One side of a [`Join`], to undo it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinEnd {
    pub(crate) connection: ConnectionId,
    /// Id of the call that the message answers.
    pub(crate) call: u64,
}

impl<F> Join<F> {
    /// The two messages with the segment as first descriptor.
    pub fn with_segment(self, segment: F) -> [Message<F>; 2]
    where
        F: Clone,
    {
        self.messages.map(|mut message| {
            message.fds.insert(0, segment.clone());
            message
        })
    }
}
