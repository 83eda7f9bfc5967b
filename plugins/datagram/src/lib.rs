//! UDP data sockets: datagrams in trains.
//!
//! The cost of UDP is in the path through the kernel, which each packet takes by itself. Datagrams of one size to one
//! receiver can take it together: the sender passes a *train* and its length per datagram (`UDP_SEGMENT`), and the
//! receiver gets what arrived together in one piece (`UDP_GRO`). [`Sender`] and [`Receiver`] do that. A kernel, a
//! route or an interface without it costs speed and nothing else.
//!
//! The application may close our descriptor and get another socket with its number. Flags that only UDP tolerates
//! keep bytes of ours out of such a socket, and bytes of its own from being taken.

#[cfg(not(target_os = "linux"))]
compile_error!("UDP_SEGMENT and UDP_GRO: Linux");

mod peer;
mod receive;
mod send;

pub use peer::{PEER, Peer};
pub use receive::{Received, Receiver};
pub use send::{Datagram, Sender, Sent};

/// Datagrams of one train; the kernel's limit, and at most 64 KB.
const TRAIN: usize = 64;
/// Bytes of one train.
const TRAIN_BYTES: usize = 65_000;

/// Sets an integer option.
fn option(socket: i32, level: i32, name: i32, value: i32) -> std::io::Result<()> {
    // SAFETY: the option's value is one integer.
    let status = unsafe {
        libc::setsockopt(
            socket,
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
