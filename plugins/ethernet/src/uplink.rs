//! The link of a NIC: its data socket, and its address there.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use vipl_netio::packet::Asker;
use vipl_netio::{Socket, datagram, packet};
use vipl_plugin_sdk::abi::VIPL_LOG_DEBUG;
use vipl_plugin_sdk::settings::{number, truth};
use vipl_plugin_sdk::{Host, Link};
use vipl_wire::MTU_MIN;

use crate::doorbell::{Counters, Doorbell, Policy};
use crate::inlet::Inlet;
use crate::medium::{Medium, ip_of_host};
use crate::try_lock::TryLock;

/// How long an address may be absent: it returns when a lease is renewed, or an interface is switched off and on. Peers
/// close a connection a little sooner.
const ABSENT_NS: u64 = 10_000_000_000;

/// How often the kernel is asked whether the interface is a port, in nanoseconds.
const PORT_CHECK_NS: u64 = 2_000_000_000;

/// Results of earlier checks of a link.
#[derive(Default)]
pub(crate) struct Checks {
    port_ns: u64,
    absent_since: Option<u64>,
}

/// The link of one NIC handle.
pub(crate) struct Uplink {
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) inlet: Inlet,
    pub(crate) medium: Medium,
    pub(crate) endpoint: u16,
    /// The host's address.
    pub(crate) address: Vec<u8>,
    pub(crate) mtu: usize,
    /// The longest frame in a train; `None`: there are no trains.
    pub(crate) train_mtu: Option<usize>,
    /// `None`: the system refuses a socket for it, and some changes of the link are not noticed.
    asker: Option<Asker>,
}

impl Uplink {
    /// Takes the data socket that the agent has opened for the plug-in `name`, whose card sends frames of up to
    /// `frame_max` bytes.
    pub(crate) fn open(
        name: &CStr,
        policy: Policy,
        frame_max: usize,
        link: Link,
        datagrams: bool,
    ) -> std::io::Result<Uplink> {
        let frame_max = number(name, c"mtu").map_or(frame_max, |most| frame_max.min(most as usize));
        let mtu = (link.mtu as usize).min(frame_max);
        let medium = Medium::of(&link, datagrams)?;
        let train_mtu = (link.mtu as usize)
            .saturating_sub(packet::EXTRA)
            .min(frame_max);
        let fd = link.socket.as_raw_fd();
        let (inlet, socket) = if datagrams {
            let receiver = datagram::Receiver::open(fd)?;
            let sender = datagram::Sender::new(link.socket);
            (
                Inlet::Datagrams(TryLock::new(receiver)),
                Socket::Datagrams(sender),
            )
        } else {
            let frames = number(name, c"receive_frames").unwrap_or(256) as usize;
            let frames = frames.next_power_of_two();
            let receiver = packet::Receiver::open(fd, mtu, frames)?;
            let mut sender = packet::Sender::new(link.socket);
            let wanted = truth(name, c"trains") && train_mtu >= MTU_MIN;
            let trains = link.trains.filter(|_| wanted).map(|socket| {
                let socket = sender.use_trains(socket)?;
                packet::Trains::open(socket, train_mtu + packet::EXTRA, frames)
            });
            let trains = trains.transpose().unwrap_or_else(|error| {
                let text = format!("{name:?}: no trains of frames: {error}");
                Host::get().log(VIPL_LOG_DEBUG, &text);
                None
            });
            (Inlet::packets(receiver, trains), Socket::Packets(sender))
        };
        let train_mtu = inlet.has_trains().then_some(train_mtu);
        let counter = |counter| Host::get().counter(name, counter);
        let counters = Counters {
            sent: counter(c"frames_sent"),
            again: counter(c"frames_again"),
            lost: counter(c"frames_lost"),
            kicks: counter(c"kicks"),
        };
        Ok(Uplink {
            doorbell: Arc::new(Doorbell::new(policy, socket, counters)),
            inlet,
            medium,
            endpoint: link.endpoint,
            address: link.address,
            mtu,
            train_mtu,
            asker: Asker::open().ok(),
        })
    }

    /// Why the link no longer works, if it does not.
    pub(crate) fn failure(&self, checks: &mut Checks, now: u64) -> Option<String> {
        let Some(socket) = self.socket() else {
            let why = "the program has closed the descriptor of the interface";
            return Some(why.to_owned());
        };
        match &self.medium {
            Medium::Ethernet(_) => {
                let due = now >= checks.port_ns + PORT_CHECK_NS;
                let asker = self.asker.as_ref().filter(|_| due);
                if due {
                    checks.port_ns = now;
                }
                let lost = packet::lost(socket, asker);
                lost.map(|lost| lost.to_string())
            }
            Medium::Udp(_) => {
                let own = ip_of_host(&self.address).ok()?;
                let local = self.asker.as_ref().and_then(|asker| asker.is_local(own));
                if local.unwrap_or(true) {
                    checks.absent_since = None;
                    return None;
                }
                let since = *checks.absent_since.get_or_insert(now);
                let gone = now.saturating_sub(since) >= ABSENT_NS;
                gone.then(|| format!("this host does not have the address {own} any more"))
            }
        }
    }

    /// The sockets, as far as the application has not closed them.
    pub(crate) fn sockets(&self) -> [Option<RawFd>; 2] {
        [self.doorbell.socket(), self.doorbell.train_socket()]
    }

    /// The data socket. `None`: the application has closed it.
    pub(crate) fn socket(&self) -> Option<RawFd> {
        self.doorbell.socket()
    }
}
