//! The interface of a NIC: its data socket, and its address on the link.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

use vipl_packet::{Receiver, Tip};
use vipl_plugin_sdk::settings::number;
use vipl_plugin_sdk::{Host, Link};

use crate::doorbell::{Counters, Doorbell, Policy};
use crate::try_lock::TryLock;

/// The interface of one NIC handle.
pub(crate) struct Uplink {
    pub(crate) doorbell: Doorbell,
    pub(crate) receiver: TryLock<Receiver>,
    /// Where the receiver finds its next frame, for threads that do not hold it.
    pub(crate) tip: Tip,
    pub(crate) endpoint: u16,
    pub(crate) address: [u8; 6],
    pub(crate) mtu: usize,
}

impl Uplink {
    /// Takes the data socket that the agent has opened for the plug-in `name`. `frame_max` is the largest payload of a
    /// frame that its card sends.
    pub(crate) fn open(
        name: &CStr,
        policy: Policy,
        frame_max: usize,
        link: Link,
    ) -> std::io::Result<Uplink> {
        let mtu = (link.mtu as usize).min(frame_max);
        let frames = number(name, c"receive_frames").unwrap_or(256) as usize;
        let receiver = Receiver::open(link.socket.as_raw_fd(), mtu, frames.next_power_of_two())?;
        let address =
            link.address.as_slice().try_into().map_err(|_| {
                std::io::Error::other("the interface's address does not have 6 bytes")
            })?;
        let counter = |counter| Host::get().counter(name, counter);
        let counters = Counters {
            sent: counter(c"frames_sent"),
            again: counter(c"frames_again"),
            lost: counter(c"frames_lost"),
            kicks: counter(c"kicks"),
        };
        Ok(Uplink {
            doorbell: Doorbell::new(policy, link.socket, counters),
            tip: Tip::new(&receiver),
            receiver: TryLock::new(receiver),
            endpoint: link.endpoint,
            address,
            mtu,
        })
    }

    /// The data socket. `None`: the application has closed it.
    pub(crate) fn socket(&self) -> Option<RawFd> {
        self.doorbell.socket()
    }
}
