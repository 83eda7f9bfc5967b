//! The state that the VIs of one NIC handle share with each other and with the watch thread, and the receive path from
//! the socket to the VIs.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use vipl_link_emulator::Impairments;
use vipl_netio::Address;
use vipl_netio::peer::PeerProcesses;
use vipl_plugin_sdk::{Host, NicHandle, shm};
use vipl_sys::mutex::Mutex;
use vipl_sys::table::Chunks;

use crate::bell::Bell;
use crate::coalescing::Coalescing;
use crate::doorbell::Doorbell;
use crate::inbox::Inbox;
use crate::inlet::Reading;
use crate::lingering::Lingering;
use crate::schedule::Schedule;
use crate::uplink::Uplink;
use crate::version::VersionPeers;
use crate::watch::Watch;
use crate::{NO_VI, VIS_MAX};

/// Payload of a frame between two processes of one host, through memory, without an emulated link.
const LOCAL_MTU: usize = 8 << 10;

/// Returns the sender of a frame, if it is known.
pub(crate) type Origin<'a> = &'a dyn Fn() -> Option<Address>;

/// Counters that `vipinfo` shows.
pub(crate) struct Counters {
    pub(crate) received: &'static AtomicU64,
    /// Wrong CRC.
    pub(crate) corrupt: &'static AtomicU64,
    /// Truncated, of another version, or a protocol error.
    pub(crate) bad: &'static AtomicU64,
    /// Without the seal of the connection.
    pub(crate) forged: &'static AtomicU64,
    /// Marked by a congested router.
    pub(crate) marked: &'static AtomicU64,
    /// For no connection of this NIC, or dropped because its inbox was full.
    pub(crate) stray: &'static AtomicU64,
    /// Dropped by the kernel because the receive ring was full.
    pub(crate) dropped: &'static AtomicU64,
    /// DATA frames that were retransmitted.
    pub(crate) sent_again: &'static AtomicU64,
    /// Times that a path stopped carrying frames of the size in use.
    pub(crate) black_holes: &'static AtomicU64,
    /// Peers that have moved to another address.
    pub(crate) moved: &'static AtomicU64,
}

impl Counters {
    /// Those of this plug-in.
    pub(crate) fn of(plugin: &CStr) -> Counters {
        let counter = |name| Host::get().counter(plugin, name);
        Counters {
            received: counter(c"frames_received"),
            corrupt: counter(c"frames_corrupt"),
            bad: counter(c"frames_bad"),
            forged: counter(c"frames_forged"),
            marked: counter(c"frames_marked"),
            stray: counter(c"frames_stray"),
            dropped: counter(c"frames_dropped"),
            sent_again: counter(c"frames_sent_again"),
            black_holes: counter(c"black_holes"),
            moved: counter(c"peers_moved"),
        }
    }
}

/// What the VIs of a NIC handle and its threads share.
pub(crate) struct Device {
    nic: NicHandle,
    pub(crate) name: String,
    pub(crate) bell: Arc<Bell>,
    /// The interface, if there is one.
    pub(crate) uplink: Option<Uplink>,
    /// What the links to other processes of this host do to frames, if they are emulated.
    pub(crate) impairments: Option<Impairments>,
    pub(crate) mtu: usize,
    inboxes: Chunks<Inbox>,
    pub(crate) schedule: Schedule,
    pub(crate) lingering: Lingering,
    versions: VersionPeers,
    pub(crate) coalescing: Coalescing,
    pub(crate) counters: Counters,
    pub(crate) watch: Watch,
    peer_bells: Mutex<BTreeMap<u64, Weak<Bell>>>,
    pub(crate) peers: PeerProcesses,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Device {
    pub(crate) fn new(
        nic: NicHandle,
        name: String,
        bell: Bell,
        (uplink, impairments): (Option<Uplink>, Option<Impairments>),
        mtu: usize,
        counters: Counters,
    ) -> Device {
        Device {
            nic,
            name,
            bell: Arc::new(bell),
            uplink,
            impairments,
            mtu,
            inboxes: Chunks::new(VIS_MAX as usize),
            schedule: Schedule::default(),
            lingering: Lingering::default(),
            versions: VersionPeers::default(),
            coalescing: Coalescing::default(),
            counters,
            watch: Watch::default(),
            peer_bells: Mutex::default(),
            peers: PeerProcesses::default(),
        }
    }

    pub(crate) fn nic(&self) -> NicHandle {
        self.nic
    }

    pub(crate) fn doorbell(&self) -> Option<&Doorbell> {
        self.uplink.as_ref().map(|uplink| &*uplink.doorbell)
    }

    /// Rings the doorbell, if there is one.
    #[inline(always)]
    pub(crate) fn ring(&self) {
        if let Some(uplink) = &self.uplink {
            uplink.doorbell.ring();
        }
    }

    /// The sockets of the link, as far as there are any that the application has not closed.
    pub(crate) fn sockets(&self) -> [Option<RawFd>; 2] {
        self.uplink.as_ref().map_or([None; 2], Uplink::sockets)
    }

    pub(crate) fn inbox(&self, index: u32) -> &Inbox {
        self.inboxes.make(index as usize)
    }

    /// Largest frame to a peer on this host.
    pub(crate) fn local_mtu(&self) -> usize {
        match &self.impairments {
            Some(_) => self.mtu,
            None => LOCAL_MTU,
        }
    }

    /// If another VI than `own` coalesces, leaves it to the watch thread: the application uses another part of the NIC.
    #[inline(always)]
    pub(crate) fn hand_over_coalescing(&self, own: u32) {
        if self.coalescing.is_unreported(own)
            && let Some(index) = self.coalescing.report(own)
        {
            self.bell.mark(index);
            self.watch.kick(Some(&self.bell));
        }
    }

    /// Sets the deadline of a connected VI.
    #[inline(always)]
    pub(crate) fn set_deadline(&self, index: u32, deadline: u64, now: u64) {
        if self.schedule.set_deadline(index, deadline, now) {
            self.watch.expect(&self.bell, deadline);
        }
    }

    /// Sets the ready bits of the VIs whose deadlines have passed. Returns the next deadline.
    pub(crate) fn mark_due(&self, now: u64) -> u64 {
        self.schedule.due(now, |index| self.bell.mark(index))
    }

    /// The bell of a peer's NIC on this host, mapped once for all connections with it.
    pub(crate) fn peer_bell(&self, name: u64, fds: [RawFd; 2]) -> std::io::Result<Arc<Bell>> {
        let mut bells = self.peer_bells.lock();
        if let Some(bell) = bells.get(&name).and_then(Weak::upgrade) {
            return Ok(bell);
        }
        bells.retain(|_, bell| bell.strong_count() > 0);
        let bell = Arc::new(Bell::open(fds[0], shm::duplicate(fds[1])?)?);
        bells.insert(name, Arc::downgrade(&bell));
        Ok(bell)
    }

    /// Reads the socket. `each` gets the frames of the VI `own` whose connection has this key check, in order of arrival:
    /// the frame without the link's header, whether a router has marked it, and its origin. Frames of other VIs go to
    /// their inboxes. If another thread is reading, it fills the inbox of `own`. If there is no frame the lock is not
    /// tried.
    #[inline(always)]
    pub(crate) fn receive(&self, own: u32, check: u64, mut each: impl FnMut(&[u8], bool, Origin)) {
        let Some(uplink) = &self.uplink else { return };
        let reading = uplink.inlet.reading(false);
        self.empty_inbox(own, &mut each);
        if let Some(reading) = reading {
            self.read(uplink, reading, false, (own, check), each);
        }
    }

    /// Does the same for all frames that have arrived by now. False: another thread is reading, and may hold frames for
    /// this VI.
    #[cold]
    pub(crate) fn catch_up(
        &self,
        own: u32,
        check: u64,
        mut each: impl FnMut(&[u8], bool, Origin),
    ) -> bool {
        let Some(uplink) = &self.uplink else {
            return true;
        };
        let Some(reading) = uplink.inlet.reading(true) else {
            return false;
        };
        self.empty_inbox(own, &mut each);
        self.read(uplink, reading, true, (own, check), each);
        true
    }

    /// Takes frames from the inbox, which came before those in the ring.
    #[inline(always)]
    fn empty_inbox(&self, own: u32, each: &mut impl FnMut(&[u8], bool, Origin)) {
        if let Some(inbox) = self.inboxes.get(own as usize) {
            while let Some((from, frame, marked)) = inbox.take() {
                each(&frame, marked, &|| from);
            }
        }
    }

    /// Takes frames from the socket.
    #[inline(always)]
    fn read(
        &self,
        uplink: &Uplink,
        reading: Reading<'_>,
        all: bool,
        (own, check): (u32, u64),
        mut each: impl FnMut(&[u8], bool, Origin),
    ) {
        let mut others = false;
        let received = reading.receive(all, |sender, payload, marked| {
            match vipl_wire::address(payload) {
                Some(address) if address.endpoint == uplink.endpoint => {
                    if (address.vi, address.check) == (own, check) {
                        each(payload, marked, &|| Some(sender()));
                    } else {
                        others |= self.deliver(uplink, address, sender, (payload, marked));
                    }
                }
                _ => self.unreadable(uplink, sender(), payload),
            }
        });
        if received.dropped > 0 {
            count(self.counters.dropped, u64::from(received.dropped));
        }
        if received.cut > 0 {
            count(self.counters.bad, u64::from(received.cut));
        }
        count(self.counters.received, u64::from(received.frames));
        if others {
            self.bell.ring_if_wanted();
        }
    }

    /// Reads the socket into the inboxes of all VIs.
    pub(crate) fn receive_all(&self) {
        self.receive(NO_VI, 0, |_, _, _| {});
    }

    /// Delivers a frame for another VI than the one in progress. True: that VI has something to do now.
    #[cold]
    fn deliver(
        &self,
        uplink: &Uplink,
        address: vipl_wire::Address,
        sender: &dyn Fn() -> Address,
        (payload, marked): (&[u8], bool),
    ) -> bool {
        if let Some(inbox) = self.inboxes.get(address.vi as usize)
            && inbox.put(address.check, sender, (payload, marked))
        {
            self.bell.mark(address.vi);
            return true;
        }
        // For no open connection.
        let (now, sender) = (Host::get().now_ns(), sender());
        if !self.lingering.take(uplink, sender, payload, now)
            && !self
                .versions
                .take(uplink, &self.name, (sender, payload), now)
        {
            count(self.counters.stray, 1);
        }
        false
    }

    /// Counts a frame of no meaning in this version, which may be part of version negotiation.
    #[cold]
    fn unreadable(&self, uplink: &Uplink, sender: Address, payload: &[u8]) {
        count(self.counters.bad, 1);
        let now = Host::get().now_ns();
        self.versions
            .take(uplink, &self.name, (sender, payload), now);
    }
}
