//! The link of a NIC: its data socket, and its address there.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use vipl_netio::packet::Asker;
use vipl_netio::{Socket, datagram, packet};
use vipl_plugin_sdk::settings::number;
use vipl_plugin_sdk::{Host, Link};

use crate::doorbell::{Counters, Doorbell, Policy};
use crate::inlet::Inlet;
use crate::medium::{Medium, ip_of_host};
use crate::try_lock::TryLock;

/// How long an address may be absent: it returns when a lease is renewed, or an interface is switched off and on. Peers
/// close a connection a little sooner.
const ABSENT_NS: u64 = 10_000_000_000;

/// One of so many checks asks the kernel whether the interface is a port.
const PORT_CHECK: u32 = 8;

/// Results of earlier checks of a link.
#[derive(Default)]
pub(crate) struct Checks {
    count: u32,
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
            let receiver = packet::Receiver::open(fd, mtu, frames.next_power_of_two())?;
            let tip = packet::Tip::new(&receiver);
            let sender = packet::Sender::new(link.socket);
            (
                Inlet::Packets(TryLock::new(receiver), tip),
                Socket::Packets(sender),
            )
        };
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
                checks.count = (checks.count + 1) % PORT_CHECK;
                let asker = self.asker.as_ref().filter(|_| checks.count == 0);
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

    /// The data socket. `None`: the application has closed it.
    pub(crate) fn socket(&self) -> Option<RawFd> {
        self.doorbell.socket()
    }
}
