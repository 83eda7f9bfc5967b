//! One opening of a device of this class.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vipl_abi::VIP_SERVICE_UNRELIABLE;
use vipl_packet::{Receiver, Tip};
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::settings::{number, register_bytes_max, transfer_max};
use vipl_plugin_sdk::shm::{self, Kept};
use vipl_plugin_sdk::{Host, Nic, Status};
use vipl_wire::{MTU_MIN, PartKind, PeerProcesses, body_max};

use crate::bell::{self, BELL_BYTES, Bell};
use crate::doorbell::{self, Doorbell};
use crate::farewell::Farewells;
use crate::gathering::Gathering;
use crate::inbox::Inbox;
use crate::provider::{Card, LinkSource, Network};
use crate::segment::SEGMENT;
use crate::strangers::Strangers;
use crate::turn::Turn;
use crate::vi::EthernetVi;
use crate::watch::{self, Watch};
use crate::{READ_LEVELS, VIS_MAX};

/// Regions of one NIC handle.
const REGIONS_MAX: u32 = 4096;
/// Payload of a frame between two processes of one host, through memory, without an emulated link.
const LOCAL_MTU: usize = 8 << 10;
/// No VI.
pub(crate) const NOBODY: u32 = u32::MAX;
/// A time that does not come.
pub(crate) const NEVER: u64 = u64::MAX;

/// Counters that `vipinfo` shows.
pub(crate) struct Counters {
    pub(crate) received: &'static AtomicU64,
    /// Wrong CRC.
    pub(crate) corrupt: &'static AtomicU64,
    /// Too short, another version, no sense.
    pub(crate) bad: &'static AtomicU64,
    /// For no connection of this NIC, or without room in its inbox.
    pub(crate) stray: &'static AtomicU64,
    /// Dropped by the kernel for want of room in the receive ring.
    pub(crate) dropped: &'static AtomicU64,
    /// DATA frames sent again.
    pub(crate) sent_again: &'static AtomicU64,
}

/// The interface, where there is one.
pub(crate) struct Wire {
    pub(crate) doorbell: Doorbell,
    pub(crate) receiver: Turn<Receiver>,
    /// Where the receiver finds its next frame, for those whose turn it is not.
    pub(crate) tip: Tip,
}

/// What the VIs of a NIC and its threads share.
pub(crate) struct Core {
    nic: *const vipl_nic,
    pub(crate) name: String,
    pub(crate) bell: Arc<Bell>,
    pub(crate) wire: Option<Wire>,
    /// Creates the links to other processes of this host, if these are emulated.
    pub(crate) emulated: Option<LinkSource>,
    pub(crate) endpoint: u16,
    pub(crate) address: [u8; 6],
    pub(crate) mtu: usize,
    pub(crate) inboxes: Box<[Inbox]>,
    /// When each VI wants to be looked after, in nanoseconds.
    deadlines: Box<[AtomicU64]>,
    /// None of them is earlier than this.
    soonest: AtomicU64,
    connected: [AtomicU64; VIS_MAX as usize / 64],
    /// When the program last looked at each VI, and at the socket, in nanoseconds.
    attended: Box<[AtomicU64]>,
    read: AtomicU64,
    pub(crate) farewells: Farewells,
    pub(crate) strangers: Strangers,
    pub(crate) gathering: Gathering,
    pub(crate) counters: Counters,
    pub(crate) watch: Watch,
    partners: Mutex<HashMap<u64, Weak<Bell>>>,
    pub(crate) peers: PeerProcesses,
}

// SAFETY: `nic` is used while the NIC is open only, and only passed to the host; all else is Sync.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

/// One opening of the device.
pub struct EthernetNic {
    pub(crate) core: Arc<Core>,
    /// What partners on this host get.
    _shared: [Kept; 2],
}

impl Core {
    pub(crate) fn nic(&self) -> *const vipl_nic {
        self.nic
    }

    pub(crate) fn doorbell(&self) -> Option<&Doorbell> {
        self.wire.as_ref().map(|wire| &wire.doorbell)
    }

    /// The data socket, if there is one that the program has not closed.
    pub(crate) fn socket(&self) -> Option<RawFd> {
        self.wire.as_ref().and_then(|wire| wire.doorbell.socket())
    }

    pub(crate) fn inbox(&self, index: u32) -> &Inbox {
        &self.inboxes[index as usize]
    }

    /// Largest frame to a partner on this host.
    pub(crate) fn local_mtu(&self) -> usize {
        match &self.emulated {
            Some(_) => self.mtu,
            None => LOCAL_MTU,
        }
    }

    /// The program does something else with the NIC than to look at the VI that gathers messages: the watch
    /// thread shall.
    #[inline(always)]
    pub(crate) fn see_to_gathering(&self, own: u32) {
        if self.gathering.is_untold(own)
            && let Some(index) = self.gathering.tell(own)
        {
            self.bell.mark(index);
            self.watch.look(&self.bell);
        }
    }

    /// A partner's bell on this host, mapped once however many connections lead there.
    pub(crate) fn partner(&self, name: u64, fds: [RawFd; 2]) -> std::io::Result<Arc<Bell>> {
        let mut partners = self
            .partners
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        if let Some(known) = partners.get(&name).and_then(Weak::upgrade) {
            return Ok(known);
        }
        partners.retain(|_, known| known.strong_count() > 0);
        let bell = Arc::new(Bell::open(fds[0], shm::duplicate(fds[1])?)?);
        partners.insert(name, Arc::downgrade(&bell));
        Ok(bell)
    }

    /// A VI is being looked at, and the socket with it.
    #[inline(always)]
    pub(crate) fn attend(&self, index: u32, now: u64) {
        self.attended[index as usize].store(now, Ordering::Relaxed);
        self.read.store(now, Ordering::Relaxed);
    }

    /// The program has posted on a VI, and will look at it.
    #[inline(always)]
    pub(crate) fn post(&self, index: u32, now: u64) {
        self.attended[index as usize].store(now, Ordering::Relaxed);
    }

    /// That was not the program.
    pub(crate) fn neglect(&self, index: u32) {
        self.attended[index as usize].store(0, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
    }

    /// Whether the program has looked at a VI since this time.
    pub(crate) fn is_attended(&self, index: u32, since: u64) -> bool {
        self.attended[index as usize].load(Ordering::Relaxed) > since
    }

    /// Whether the program has looked at the socket since this time.
    pub(crate) fn is_read(&self, since: u64) -> bool {
        self.read.load(Ordering::Relaxed) > since
    }

    /// Begins or ceases to look after a VI.
    pub(crate) fn set_connected(&self, index: u32, connected: bool) {
        let (word, bit) = (&self.connected[index as usize / 64], 1 << (index % 64));
        if connected {
            word.fetch_or(bit, Ordering::AcqRel);
        } else {
            word.fetch_and(!bit, Ordering::AcqRel);
            self.deadlines[index as usize].store(NEVER, Ordering::SeqCst);
        }
    }

    /// A connected VI wants to be looked after at this time, and comes by itself now. An earlier time that it
    /// gave before stays until it has passed: it changes with each message, and whoever looks after the VI then
    /// finds nothing due.
    #[inline(always)]
    pub(crate) fn set_deadline(&self, index: u32, deadline: u64, now: u64) {
        let place = &self.deadlines[index as usize];
        let before = place.load(Ordering::Relaxed);
        if now < before && before <= deadline {
            return;
        }
        place.store(deadline, Ordering::SeqCst);
        // If it is lower already, whoever raises it comes after the store above and sees it.
        if self.soonest.load(Ordering::SeqCst) > deadline {
            self.soonest.fetch_min(deadline, Ordering::SeqCst);
        }
        self.watch.expect(&self.bell, deadline);
    }

    /// Marks the VIs whose time has come. Gives the time of the next one.
    pub(crate) fn mark_due(&self, now: u64) -> u64 {
        if self.soonest.load(Ordering::SeqCst) > now {
            return self.soonest.load(Ordering::SeqCst);
        }
        // Whoever sets a deadline from now on lowers it again.
        self.soonest.store(NEVER, Ordering::SeqCst);
        let mut soonest = NEVER;
        for (place, word) in self.connected.iter().enumerate() {
            let mut bits = word.load(Ordering::Acquire);
            while bits != 0 {
                let index = place as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let deadline = self.deadlines[index as usize].load(Ordering::SeqCst);
                if deadline <= now {
                    self.bell.mark(index);
                }
                soonest = soonest.min(deadline);
            }
        }
        self.soonest.fetch_min(soonest, Ordering::SeqCst);
        soonest
    }
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl EthernetNic {
    pub(crate) fn open<C: Card>(
        network: Network,
        nic: *const vipl_nic,
        info: &mut vipl_nic_info,
    ) -> Result<EthernetNic, Status> {
        let failed = |error: std::io::Error| {
            let text = format!("{:?}: cannot open the device: {error}", C::NAME);
            Host::get().log(VIPL_LOG_ERROR, &text);
            Status::Resource
        };
        let host = Host::get();
        let counter = |name| host.counter(C::NAME, name);
        let (wire, emulated, endpoint, address, mtu, name) = match network {
            Network::Interface(interface) => {
                let link = host.link(&interface)?;
                let mtu = (link.mtu as usize).min(C::FRAME_MAX);
                let frames = number(C::NAME, c"receive_frames").unwrap_or(256) as usize;
                let frames = frames.next_power_of_two();
                let socket = link.socket.as_raw_fd();
                let receiver = Receiver::open(socket, mtu, frames).map_err(failed)?;
                let counters = doorbell::Counters {
                    sent: counter(c"frames_sent"),
                    again: counter(c"frames_again"),
                    lost: counter(c"frames_lost"),
                    kicks: counter(c"kicks"),
                };
                let wire = Wire {
                    doorbell: Doorbell::new(C::DOORBELL, link.socket, counters),
                    tip: Tip::new(&receiver),
                    receiver: Turn::new(receiver),
                };
                let address = link.address.as_slice().try_into().map_err(|_| {
                    failed(std::io::Error::other(
                        "the interface's address does not have 6 bytes",
                    ))
                })?;
                info.link = link.id;
                let name = format!("via_{interface}");
                (Some(wire), None, link.endpoint, address, mtu, name)
            }
            Network::Emulated {
                links,
                mtu,
                address,
                name,
            } => (None, Some(links), 0, address, mtu, name),
        };
        if mtu < MTU_MIN {
            let text = format!("an MTU of {mtu} is below {MTU_MIN}");
            return Err(failed(std::io::Error::other(text)));
        }
        let page = shm::create(c"vipl-ethernet", BELL_BYTES).map_err(failed)?;
        let event = bell::create_event().map_err(failed)?;
        let own_event = shm::duplicate(event.as_raw_fd()).map_err(failed)?;
        let bell = Bell::open(page.as_raw_fd(), own_event).map_err(failed)?;
        describe(C::NAME, &name, address, mtu, info);
        info.shared_fds = [page.as_raw_fd(), event.as_raw_fd()];
        let core = Core {
            nic,
            name,
            bell: Arc::new(bell),
            wire,
            emulated,
            endpoint,
            address,
            mtu,
            inboxes: (0..VIS_MAX).map(|_| Inbox::default()).collect(),
            deadlines: (0..VIS_MAX).map(|_| AtomicU64::new(NEVER)).collect(),
            soonest: AtomicU64::new(NEVER),
            attended: (0..VIS_MAX).map(|_| AtomicU64::new(0)).collect(),
            read: AtomicU64::new(0),
            connected: [const { AtomicU64::new(0) }; VIS_MAX as usize / 64],
            farewells: Farewells::default(),
            strangers: Strangers::default(),
            gathering: Gathering::default(),
            counters: Counters {
                received: counter(c"frames_received"),
                corrupt: counter(c"frames_corrupt"),
                bad: counter(c"frames_bad"),
                stray: counter(c"frames_stray"),
                dropped: counter(c"frames_dropped"),
                sent_again: counter(c"frames_sent_again"),
            },
            watch: Watch::default(),
            partners: Mutex::default(),
            peers: PeerProcesses::default(),
        };
        Ok(EthernetNic {
            core: Arc::new(core),
            _shared: [page, event].map(Kept::new),
        })
    }
}

fn describe(plugin: &CStr, name: &str, address: [u8; 6], mtu: usize, info: &mut vipl_nic_info) {
    for (to, from) in info.name.iter_mut().zip(name.bytes().take(63)) {
        *to = from as std::ffi::c_char;
    }
    info.address[..6].copy_from_slice(&address);
    info.address_len = 6;
    info.reliability_support = VIP_SERVICE_UNRELIABLE | READ_LEVELS;
    info.rdma_read_support = READ_LEVELS;
    info.vis_max = VIS_MAX;
    info.regions_max = REGIONS_MAX;
    info.transfer_max = transfer_max(plugin, 65_536);
    info.native_mtu = (body_max(mtu) - PartKind::Send.header()) as u32;
    info.register_bytes_max = register_bytes_max(plugin);
    info.register_block_max = info.register_bytes_max;
    info.segment_bytes = SEGMENT as u32;
}

impl Nic for EthernetNic {
    type Vi = EthernetVi;

    fn close(&mut self) {
        watch::stop(&self.core);
        self.core.farewells.finish(&self.core);
    }

    fn ready(&self, indices: &mut [u32]) -> usize {
        // The socket and the clock first: what they bring is marked.
        self.core.watch.program_is_at_work();
        if let Some(doorbell) = self.core.doorbell() {
            doorbell.ring();
        }
        self.core.receive_all();
        self.core.mark_due(Host::get().now_ns());
        if let Some(index) = self.core.gathering.vi() {
            self.core.bell.mark(index);
        }
        self.core.bell.take_marks(indices)
    }

    fn arm(&self) -> u32 {
        self.core.watch.program_is_at_work();
        if let Some(doorbell) = self.core.doorbell() {
            doorbell.ring();
        }
        self.core.bell.arm()
    }

    fn sleep(&self, epoch: u32, timeout_ns: u64) {
        if timeout_ns > 0 {
            self.core.see_to_gathering(NOBODY);
            self.core.bell.sleep(epoch, timeout_ns, self.core.socket());
        }
        self.core.bell.disarm();
        self.core.watch.program_wakes();
    }

    fn wake(&self) {
        self.core.bell.ring();
    }
}
