//! The thread of a NIC: it takes the device's events, new records of peers and the records of other hosts, and lets the VIs
//! concerned make progress. While nothing happens it sleeps.
//!
//! A completion queue tells of its next completion only when it is armed. The thread arms it again at once if it took the
//! completion itself; if the application did, which polls then, after [`APART`]: a program that polls costs one event in
//! that time, and one that has stopped polling waits no longer for the thread. A thread that goes to sleep arms all.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use vipl_plugin_sdk::abi::VIPL_LOG_ERROR;
use vipl_plugin_sdk::{Host, NicHandle, Poll};
use vipl_sys::bell::Bell;
use vipl_sys::clock;
use vipl_sys::fd::Kept;
use vipl_sys::mutex::Mutex;
use vipl_sys::thread::{Thread, spawn_with_signals_blocked};
use vipl_sys::uncancelled;

use crate::counters::counters;
use crate::device::{Channel, Completions, Device};
use crate::exchange::Way;
use crate::ibv::{IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR};
use crate::record::ring;
use crate::uplink::Uplink;

/// Between two events of a VI whose application polls; also when to poll a VI again that the application is using.
const APART: Duration = Duration::from_millis(2);
/// Between two questions to the device of a peer on another host, whether it is still there.
const BEAT: Duration = Duration::from_secs(2);
/// How long VipCloseNic waits until peers have confirmed the ends of connections.
const GOODBYE: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_millis(10);

/// A connected VI, for the thread.
pub(crate) struct Watched {
    number: u32,
    queue: Arc<Completions>,
    armed: AtomicBool,
    way: Way,
    /// It is time to ask whether the peer is still there.
    asks: AtomicBool,
    /// The queue pair has ended, and no reason is known.
    doubts: AtomicBool,
    /// Wakes the thread.
    bell: Arc<Kept>,
    /// The last version of the peer's record that the thread has seen.
    seen: AtomicU64,
}

impl Watched {
    pub(crate) fn new(number: u32, queue: Arc<Completions>, way: Way, bell: Arc<Kept>) -> Watched {
        Watched {
            number,
            queue,
            armed: AtomicBool::new(false),
            way,
            asks: AtomicBool::new(false),
            doubts: AtomicBool::new(false),
            bell,
            seen: AtomicU64::new(0),
        }
    }

    /// Asks for an event with the next completion. The caller looks once more afterwards.
    fn arm(&self) {
        if !self.armed.swap(true, Ordering::SeqCst) {
            self.queue.arm();
        }
    }

    /// Whether to ask now. Costs a load.
    #[inline(always)]
    pub(crate) fn is_time_to_ask(&self) -> bool {
        self.asks.load(Ordering::Relaxed) && self.asks.swap(false, Ordering::Relaxed)
    }

    /// Has the thread ask from time to time, also where the peer is on this host.
    pub(crate) fn doubt(&self) {
        if !self.doubts.swap(true, Ordering::Relaxed) {
            ring(&self.bell);
        }
    }

    /// There is nothing to ask any more.
    pub(crate) fn settle(&self) {
        self.doubts.store(false, Ordering::Relaxed);
    }

    /// Whether the peer's record has changed since the last call.
    fn has_update(&self) -> bool {
        let version = self.way.version();
        self.seen.swap(version, Ordering::Relaxed) != version
    }
}

/// What the NIC, its VIs and its thread share.
pub(crate) struct Shared {
    pub(crate) channel: Arc<Channel>,
    pub(crate) uplink: Option<Uplink>,
    /// Wakes the thread. Peers on this host have it, too.
    pub(crate) notice: Arc<Kept>,
    bell: Bell,
    links: Mutex<BTreeMap<u32, Arc<Watched>>>,
    stopping: AtomicBool,
    /// When the port went down, in nanoseconds; 0: it is up.
    down: AtomicU64,
}

impl Shared {
    pub(crate) fn new(channel: Arc<Channel>, uplink: Option<Uplink>, notice: Arc<Kept>) -> Shared {
        let bell = Bell::default();
        bell.prepare();
        Shared {
            channel,
            uplink,
            notice,
            bell,
            links: Mutex::new(BTreeMap::new()),
            stopping: AtomicBool::new(false),
            down: AtomicU64::new(0),
        }
    }

    /// From now on the thread serves the VI, and first looks whether the peer has said something before.
    pub(crate) fn add(&self, watched: Arc<Watched>) {
        watched.arm();
        self.links.lock().insert(watched.number, watched);
        ring(&self.notice);
    }

    pub(crate) fn remove(&self, number: u32) {
        self.links.lock().remove(&number);
    }

    /// How long the port has been down.
    pub(crate) fn down_for(&self) -> Duration {
        match self.down.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_nanos(Host::get().now_ns().saturating_sub(since)),
        }
    }

    pub(crate) fn arm(&self) -> u32 {
        let epoch = self.bell.arm();
        self.links.lock().values().for_each(|watched| watched.arm());
        epoch
    }

    pub(crate) fn sleep(&self, epoch: u32, timeout_ns: u64) {
        self.bell.sleep(epoch, timeout_ns);
    }

    pub(crate) fn wake(&self) {
        self.bell.ring();
    }
}

/// The thread.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

struct Watcher {
    nic: NicHandle,
    device: Arc<Device>,
    shared: Arc<Shared>,
    /// VIs to poll in the next round.
    again: BTreeSet<u32>,
    /// When peers are to be asked.
    beat: u64,
}

impl Watch {
    pub(crate) fn start(
        nic: NicHandle,
        device: Arc<Device>,
        shared: Arc<Shared>,
    ) -> io::Result<Watch> {
        let mut watcher = Watcher {
            nic,
            device,
            shared: shared.clone(),
            again: BTreeSet::new(),
            beat: 0,
        };
        let thread = spawn_with_signals_blocked("vipl-watch", move || watcher.run())?;
        Ok(Watch {
            shared,
            thread: Some(thread),
        })
    }

    /// Ends the thread, after peers on other hosts know of the ends of connections.
    pub(crate) fn stop(&mut self) {
        let end = clock::Instant::now() + GOODBYE;
        while let Some(uplink) = &self.shared.uplink
            && uplink.is_lingering()
            && clock::Instant::now() < end
        {
            clock::sleep(STEP);
        }
        self.shared.stopping.store(true, Ordering::SeqCst);
        ring(&self.shared.notice);
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl Watcher {
    fn run(&mut self) {
        let mut time = Some(Duration::ZERO);
        loop {
            let Ok(ready) = self.wait(time) else {
                return self.lost();
            };
            counters().woken();
            if self.shared.stopping.load(Ordering::SeqCst) {
                return;
            }
            time = self.serve(ready);
        }
    }

    /// Waits for one of the descriptors. Returns whether there may be new records of peers.
    fn wait(&self, time: Option<Duration>) -> io::Result<bool> {
        if !self.device.is_open() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let on = |fd: RawFd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let uplink = match &self.shared.uplink {
            Some(uplink) => uplink.fd()?,
            None => -1,
        };
        let notice = self.shared.notice.fd()?;
        let mut fds = [
            on(notice),
            on(self.shared.channel.fd()),
            on(self.device.events_fd()),
            on(uplink),
        ];
        clock::poll(&mut fds, time);
        if fds[0].revents == 0 {
            return Ok(false);
        }
        let mut count = 0u64;
        // SAFETY: room for eight bytes; the eventfd does not block.
        unsafe { uncancelled::read(notice, (&raw mut count).cast(), 8) };
        Ok(true)
    }

    /// Does what is to be done; returns when to look again.
    fn serve(&mut self, notice: bool) -> Option<Duration> {
        let waited = std::mem::take(&mut self.again);
        let mut named = BTreeSet::new();
        while let Some(number) = self.shared.channel.event() {
            if let Some(watched) = self.find(number) {
                watched.armed.store(false, Ordering::SeqCst);
            }
            named.insert(number);
        }
        self.events();
        let now = Host::get().now_ns();
        let asked = self.ask(now, &mut named);
        let (updated, again) = match &self.shared.uplink {
            Some(uplink) => uplink.serve(now),
            None => (false, None),
        };
        let is_updated = notice || updated;
        let time = [again, asked].into_iter().flatten().min();
        let next = time.map(|time| Duration::from_nanos(time.saturating_sub(now)));
        if is_updated {
            let links = self.shared.links.lock();
            let updates = links.values().filter(|watched| watched.has_update());
            named.extend(updates.map(|watched| watched.number));
        }
        if !named.is_empty() {
            self.shared.wake();
        }
        for number in &named {
            self.look(*number, false);
        }
        for number in waited.difference(&named) {
            self.look(*number, true);
        }
        match self.again.is_empty() {
            true => next,
            false => Some(next.map_or(APART, |next: Duration| next.min(APART))),
        }
    }

    /// Names the VIs that have to ask for their peers, which are on other hosts or have not said why they have ended; returns
    /// when to do that again.
    fn ask(&mut self, now: u64, named: &mut BTreeSet<u32>) -> Option<u64> {
        let links = self.shared.links.lock();
        let is_time = now >= self.beat;
        let mut next = None;
        for watched in links.values() {
            let is_remote = matches!(watched.way, Way::Remote(_));
            if is_remote || watched.doubts.load(Ordering::Relaxed) {
                if is_time {
                    watched.asks.store(true, Ordering::Relaxed);
                    named.insert(watched.number);
                }
                next = Some(now + BEAT.as_nanos() as u64);
            }
        }
        if is_time {
            self.beat = next.unwrap_or(0);
        }
        next.map(|_| self.beat)
    }

    /// Polls a VI, and arms its queues: at once if that has completed something, else when it has `waited`, because the
    /// application is polling.
    fn look(&mut self, number: u32, waited: bool) {
        let Some(watched) = self.find(number) else {
            return;
        };
        // SAFETY: the NIC is open until `stop` has returned; no operation runs on this thread.
        let first = unsafe { self.nic.poll(number) };
        let is_armed = watched.armed.load(Ordering::SeqCst);
        if is_armed && first != Poll::Busy {
            return;
        }
        if first == Poll::Busy || first == Poll::Nothing && !waited {
            self.again.insert(number);
            return;
        }
        watched.arm();
        // SAFETY: as above. What completed before the arming causes no event.
        if unsafe { self.nic.poll(number) } == Poll::Busy {
            self.again.insert(number);
        }
    }

    fn find(&self, number: u32) -> Option<Arc<Watched>> {
        self.shared.links.lock().get(&number).cloned()
    }

    /// Asynchronous events of the device.
    fn events(&self) {
        while let Some(event) = self.device.event() {
            match event {
                IBV_EVENT_DEVICE_FATAL => {
                    crate::say(VIPL_LOG_ERROR, "the RDMA device has failed");
                    // SAFETY: as above.
                    unsafe { self.nic.catastrophe() };
                }
                IBV_EVENT_PORT_ERR => {
                    let now = Host::get().now_ns().max(1);
                    self.shared.down.store(now, Ordering::Relaxed);
                }
                IBV_EVENT_PORT_ACTIVE => self.shared.down.store(0, Ordering::Relaxed),
                _ => {}
            }
        }
    }

    /// The application has closed a descriptor of the NIC: without it nothing can be trusted any more.
    fn lost(&self) {
        let text = "the program has closed descriptors of the NIC, which has failed";
        crate::say(VIPL_LOG_ERROR, text);
        // SAFETY: as above.
        unsafe { self.nic.catastrophe() };
    }
}
