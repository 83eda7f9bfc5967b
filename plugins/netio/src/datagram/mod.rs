//! UDP data sockets: datagrams in trains.
//!
//! The cost of UDP is in the path through the kernel, which each packet takes by itself. Datagrams of one size to one
//! receiver can take it together: the sender passes a *train* and the length of its datagrams (`UDP_SEGMENT`), and the
//! receiver gets datagrams that arrived together in one piece (`UDP_GRO`). [`Sender`] and [`Receiver`] do that. Without
//! support by the kernel, a route or an interface only speed is lost.
//!
//! The application may close our descriptor and get another socket with its number. Flags that only UDP accepts keep
//! our bytes out of such a socket, and its bytes from being taken.

mod peer;
mod receive;
mod send;

use crate::options;

pub use peer::{PEER, Peer};
pub use receive::Receiver;
pub use send::Sender;

/// Datagrams of one train: the kernel's limit.
pub(crate) const TRAIN: usize = 64;
/// Bytes of one train.
pub(crate) const TRAIN_BYTES: usize = 65_000;

/// Sends datagrams with the ECT codepoint and receives marks, or neither.
fn use_marks(socket: std::os::fd::RawFd, on: bool) {
    let tos = if on { ECT_0 } else { 0 };
    // The socket has one of the two versions of IP.
    for (level, name, value) in [
        (libc::IPPROTO_IP, libc::IP_TOS, tos),
        (libc::IPPROTO_IP, libc::IP_RECVTOS, i32::from(on)),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, tos),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, i32::from(on)),
    ] {
        let _ = options::set(socket, level, name, &value);
    }
}

/// The codepoint ECT(0), and that of a mark, in the field of type of service or traffic class.
const ECT_0: i32 = 2;
const CONGESTION: u8 = 3;
