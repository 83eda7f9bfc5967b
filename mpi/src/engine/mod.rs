//! Everything that happens on the NIC, under its lock: endpoints, their messages, queues of completions and events.
//!
//! The calling thread makes progress when it reads a queue, or posts when there is no room. While a thread sleeps, or if the
//! program has requested automatic progress, the library calls for the next entry of the NIC's completion queue
//! ([`Engine::notified`]).

mod block;
mod connect;
mod endpoint;
mod operation;
mod queues;
mod rdm;
mod receiver;
mod reports;
mod sender;
mod tagged;
mod vi;

use std::collections::HashMap;
use std::sync::Arc;

pub(crate) use connect::{Incoming, Passive};
pub(crate) use endpoint::{Endpoint, TaggedSend};
pub(crate) use operation::{Operation, Work};
pub(crate) use queues::{Completion, Entry, Event, Opaque, Queue, Reading, Wake};
pub(crate) use rdm::{Av, Posted, Probe, Rdm};
pub(crate) use receiver::Receive;
pub(crate) use tagged::Route;

use vipl_abi::CqHandler;

use crate::address::Address;
use crate::device::{Device, Handle, Regions};
use crate::fi::fid;
use crate::settings::Settings;
use crate::slab::{Id, Slab};

/// What endpoints share.
pub(crate) struct Shared {
    pub device: Arc<Device>,
    pub settings: &'static Settings,
    pub completions: Slab<Queue<Completion>>,
    pub events: Slab<Queue<Event>>,
    pub passives: Slab<Passive>,
    pub avs: Slab<Av>,
    pub rdms: Slab<Rdm>,
    /// Failed attempts to reach an address, in a row.
    pub failures: HashMap<[u8; Address::BYTES], u32>,
    /// Filled only when the device cannot read remote memory.
    pub regions: Regions,
    /// Endpoints that no object refers to: connection requests whose peer has disconnected, or that were rejected.
    abandoned: Vec<Id>,
    /// The device has failed, and nothing will ever complete again.
    pub dead: bool,
}

impl Shared {
    #[inline]
    fn complete(&mut self, queue: Option<Id>, completion: Completion) {
        if let Some(queue) = queue.and_then(|queue| self.completions.get(queue)) {
            queue.push(completion);
        }
    }

    fn event(&mut self, queue: Option<Id>, event: Event) {
        if let Some(queue) = queue.and_then(|queue| self.events.get(queue)) {
            queue.push(event);
        }
    }

    /// Removes the events of an object that closes.
    pub(crate) fn forget_events(&mut self, queue: Option<Id>, fid: Opaque<fid>) {
        if let Some(queue) = queue.and_then(|queue| self.events.get(queue)) {
            queue.entries.retain(|event| event.fid != fid);
            queue.lower();
        }
    }

    /// Destroys the endpoint, which no object refers to, at the end of the call.
    fn abandon(&mut self, endpoint: Id) {
        self.abandoned.push(endpoint);
    }

    fn nudge(&mut self, queue: Option<Id>) {
        if let Some(queue) = queue.and_then(|queue| self.completions.get(queue)) {
            queue.nudge();
        }
    }
}

/// A program counts as one with several threads for so many calls of the same thread.
const CROWD: u32 = 1 << 20;
/// Empty reads between two checks for connections that are being established.
const CHECK_EVERY: u32 = 64;
/// Entries that one call takes from the NIC's completion queue.
const BATCH: usize = 64;
/// VIs whose endpoints are found without a call of the library.
const RECENT: usize = 64;

/// See the module.
pub(crate) struct Engine {
    pub shared: Shared,
    pub endpoints: Slab<Endpoint>,
    /// The function that the library calls.
    on_entry: CqHandler,
    /// The library will call for the next entry.
    armed: bool,
    /// It goes on calling, whether or not a thread sleeps.
    automatic: bool,
    /// Endpoints of VIs that have completed something, by a hash of the handle: the library's own search costs 190 instructions.
    recent: [(Handle, Id); RECENT],
    /// The thread of the program that called last.
    caller: libc::pthread_t,
    /// Calls until the program counts as one with a single thread.
    crowd: u32,
    /// Reads of queues that found nothing.
    empty: u32,
}

impl Engine {
    pub(crate) fn new(
        device: Arc<Device>,
        settings: &'static Settings,
        on_entry: CqHandler,
    ) -> Engine {
        Engine {
            shared: Shared {
                device,
                settings,
                completions: Slab::new(),
                events: Slab::new(),
                passives: Slab::new(),
                avs: Slab::new(),
                rdms: Slab::new(),
                failures: HashMap::new(),
                regions: Regions::new(),
                abandoned: Vec::new(),
                dead: false,
            },
            endpoints: Slab::new(),
            on_entry,
            armed: false,
            automatic: false,
            recent: [(Handle::NONE, Id::NONE); RECENT],
            caller: 0,
            crowd: 0,
            empty: 0,
        }
    }

    /// A thread of the program calls.
    #[inline]
    pub(crate) fn called(&mut self) {
        // SAFETY: no arguments, and it cannot fail.
        let caller = unsafe { libc::pthread_self() };
        if caller == self.caller {
            self.crowd = self.crowd.saturating_sub(1);
        } else {
            self.crowd = if self.caller == 0 { 0 } else { CROWD };
            self.caller = caller;
        }
    }

    /// A read of a queue has found nothing. Whether the thread should sleep a little before the next one: while connections are
    /// established, agents and threads that connect need the processor more than a rank that spins, and on a machine with more
    /// ranks than processors each of their steps waits for a time slice otherwise.
    pub(crate) fn found_nothing(&mut self) -> bool {
        self.empty = self.empty.wrapping_add(1);
        self.empty.is_multiple_of(CHECK_EVERY)
            && self.crowd == 0
            && self
                .endpoints
                .iter()
                .any(|(_, endpoint)| endpoint.is_connecting())
    }

    /// Takes what has completed.
    pub(crate) fn progress(&mut self) {
        self.progress_while(|_| true);
    }

    /// Submits something: if there is no room, progress may make some.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        attempt: impl Fn(&mut Engine) -> Result<(), i32>,
    ) -> Result<usize, i32> {
        self.called();
        let mut result = attempt(self);
        if result == Err(libc::EAGAIN) {
            self.progress();
            result = attempt(self);
        }
        result.map(|()| 0)
    }

    /// The same for a program that reads entries of a queue: until there are as many as it wants. A search for more would delay the
    /// first. False: nothing has completed.
    #[inline]
    pub(crate) fn progress_for(&mut self, queue: Id, wanted: usize) -> bool {
        self.progress_while(|shared| {
            let queue = shared.completions.get(queue);
            queue.is_some_and(|queue| queue.entries.len() < wanted)
        })
    }

    #[inline]
    fn progress_while(&mut self, wants_more: impl Fn(&mut Shared) -> bool) -> bool {
        let mut found = false;
        // Others wait for the lock, and in `ofi_rxm` for one more: nothing may yield below them.
        let before = (self.crowd > 0).then(|| self.shared.device.may_yield(false));
        for _ in 0..BATCH {
            let Some((vi, receive)) = self.shared.device.next_entry() else {
                break;
            };
            found = true;
            self.entry(vi, receive);
            if !wants_more(&mut self.shared) {
                break;
            }
        }
        if let Some(before) = before {
            self.shared.device.may_yield(before);
        }
        if !self.shared.abandoned.is_empty() {
            self.destroy_abandoned();
        }
        found
    }

    /// One entry of the completion queue.
    #[inline]
    fn entry(&mut self, vi: Handle, receive: bool) {
        let recent = &mut self.recent[vi.hash() % RECENT];
        // A handle may name another VI after its own was destroyed.
        if recent.0 != vi || self.endpoints.get(recent.1).is_none() {
            *recent = (vi, self.shared.device.id_of(vi));
        }
        if let Some(endpoint) = self.endpoints.get(recent.1) {
            endpoint.completed(receive, &mut self.shared);
        }
    }

    /// Destroys the endpoints that no object refers to.
    #[cold]
    fn destroy_abandoned(&mut self) {
        for id in std::mem::take(&mut self.shared.abandoned) {
            if let Some(endpoint) = self.endpoints.remove(id) {
                endpoint.destroy(&mut self.shared);
            }
        }
    }

    /// The library calls: an entry has come.
    pub(crate) fn notified(&mut self, vi: Handle, receive: bool) {
        self.armed = false;
        if self.of_vi(vi).is_some() {
            self.entry(vi, receive);
        }
        self.progress();
        // A thread that was woken arms again before it sleeps again; the entry may have been for another thread.
        if self.automatic || self.has_sleeper() {
            self.arm();
        }
    }

    /// Whether a queue is watched on which nothing has come.
    fn has_sleeper(&mut self) -> bool {
        let mut watched = false;
        for (_, queue) in self.shared.completions.iter() {
            watched |= queue.is_watched();
        }
        for (_, queue) in self.shared.events.iter() {
            watched |= queue.is_watched();
        }
        watched
    }

    /// Makes the library call for the next entry.
    pub(crate) fn arm(&mut self) {
        if !self.armed {
            self.armed = self.shared.device.notify(self.on_entry);
        }
    }

    /// The next [`Self::arm`] arms again.
    #[cfg(test)]
    pub(crate) fn forget_call(&mut self) {
        self.armed = false;
    }

    /// From now on the library calls for every entry.
    pub(crate) fn make_automatic(&mut self) {
        self.automatic = true;
        self.arm();
    }

    /// The library reports an asynchronous error.
    pub(crate) fn broken(&mut self, vi: Option<Handle>, everything: bool, code: i32) {
        crate::libfabric::info(|| format!("asynchronous error {code}"));
        if everything {
            self.shared.dead = true;
            for (_, endpoint) in self.endpoints.iter() {
                endpoint.fail(libc::EIO, &mut self.shared);
            }
        } else if let Some(endpoint) = vi
            .and_then(|vi| self.of_vi(vi))
            .and_then(|id| self.endpoints.get(id))
        {
            endpoint.fail(libc::ECONNRESET, &mut self.shared);
        }
    }

    /// The endpoint of a VI that may have been destroyed: the library's own search would complain.
    fn of_vi(&mut self, vi: Handle) -> Option<Id> {
        self.endpoints
            .iter()
            .find(|(_, endpoint)| endpoint.vi() == vi)
            .map(|(id, _)| id)
    }

    /// Takes an endpoint in.
    pub(crate) fn add(&mut self, endpoint: Endpoint) -> Id {
        let id = self.endpoints.insert(endpoint);
        self.with(id, |endpoint, _| endpoint.set_id(id));
        id
    }

    /// Ends the endpoints of a listener that closes, as far as the program has not taken them.
    pub(crate) fn abandon(&mut self, passive: Id) {
        for (id, endpoint) in self.endpoints.iter() {
            if endpoint.listener() == Some(passive) {
                self.shared.abandoned.push(id);
            }
        }
        self.destroy_abandoned();
    }

    /// Ends the connections of peers that have connected and not identified themselves in the time for a connection: any process
    /// can connect, and every VI is one less for the others.
    pub(crate) fn hang_up_on_silent(&mut self) {
        let limit = self.shared.settings.connect_timeout;
        for (id, endpoint) in self.endpoints.iter() {
            if endpoint
                .silent_since()
                .is_some_and(|since| since.elapsed() >= limit)
            {
                self.shared.abandoned.push(id);
            }
        }
        self.destroy_abandoned();
    }

    /// Ends the connection of the peer that has been silent longest; false if there is none.
    pub(crate) fn hang_up_on_oldest(&mut self) -> bool {
        let silent = self
            .endpoints
            .iter()
            .filter_map(|(id, endpoint)| Some((endpoint.silent_since()?, id)));
        let Some((_, id)) = silent.min_by_key(|(since, _)| *since) else {
            return false;
        };
        self.shared.abandoned.push(id);
        self.destroy_abandoned();
        true
    }

    /// Runs a function on an endpoint and what it shares with others.
    #[inline]
    pub(crate) fn with<R>(
        &mut self,
        id: Id,
        run: impl FnOnce(&mut Endpoint, &mut Shared) -> R,
    ) -> Option<R> {
        let endpoint = self.endpoints.get(id)?;
        Some(run(endpoint, &mut self.shared))
    }
}
