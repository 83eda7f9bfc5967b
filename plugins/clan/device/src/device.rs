//! The loop: polls doorbells, sleeps when all are quiet, is woken by the first one after that.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use kagent_proto::Introduction;
use vipl_clan_proto::channel;
use vipl_clan_proto::nic::DEVICE_BYTES;
use vipl_sys::clock::now_ns;
use vipl_sys::membarrier::{self, Scope};
use vipl_sys::shm::{Mapping, create_for_readers, seal_for_readers};
use zerocopy::FromBytes;

use crate::client::{Client, Verdict};
use crate::events::Events;
use crate::link::Link;
use crate::pair::Pair;
use crate::processor::Processor;
use crate::sharing::Sharing;
use crate::vi::{Tools, Vi};
use crate::vis::Vis;

/// Processes at a time.
const CLIENTS_MAX: usize = 1024;
/// What one VI may send in one round.
const ROUND_MESSAGES: u32 = 16;
const ROUND_BYTES: usize = 256 << 10;
/// Rounds without work after which a VI is looked at less often.
const COOL: u32 = 4096;
/// Cold VIs that are looked at in one round.
const COLD_LOOKS: usize = 8;
/// How often a device at work asks the kernel for news, in nanoseconds.
const ASK_NS: u64 = 1_000_000;

/// How long a device on few processors polls, in nanoseconds.
const CROWDED_NS: u64 = 10_000;
const AGENT: u64 = u64::MAX;
/// Added to the place of a link.
const LINK: u64 = 1 << 62;

/// What a turn of the loop came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The device goes on.
    On,
    /// The agent has gone.
    Over,
}

/// The device.
pub struct Device {
    agent: OwnedFd,
    pub(crate) events: Events,
    page: OwnedFd,
    pub(crate) tools: Tools,
    pub(crate) clients: Vec<Option<Client>>,
    pub(crate) vis: Vis,
    /// Sides of connections that wait for their partner: which side, and whose.
    pub(crate) keys: HashMap<u64, (u32, usize)>,
    /// Interfaces, by a number that stays.
    pub(crate) links: Vec<Option<Box<Link>>>,
    /// VIs that were active lately.
    hot: Vec<usize>,
    cold: usize,
    pub(crate) processor: Processor,
    /// How long the device polls when nothing happens, in nanoseconds.
    pub(crate) spin_ns: u64,
    last_work: u64,
    last_ask: u64,
    /// `None`: there are processors enough for applications and the device.
    sharing: Option<Sharing>,
}

/// Whether applications and the device share few processors.
fn is_crowded() -> bool {
    std::thread::available_parallelism().is_ok_and(|count| count.get() <= 2)
}

impl Device {
    /// The device of an agent, which announces processes on this socket.
    ///
    /// # Errors
    /// The kernel has no shared memory for it, or is older than 5.3.
    pub fn new(agent: OwnedFd) -> io::Result<Device> {
        let page = create_for_readers(c"vipl-clan", DEVICE_BYTES)?;
        let mapping = Mapping::open(page.as_raw_fd(), DEVICE_BYTES, true)?;
        seal_for_readers(&page)?;
        let tools = Tools::new(mapping);
        let barriers = membarrier::register(Scope::Global) && membarrier::barrier(Scope::Global);
        tools
            .page()
            .fences
            .store(u32::from(!barriers), Ordering::Release);
        let device = Device {
            agent,
            events: Events::new()?,
            page,
            tools,
            clients: Vec::new(),
            vis: Vis::default(),
            keys: HashMap::new(),
            links: Vec::new(),
            hot: Vec::new(),
            cold: 0,
            processor: Processor::new(),
            spin_ns: 0,
            last_work: 0,
            last_ask: 0,
            sharing: is_crowded().then(Sharing::new),
        };
        device.events.listen(device.agent.as_raw_fd(), AGENT)?;
        Ok(device)
    }

    /// Another descriptor of the device's page, which can be mapped for reading only.
    pub(crate) fn page_for_readers(&self) -> io::Result<OwnedFd> {
        self.page.try_clone()
    }

    /// The data socket of a link may have something.
    pub(crate) fn listen_to_link(&self, socket: RawFd, index: usize) -> io::Result<()> {
        self.events.listen(socket, LINK | index as u64)
    }

    /// Runs until the agent has gone.
    ///
    /// # Errors
    /// The kernel's, on the device's own descriptors.
    pub fn run(&mut self) -> io::Result<()> {
        while self.turn()? == Turn::On {}
        Ok(())
    }

    /// One turn of the loop: a round over the doorbells, or a sleep.
    ///
    /// # Errors
    /// As for [`Device::run`].
    pub fn turn(&mut self) -> io::Result<Turn> {
        self.tools.now = now_ns();
        self.begin_round();
        let turn = self.work();
        self.end_round();
        turn
    }

    /// While a round lasts the device may touch whatever was registered when it began.
    fn begin_round(&self) {
        let page = self.tools.page();
        let round = page.round.load(Ordering::Relaxed).wrapping_add(1);
        page.round.store(round, Ordering::Release);
        page.after_publishing(false);
    }

    fn end_round(&self) {
        let page = self.tools.page();
        let round = page.round.load(Ordering::Relaxed).wrapping_add(1);
        page.round.store(round, Ordering::Release);
    }

    fn work(&mut self) -> io::Result<Turn> {
        let worked = self.look();
        let time = self.tools.now;
        if worked {
            self.last_work = time;
        } else if time.saturating_sub(self.last_work) >= self.patience() {
            return self.sleep();
        }
        if time.saturating_sub(self.last_ask) >= ASK_NS {
            self.last_ask = time;
            self.report_orphans();
            self.processor.relieve(time);
            return self.ask(None);
        }
        let is_over = |sharing: &Sharing| sharing.is_turn_over(time, self.last_work);
        if !worked && self.sharing.as_ref().is_some_and(is_over) {
            self.yield_processor();
        } else {
            std::hint::spin_loop();
        }
        Ok(Turn::On)
    }

    /// How long the device looks for work without finding any, in nanoseconds. Where it would keep a thread that
    /// computes from its processor it does not: being woken costs less.
    fn patience(&self) -> u64 {
        match &self.sharing {
            Some(sharing) if !sharing.may_yield(self.tools.now) => self.spin_ns.min(CROWDED_NS),
            _ => self.spin_ns,
        }
    }

    /// Lets a program run that polls on the same processor. No round lasts meanwhile: VipDeregisterMem need not wait for it.
    fn yield_processor(&mut self) {
        let from = self.tools.now;
        self.end_round();
        std::thread::yield_now();
        self.begin_round();
        if let Some(sharing) = &mut self.sharing {
            sharing.yielded(from, now_ns());
        }
    }

    /// Looks at everything that is in shared memory. True: there was something.
    fn look(&mut self) -> bool {
        let mut worked = self.read_mail();
        let mut place = 0;
        while place < self.hot.len() {
            let id = self.hot[place];
            worked |= self.pump(id, ROUND_MESSAGES, ROUND_BYTES);
            if self.keep_hot(id) {
                place += 1;
            } else {
                self.hot.swap_remove(place);
            }
        }
        for _ in 0..COLD_LOOKS.min(self.vis.places()) {
            self.cold = (self.cold + 1) % self.vis.places();
            let id = self.cold;
            if self.vis.get(id).is_some_and(|vi| !vi.hot && vi.is_rung()) {
                self.warm(id);
                worked = true;
            }
        }
        if !self.links.is_empty() {
            worked |= self.serve_links();
        }
        worked
    }

    fn read_mail(&mut self) -> bool {
        let mut found = false;
        for place in 0..self.clients.len() {
            if self.clients[place].as_ref().is_some_and(Client::has_mail) {
                found = true;
                self.attend(place);
            }
        }
        found
    }

    /// Puts completions of a VI into its program's memory when they are due; whether it stays hot.
    fn keep_hot(&mut self, id: usize) -> bool {
        let Some(vi) = self.vis.get_mut(id) else {
            return false;
        };
        if vi.due != 0 && self.tools.now >= vi.due {
            vi.write_back(&mut self.tools);
        }
        vi.quiet = vi.quiet.saturating_add(1);
        vi.hot = vi.due != 0 || vi.offered > 0 || (vi.attached && vi.quiet < COOL);
        vi.hot
    }

    /// From now on this VI is looked at in every round.
    pub(crate) fn warm(&mut self, id: usize) {
        let Some(vi) = self.vis.get_mut(id) else {
            return;
        };
        vi.quiet = 0;
        if !vi.hot {
            vi.hot = true;
            self.hot.push(id);
        }
    }

    /// Sends what is on the queue of a VI.
    pub(crate) fn pump(&mut self, id: usize, messages: u32, bytes: usize) -> bool {
        match self.vis.get(id) {
            Some(vi) if vi.away.is_some() => return self.pump_away(id),
            Some(vi) if vi.is_rung() || vi.offered > 0 => {}
            _ => return false,
        }
        let pumped = self.with_partner(id, |pair| pair.pump(messages, bytes));
        let Some((partner, true)) = pumped else {
            return false;
        };
        self.warm(id);
        self.warm(partner);
        true
    }

    /// Does something with a VI and its partner on this host, if it has one: gives the partner, and the result.
    pub(crate) fn with_partner<R>(
        &mut self,
        id: usize,
        act: impl FnOnce(&mut Pair<'_>) -> R,
    ) -> Option<(usize, R)> {
        let partner = self.vis.get(id)?.partner?;
        let (from, to) = self.vis.pair(id, partner)?;
        let tools = &mut self.tools;
        Some((partner, act(&mut Pair { from, to, tools })))
    }

    /// Whether the partner is done with what it was fetching from this VI.
    fn has_heard(&self, vi: &Vi) -> bool {
        let partner = vi.partner.filter(|_| vi.offered > 0);
        let partner = partner.and_then(|id| self.vis.get(id));
        partner.is_some_and(|to| !to.is_fetching())
    }

    /// Waits for a doorbell that finds the device asleep, or for the kernel to tell something.
    fn sleep(&mut self) -> io::Result<Turn> {
        for id in 0..self.vis.places() {
            if let Some(vi) = self.vis.get_mut(id) {
                vi.write_back_all(&mut self.tools);
            }
        }
        self.report_orphans();
        let deadline = self.flush_links().min(self.tools.orphaned);
        let page = self.tools.page();
        page.asleep.fetch_add(1, Ordering::SeqCst);
        if !page.before_looking_again() {
            page.fences.store(1, Ordering::SeqCst);
        }
        let called = |vi: &Vi| vi.is_rung() || self.has_heard(vi);
        let rung =
            self.vis.all().any(called) || self.clients.iter().flatten().any(Client::has_mail);
        let awake = rung || deadline <= self.tools.now;
        let turn = self.ask((!awake).then_some(deadline));
        self.tools.page().asleep.fetch_add(1, Ordering::SeqCst);
        self.tools.now = now_ns();
        self.last_work = self.tools.now;
        self.wake_all();
        turn
    }

    /// After a sleep every VI is looked at once.
    fn wake_all(&mut self) {
        for id in 0..self.vis.places() {
            if self.vis.get(id).is_some_and(Vi::is_rung) {
                self.warm(id);
            }
        }
    }

    /// Asks the kernel what has happened on the sockets; with a time, waits for it.
    fn ask(&mut self, until: Option<u64>) -> io::Result<Turn> {
        self.end_round();
        let events = self.events.take(until);
        self.begin_round();
        let mut called = false;
        for event in events? {
            let name = event.name;
            if name == AGENT {
                called = true;
            } else if name & LINK != 0 {
                // Frames are taken by the next round.
                if event.failed {
                    self.hear_link((name ^ LINK) as usize);
                }
            } else if name & 1 == 1 {
                // The process has ended.
                self.forget((name >> 1) as usize, false);
            } else {
                self.attend((name >> 1) as usize);
            }
        }
        // Last: a newcomer may get the place of a process whose end has just been told.
        if called {
            Ok(self.hear_agent())
        } else {
            Ok(Turn::On)
        }
    }

    fn attend(&mut self, place: usize) {
        match self.hear(place) {
            Verdict::Stays => {}
            Verdict::Gone => self.forget(place, false),
            Verdict::Expelled => self.forget(place, true),
        }
    }

    /// A new process, or the end.
    fn hear_agent(&mut self) -> Turn {
        let mut packet = [0; size_of::<Introduction>()];
        let (bytes, mut fds) = match channel::receive(self.agent.as_raw_fd(), &mut packet) {
            Ok((0, _)) => return Turn::Over,
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Turn::On,
            Err(_) => return Turn::Over,
        };
        let known = Introduction::read_from_bytes(&packet[..bytes]).ok();
        // A process that is not let in finds its socket closed.
        if let (Some(newcomer), Some(socket)) = (
            known.filter(|n| n.version == Introduction::VERSION),
            fds.pop(),
        ) {
            let _ = self.admit(&newcomer, socket);
        }
        Turn::On
    }

    fn admit(&mut self, newcomer: &Introduction, socket: OwnedFd) -> io::Result<()> {
        let client = Client::new(newcomer.pid, socket)?;
        let free = self.clients.iter().position(Option::is_none);
        let place = free.unwrap_or(self.clients.len());
        if place >= CLIENTS_MAX {
            return Err(io::Error::other("too many processes"));
        }
        let name = (place as u64) << 1;
        self.events.listen(client.socket.as_raw_fd(), name)?;
        self.events.listen(client.life.as_raw_fd(), name | 1)?;
        match free {
            Some(place) => self.clients[place] = Some(client),
            None => self.clients.push(Some(client)),
        }
        Ok(())
    }
}
