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

/// The most frames of one train.
const TRAIN_FRAMES: u32 = 64;

/// The receive side of a data socket of either kind.
pub(crate) enum Inlet {
    Packets(TryLock<Packets>, Tips),
    Datagrams(TryLock<datagram::Receiver>),
}

/// The rings.
pub(crate) struct Packets {
    single: packet::Receiver,
    trains: Option<packet::Trains>,
}

/// The places of the next frames in the rings, for threads that do not hold the lock.
pub(crate) struct Tips {
    single: Tip,
    trains: Option<Tip>,
}

impl Tips {
    #[inline(always)]
    fn has_frame(&self) -> bool {
        self.single.has_frame() || self.trains.as_ref().is_some_and(Tip::has_frame)
    }
}

/// An inlet that this thread reads.
pub(crate) enum Reading<'a> {
    Packets(Guard<'a, Packets>, &'a Tips),
    Datagrams(Guard<'a, datagram::Receiver>),
}

impl Inlet {
    /// That of packet sockets.
    pub(crate) fn packets(single: packet::Receiver, trains: Option<packet::Trains>) -> Inlet {
        let tips = Tips {
            single: Tip::new(&single),
            trains: trains.as_ref().map(packet::Trains::tip),
        };
        Inlet::Packets(TryLock::new(Packets { single, trains }), tips)
    }

    /// Whether trains are received.
    pub(crate) fn has_trains(&self) -> bool {
        matches!(self, Inlet::Packets(_, tips) if tips.trains.is_some())
    }

    /// Whether a frame is known to wait, without a system call; prefetches it.
    #[inline(always)]
    pub(crate) fn has_frame(&self) -> bool {
        match self {
            Inlet::Packets(_, tips) => tips.has_frame(),
            Inlet::Datagrams(_) => false,
        }
    }

    /// Whether a frame waits and no other thread reads; prefetches the frame. Over UDP this calls the kernel, and takes
    /// the frame.
    #[inline(always)]
    pub(crate) fn finds_frame(&self) -> bool {
        match self {
            Inlet::Packets(_, tips) => tips.has_frame(),
            Inlet::Datagrams(receiver) => receiver
                .try_lock()
                .is_some_and(|mut receiver| receiver.fetch()),
        }
    }

    /// Begins to read, if no other thread reads, and a frame may wait or `all` are wanted.
    #[inline(always)]
    pub(crate) fn reading(&self, all: bool) -> Option<Reading<'_>> {
        match self {
            Inlet::Packets(packets, tips) => {
                if !all && !tips.has_frame() {
                    return None;
                }
                Some(Reading::Packets(packets.try_lock()?, tips))
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
            Reading::Packets(packets, tips) => {
                let Packets { single, trains } = &mut **packets;
                let most = match all {
                    true => single.frames() * TRAIN_FRAMES,
                    false => POLL_FRAMES,
                };
                let mut received = Received::default();
                loop {
                    // Single frames that left before a train are here when the train is.
                    let tip = tips.trains.as_ref().filter(|tip| tip.has_frame());
                    received += single.receive(most - received.count(), |frame| {
                        // SAFETY: the agent gave the socket to this process only, and does not map the ring itself.
                        let frame = unsafe { frame.in_place() };
                        each(
                            &|| sender(frame),
                            frame.get(ETHERNET..).unwrap_or_default(),
                            false,
                        );
                    });
                    tips.single.follow(single);
                    let (Some(tip), Some(trains)) = (tip, trains.as_mut()) else {
                        break;
                    };
                    if received.count() < most {
                        received += trains.receive(|link, frame| {
                            each(&|| sender(link), frame, false);
                        });
                        trains.move_tip(tip);
                    }
                    if received.count() >= most {
                        break;
                    }
                }
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

/// The sender of a frame with this Ethernet header.
fn sender(link: &[u8]) -> Address {
    let sender = packet::split(link).map(|(sender, _)| sender);
    Address::Ethernet(sender.unwrap_or([0xFF; 6]))
}
