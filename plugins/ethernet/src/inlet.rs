//! The receive side of a data socket. Any thread may check for frames; one at a time reads them.

use vipl_netio::datagram::{self, Peer};
use vipl_netio::packet::{self, ETHERNET, Tip};
use vipl_netio::{Address, Received};
use vipl_wire::Kind;

use crate::try_lock::{Guard, TryLock};

/// Frames that one poll takes.
const POLL_FRAMES: u32 = 64;
/// More datagrams than the socket of an unprivileged process holds.
const WAITING_DATAGRAMS: u32 = 1024;

/// The receive side of a data socket of either kind.
pub(crate) enum Inlet {
    /// The ring, and the place of its next frame for threads that do not hold the lock.
    Packets(TryLock<packet::Receiver>, Tip),
    Datagrams(TryLock<datagram::Receiver>),
}

/// An inlet that this thread reads.
pub(crate) enum Reading<'a> {
    Packets(Guard<'a, packet::Receiver>, &'a Tip),
    Datagrams(Guard<'a, datagram::Receiver>),
}

impl Inlet {
    /// Whether a frame is known to wait, without a system call; prefetches it.
    #[inline(always)]
    pub(crate) fn has_frame(&self) -> bool {
        match self {
            Inlet::Packets(_, tip) => tip.has_frame(),
            Inlet::Datagrams(_) => false,
        }
    }

    /// Whether a frame waits and no other thread reads; prefetches the frame. Over UDP this calls the kernel, and takes
    /// the frame.
    #[inline(always)]
    pub(crate) fn finds_frame(&self) -> bool {
        match self {
            Inlet::Packets(_, tip) => tip.has_frame(),
            Inlet::Datagrams(receiver) => receiver
                .try_lock()
                .is_some_and(|mut receiver| receiver.fetch()),
        }
    }

    /// Begins to read, if no other thread reads, and a frame may wait or `all` are wanted.
    #[inline(always)]
    pub(crate) fn reading(&self, all: bool) -> Option<Reading<'_>> {
        match self {
            Inlet::Packets(receiver, tip) => {
                if !all && !tip.has_frame() {
                    return None;
                }
                Some(Reading::Packets(receiver.try_lock()?, tip))
            }
            Inlet::Datagrams(receiver) => Some(Reading::Datagrams(receiver.try_lock()?)),
        }
    }
}

impl Reading<'_> {
    /// Passes frames to `each`, with their senders, without their headers, and with whether a router has marked them:
    /// `all` that are waiting, or as many as one poll takes.
    #[inline(always)]
    pub(crate) fn receive(
        mut self,
        all: bool,
        mut each: impl FnMut(&dyn Fn() -> Address, &[u8], bool),
    ) -> Received {
        match &mut self {
            Reading::Packets(receiver, tip) => {
                let most = if all { receiver.frames() } else { POLL_FRAMES };
                let received = receiver.receive(most, |frame| {
                    // SAFETY: the agent gave the socket to this process only, and does not map the ring itself.
                    let frame = unsafe { frame.in_place() };
                    let payload = frame.get(ETHERNET..).unwrap_or_default();
                    let sender = || {
                        let sender = packet::split(frame).map(|(sender, _)| sender);
                        Address::Ethernet(sender.unwrap_or([0xFF; 6]))
                    };
                    each(&sender, payload, false);
                });
                tip.follow(receiver);
                received
            }
            Reading::Datagrams(receiver) => {
                let most = if all { WAITING_DATAGRAMS } else { POLL_FRAMES };
                // More frames may follow an acknowledgement, and to send for all of them at once makes longer trains.
                let urgent = |frame: &[u8]| !all && Kind::Data.is_of(frame);
                receiver.receive(most, urgent, |peer: &Peer, payload: &[u8], marked| {
                    each(&|| Address::Udp(*peer), payload, marked);
                })
            }
        }
    }
}
