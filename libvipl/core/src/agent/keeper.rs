//! The agent of this process, and the change to the next one when it exits.
//!
//! An agent may be killed. Existing connections continue, but the death of a peer goes unnoticed and new
//! connections are impossible. Therefore the thread that reads the agent's messages becomes the *keeper* when
//! the agent exits: it finds or starts another agent, opens the NICs there, hands the connections over, and
//! repeats unanswered calls. The first attempt is immediate. Further ones follow at least 250 ms apart while
//! a call is waiting, and at growing intervals while there are only connections.
//!
//! ```text
//!   Absent ── first VipOpenNic ──▶ Here ── it exits ─────▶ Lost ── handed over ──▶ Here
//!      ▲                                                     │
//!      └──────────────────── no NIC is open ─────────────────┘
//! ```
//!
//! The thread runs only while the agent is used: by open NICs, and by calls without one. After the last use
//! the connection stays open, without a thread.
//!
//! Lock order: the standing before the list of NICs. Neither is held during a call to an agent, except that
//! the first agent is found under the standing's lock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use vipl_sys::clock::Instant;
use vipl_sys::thread::Thread;

use kagent_proto::{Cancel, NicClose, Op};
use vipl_plugin_abi::vipl_nic_info;
use zerocopy::{Immutable, IntoBytes};

use super::client::{Agent, GONE, Introduction, Reply};
use super::connections::Connections;
use super::issued::IssuedLinks;
use super::last_thread::LastThread;
use super::launch::LOOK_AGAIN;
use super::reader;
use super::registration::NicRegistration;
use crate::error::Error;
use crate::settings::Settings;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Maximum tries to connect to an agent that closes the connection at once.
const HELLO_TRIES: u32 = 6;
/// Increment of the pause between these tries.
const HELLO_PAUSE: Duration = Duration::from_millis(2);
/// Pause of the keeper between two tries while a call is waiting.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Longest pause while there are only connections to hand over.
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// Time for which the end of the last use waits for the end of the reading thread.
const REST_TIME_MAX: Duration = Duration::from_secs(2);

/// Maximum number of agents, one after the other, at which a call other than a wait is tried.
const AGENTS_MAX: usize = 3;

/// An attempt to connect whose agent exited before replying.
pub(crate) trait Unanswered: Send {
    /// Whether no thread waits for it any more, or its deadline has passed.
    fn is_over(&self) -> bool;
    /// Ends it with a timeout.
    fn give_up(self: Box<Self>);
    /// Repeats it at the next agent, at which the NIC is open.
    fn ask_again(self: Box<Self>, agent: &Arc<Agent>);
}

/// Whether there is an agent.
#[derive(Default)]
enum Now {
    /// None has been needed yet.
    #[default]
    Absent,
    Here(Arc<Agent>),
    /// It has exited, and a keeper searches the next one.
    Lost,
}

#[derive(Default)]
struct Standing {
    now: Now,
    /// Number of failed tries of keepers.
    failures: u64,
    /// Number of threads that wait for an agent.
    wanted: u32,
    /// The thread that reads the agent's messages. `None`: it has ended, since the agent was unused, or is
    /// about to be joined.
    reader: Option<Thread>,
    /// Whether it has ended, or is about to return.
    is_parked: bool,
}

/// A use of the agent: while one exists, the agent's messages are read.
pub(crate) struct Use(&'static Agents);

impl Use {
    /// Ends it on the reading thread, which checks afterwards whether it was the last one.
    fn end_on_reader(self) {
        self.0.uses.fetch_sub(1, Ordering::AcqRel);
        std::mem::forget(self);
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let agents = self.0;
        if agents.uses.fetch_sub(1, Ordering::AcqRel) == 1 {
            agents.rest(true);
        }
    }
}

/// The agents of this process: the current one, and the state to hand over to the next one.
pub(crate) struct Agents {
    settings: Arc<Settings>,
    standing: Mutex<Standing>,
    changed: Condvar,
    /// Number of uses of the agent.
    uses: AtomicUsize,
    nics: Mutex<Vec<(Arc<NicRegistration>, Use)>>,
    pub(crate) connections: Connections,
    /// Links over UDP that do not belong to a NIC yet.
    pub(super) issued: IssuedLinks,
    /// Attempts to connect that the last agent did not answer.
    unanswered: Mutex<Vec<Box<dyn Unanswered>>>,
}

impl Agents {
    pub(crate) fn new(settings: Arc<Settings>) -> Agents {
        Agents {
            settings,
            standing: Mutex::default(),
            changed: Condvar::new(),
            uses: AtomicUsize::new(0),
            nics: Mutex::default(),
            connections: Connections::default(),
            issued: IssuedLinks::default(),
            unanswered: Mutex::default(),
        }
    }

    /// Begins a use, to be held while an agent is requested and called without an open NIC.
    pub(crate) fn begin_use(&'static self) -> Use {
        self.uses.fetch_add(1, Ordering::AcqRel);
        Use(self)
    }

    /// Whether the reading thread is to end. It checks after each message.
    pub(super) fn ends_reading(&self, agent: &Arc<Agent>) -> bool {
        if self.uses.load(Ordering::Acquire) > 0 {
            return false;
        }
        let mut standing = self.standing.lock();
        let is_here = matches!(&standing.now, Now::Here(here) if Arc::ptr_eq(here, agent));
        let ends = is_here && self.uses.load(Ordering::Acquire) == 0;
        if ends {
            // A thread that requests the agent from now on finds that no thread reads.
            standing.is_parked = true;
            self.changed.notify_all();
        }
        ends
    }

    /// The last use has ended: waits until the reading thread has ended as well. An agent that is stopped
    /// does not wake it; it checks by itself after a second.
    fn rest(&self, wake: bool) {
        let end = Instant::now() + REST_TIME_MAX;
        let mut standing = self.standing.lock();
        let Now::Here(agent) = &standing.now else {
            return;
        };
        if wake && !standing.is_parked {
            // Any reply wakes the reading thread.
            agent.notify(Op::CANCEL, &Cancel { call: 0 });
        }
        while !standing.is_parked
            && self.uses.load(Ordering::Acquire) == 0
            && matches!(standing.now, Now::Here(_))
            && Instant::now() < end
        {
            self.changed.wait_until(&mut standing, end);
        }
        let thread = match standing.is_parked {
            true => standing.reader.take(),
            false => None,
        };
        drop(standing);
        if let Some(thread) = thread {
            thread.join();
        }
    }

    /// Resumes reading the messages of the current agent, if it is connected.
    fn resume(&'static self, standing: &mut Standing) -> Result<(), Error> {
        let Now::Here(agent) = &standing.now else {
            return Ok(());
        };
        if !standing.is_parked {
            return Ok(());
        }
        if agent.is_connected() {
            let reader = self.read(agent).map_err(|error| {
                log::error!(target: "agent", "cannot start a thread: {error}");
                Error::Resource
            })?;
            standing.reader = Some(reader);
        } else {
            standing.now = Now::Absent;
        }
        standing.is_parked = false;
        Ok(())
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The agent, found or started. While a keeper searches one, waits for its next try.
    pub(crate) fn want(&'static self) -> Result<Arc<Agent>, Error> {
        self.want_until(None)
    }

    /// The same, until a deadline, if any.
    fn want_until(&'static self, end: Option<Instant>) -> Result<Arc<Agent>, Error> {
        let mut standing = self.standing.lock();
        let failures = standing.failures;
        loop {
            self.resume(&mut standing)?;
            match &standing.now {
                Now::Here(agent) if !agent.is_dead() => {
                    // A thread that waits for the end of its use learns that there is another one.
                    self.changed.notify_all();
                    return Ok(agent.clone());
                }
                Now::Absent => {
                    let (agent, reader) = self.introduce(|_| true).map_err(|why| {
                        log::error!(target: "agent", "{why}");
                        Error::Resource
                    })?;
                    standing.now = Now::Here(agent.clone());
                    standing.reader = Some(reader);
                    return Ok(agent);
                }
                Now::Lost if standing.failures != failures => return Err(Error::Resource),
                _ if end.is_some_and(|end| end <= Instant::now()) => return Err(Error::Timeout),
                // Its reading thread is about to record that it is lost.
                Now::Here(_) | Now::Lost => {
                    standing.wanted += 1;
                    self.changed.notify_all();
                    match end {
                        Some(end) => self.changed.wait_until(&mut standing, end),
                        None => self.changed.wait(&mut standing),
                    }
                    standing.wanted -= 1;
                }
            }
        }
    }

    /// Registers an opened NIC.
    pub(crate) fn open_nic(
        &'static self,
        provider: &str,
        info: &vipl_nic_info,
    ) -> Result<Arc<NicRegistration>, Error> {
        let given = self.issued.take(info.link);
        let registration = Arc::new(NicRegistration::new(provider, info, given));
        let usage = self.begin_use();
        // Listed first, so that the keeper opens it at the next agent if this one exits now.
        self.nics.lock().push((registration.clone(), usage));
        match self.place(&registration) {
            Ok(_) => Ok(registration),
            Err(error) => {
                drop(self.forget(&registration));
                Err(error)
            }
        }
    }

    /// The agent and its identifier of a NIC. Waits for the next agent if the last one has exited; fails if
    /// there is none.
    pub(crate) fn place(&'static self, nic: &NicRegistration) -> Result<(Arc<Agent>, u64), Error> {
        self.place_until(nic, None)
    }

    /// The same for a call with a deadline: VIP_TIMEOUT if no agent was found by then.
    pub(crate) fn place_until(
        &'static self,
        nic: &NicRegistration,
        end: Option<Instant>,
    ) -> Result<(Arc<Agent>, u64), Error> {
        for _ in 0..AGENTS_MAX {
            if let Some(place) = nic.here() {
                return Ok(place);
            }
            let agent = self.want_until(end)?;
            nic.open_at(&agent).or_else(|why| {
                if why == GONE {
                    Ok(())
                } else {
                    Err(Error::Resource)
                }
            })?;
            if nic.is_closed() {
                return Err(Error::InvalidParameter);
            }
        }
        Err(Error::Resource)
    }

    /// A call about a NIC, repeated at the next agent if this one exits.
    pub(crate) fn call<B>(
        &'static self,
        nic: &NicRegistration,
        op: Op,
        body: impl Fn(u64) -> B,
    ) -> Result<Reply, Error>
    where
        B: IntoBytes + Immutable,
    {
        for _ in 0..AGENTS_MAX {
            let (agent, name) = self.place(nic)?;
            let reply = agent.call(op, &body(name), &[]);
            if reply.status != GONE {
                return Ok(reply);
            }
        }
        Err(Error::Resource)
    }

    /// Closes a NIC: waits end, and unanswered requests are rejected.
    pub(crate) fn close_nic(&self, nic: &Arc<NicRegistration>) {
        nic.end();
        let usage = self.forget(nic);
        // If it is just being opened at an agent, that is undone there.
        if let Some((agent, name)) = nic.here() {
            // The reply ends the use, so that the reading thread, which owns it, ends with the last NIC.
            let ends = Arc::new(Mutex::new(usage));
            let at_reply = ends.clone();
            agent.call_then(Op::NIC_CLOSE, &NicClose { nic: name }, &[], move || {
                if let Some(usage) = at_reply.lock().take() {
                    usage.end_on_reader();
                }
            });
            match ends.lock().take() {
                Some(usage) => drop(usage),
                None if self.uses.load(Ordering::Acquire) == 0 => self.rest(false),
                None => {}
            }
        }
    }

    /// Removes a NIC; returns its use of the agent, which ends when it is dropped.
    fn forget(&self, registration: &Arc<NicRegistration>) -> Option<Use> {
        let standing = self.standing.lock();
        let mut nics = self.nics.lock();
        let place = nics
            .iter()
            .position(|(known, _)| Arc::ptr_eq(known, registration));
        let usage = place.map(|place| nics.swap_remove(place).1);
        drop(nics);
        drop(standing);
        self.changed.notify_all();
        usage
    }

    /// Keeps an attempt to connect whose agent exited before it replied.
    pub(crate) fn ask_later(&self, attempt: Box<dyn Unanswered>) {
        let standing = self.standing.lock();
        if let Now::Here(agent) = &standing.now
            && !agent.is_dead()
        {
            // The keeper has finished already.
            let agent = agent.clone();
            drop(standing);
            return attempt.ask_again(&agent);
        }
        self.unanswered.lock().push(attempt);
        self.changed.notify_all();
    }

    /// Lets the keeper check whether attempts are still wanted.
    pub(crate) fn wake_keeper(&self) {
        self.changed.notify_all();
    }

    /// An agent has closed the connection. Runs on the thread that read its messages.
    pub(super) fn lost(&'static self, agent: &Arc<Agent>) {
        let mut standing = self.standing.lock();
        match &standing.now {
            Now::Here(current) if Arc::ptr_eq(current, agent) => standing.now = Now::Lost,
            // It never was this process's agent; the thread that tried it is aware.
            _ => return,
        }
        self.changed.notify_all();
        drop(standing);
        let how = match agent.has_exited() {
            true => "exited",
            false => "closed the connection",
        };
        self.keep(how);
    }

    /// The keeper's loop, until there is an agent again, or none is needed.
    fn keep(&'static self, how: &str) {
        let mut fruitless = 0;
        let mut last = LastThread::default();
        loop {
            {
                let mut standing = self.standing.lock();
                if self.nics.lock().is_empty() {
                    standing.now = Now::Absent;
                    self.changed.notify_all();
                    return;
                }
            }
            let tried = Instant::now();
            let outcome = self.introduce(|agent| self.hand_over(agent));
            let mut standing = self.standing.lock();
            match outcome {
                // If this agent exits after this, its reading thread finds it in `now` and becomes the
                // keeper.
                Ok((agent, reader)) if !agent.is_dead() => {
                    standing.now = Now::Here(agent.clone());
                    standing.reader = Some(reader);
                    let unanswered = std::mem::take(&mut *self.unanswered.lock());
                    self.changed.notify_all();
                    drop(standing);
                    log::warn!(
                        target: "agent",
                        "the Kernel Agent {how} and another one has taken over"
                    );
                    for attempt in unanswered {
                        attempt.ask_again(&agent);
                    }
                    return;
                }
                Ok(_) => {}
                Err(why) if fruitless == 0 => log::error!(
                    target: "agent",
                    "the Kernel Agent {how}; {why}; existing connections continue, new ones wait for another agent"
                ),
                Err(_) => {}
            }
            fruitless += 1;
            standing.failures += 1;
            self.changed.notify_all();
            self.pause(standing, tried, fruitless, &mut last);
        }
    }

    /// Waits until another try is due.
    fn pause(
        &self,
        mut standing: MutexGuard<'_, Standing>,
        tried: Instant,
        fruitless: u32,
        last: &mut LastThread,
    ) {
        loop {
            MutexGuard::unlocked(&mut standing, || {
                last.look();
                self.end_overdue();
            });
            let look = Instant::now() + LOOK_AGAIN;
            let asked = standing.wanted > 0 || !self.unanswered.lock().is_empty();
            let pause = PAUSE_MAX.min(PAUSE_MIN * 2u32.pow(fruitless.clamp(1, 10) - 1));
            let due = if asked {
                Some(tried + PAUSE_MIN)
            } else {
                (!self.connections.is_empty()).then_some(tried + pause)
            };
            match due {
                _ if self.nics.lock().is_empty() => return,
                Some(due) if due <= Instant::now() => return,
                due => {
                    let until = due.map_or(look, |due| due.min(look));
                    self.changed.wait_until(&mut standing, until);
                }
            }
        }
    }

    /// Hands the state of the last agent over to a new one. Returns false if it has exited as well.
    fn hand_over(&'static self, agent: &Arc<Agent>) -> bool {
        let nics: Vec<_> = self
            .nics
            .lock()
            .iter()
            .map(|(nic, _)| nic.clone())
            .collect();
        for nic in nics {
            match nic.open_at(agent) {
                Ok(()) => {}
                Err(GONE) => return false,
                Err(status) => {
                    log::error!(target: "agent", "the new Kernel Agent refuses a NIC ({status:?})");
                }
            }
        }
        self.connections.hand_over(agent)
    }

    /// Ends the attempts whose deadline has passed or whose VI has been disconnected.
    fn end_overdue(&self) {
        // Without the lock, since examining an attempt takes its VI's lock.
        let all = std::mem::take(&mut *self.unanswered.lock());
        let (over, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|attempt| attempt.is_over());
        self.unanswered.lock().extend(left);
        for attempt in over {
            attempt.give_up();
        }
    }

    /// Starts the thread that reads an agent's messages.
    fn read(&'static self, agent: &Arc<Agent>) -> io::Result<Thread> {
        reader::start(
            agent,
            |agent| self.ends_reading(agent),
            |agent| self.lost(agent),
        )
    }

    /// Connects to an agent and sends HELLO. Tries again if it closes the connection: an agent that is about
    /// to exit may still accept one, and another agent will follow.
    fn introduce(
        &'static self,
        begin: impl Fn(&Arc<Agent>) -> bool,
    ) -> Result<(Arc<Agent>, Thread), String> {
        let mut who = String::new();
        for attempt in 0..HELLO_TRIES {
            match Agent::introduce(&self.settings, |agent| self.read(agent)) {
                Ok((agent, reader)) if begin(&agent) => return Ok((agent, reader)),
                Ok((agent, _)) => who = agent.description(),
                Err(Introduction::Dropped(dropped)) => who = dropped,
                Err(Introduction::Refused(why)) => return Err(why),
            }
            vipl_sys::clock::sleep(HELLO_PAUSE * attempt);
        }
        Err(format!(
            "the Kernel Agent, {who}, closed the connection at once; it may have reached its limits, or what it runs with forbids what it needs"
        ))
    }
}
