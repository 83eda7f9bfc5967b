//! A VI and its state in the device.

mod pair;

use std::rc::Rc;

use vipl_clan_proto::claim;
use vipl_clan_proto::message::Request;
use vipl_rules::Queue;
use vipl_sys::shm::Mapping;

use crate::completions::{Completions, Outcome};
use crate::posted::Posted;
use crate::process::Process;
use crate::queues::Queues;
use crate::tools::Tools;

pub(crate) use pair::{OFFERS_MAX, Pair};

/// How long the agent may take to report how a process has exited, in nanoseconds.
const ORPHANED_NS: u64 = 2_000_000_000;
/// Rounds without work after which a VI is not hot any more.
const COOL: u32 = 4096;

/// One VI.
pub(crate) struct Vi {
    queues: Queues,
    completions: Completions,
    attached: bool,
    /// The connection has ended, or a process has exited: nothing is processed.
    halted: bool,
    peer: Option<usize>,
    /// When the connection ends because the peer's process has exited, unless the agent reports earlier, in
    /// nanoseconds; 0: it has not exited.
    orphaned: u64,
    /// The link to the peer, if it is on another host.
    link: Option<usize>,
    /// Doorbells that have been seen, for such a peer.
    posted: Posted,
    /// Bytes of the send at the head that have been moved, and its length.
    moved: (u32, u32),
    /// Sends at the head that the peer may fetch.
    offered: u32,
    /// The next send waits for them.
    held: bool,
    /// When the first of them came to the head, in nanoseconds.
    offered_at: u64,
    /// Messages to this VI that are not offered, because its application has not polled.
    unattended: u32,
    /// Rounds without work.
    quiet: u32,
    hot: bool,
}

impl Vi {
    pub(crate) fn new(process: Rc<Process>, number: u32, memory: Mapping) -> Vi {
        Vi {
            queues: Queues::new(process, number, memory),
            completions: Completions::default(),
            attached: false,
            halted: true,
            peer: None,
            orphaned: 0,
            link: None,
            posted: Posted::default(),
            moved: (0, 0),
            offered: 0,
            held: false,
            offered_at: 0,
            unattended: 0,
            quiet: 0,
            hot: false,
        }
    }

    pub(crate) fn attach(&mut self, request: &Request) {
        self.queues.attach(request);
        self.completions.begin(request.sends, request.receives);
        self.attached = true;
        self.halted = false;
        self.posted.begin(request.sends, request.receives);
        self.peer = None;
        self.orphaned = 0;
        self.moved = (0, 0);
        self.offered = 0;
        self.held = false;
        self.unattended = 0;
        self.quiet = 0;
    }

    /// Takes the VI off its connection; returns the peer on this host, if there is one.
    pub(crate) fn detach(&mut self, tools: &mut Tools) -> Option<usize> {
        self.write_back_all(tools);
        self.attached = false;
        self.halted = true;
        self.peer.take()
    }

    #[inline(always)]
    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Number of the next completion of a send.
    #[inline(always)]
    pub(crate) fn sends(&self) -> u32 {
        self.completions.sends()
    }

    /// The same for receives.
    #[inline(always)]
    pub(crate) fn receives(&self) -> u32 {
        self.completions.receives()
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.attached
    }

    /// Whether it has this connection.
    pub(crate) fn has_connection(&self, epoch: u32) -> bool {
        self.attached && self.queues.terms().epoch == epoch
    }

    pub(crate) fn peer(&self) -> Option<usize> {
        self.peer
    }

    pub(crate) fn set_peer(&mut self, peer: Option<usize>) {
        self.peer = peer;
    }

    /// The link to the peer, if it is on another host.
    #[inline(always)]
    pub(crate) fn link(&self) -> Option<usize> {
        self.link
    }

    pub(crate) fn set_link(&mut self, link: Option<usize>) {
        self.link = link;
    }

    /// Number after that of the last doorbell of a queue that has been rung, for a peer on another host.
    #[inline(always)]
    pub(crate) fn posted(&self, queue: Queue) -> u32 {
        let pages = self.queues.pages();
        match queue {
            Queue::Send => self.posted.poll_sends(pages, self.sends()),
            Queue::Recv => self.posted.poll_receives(pages, self.receives()),
        }
    }

    /// Nothing is processed until the agent reports how a process has exited.
    pub(crate) fn halt(&mut self) {
        self.halted = true;
    }

    /// The peer's process has exited. The agent is expected to report how.
    pub(crate) fn orphan(&mut self, tools: &mut Tools) {
        if self.attached && !self.halted {
            self.orphaned = tools.now + ORPHANED_NS;
            tools.orphaned = tools.orphaned.min(self.orphaned);
        }
    }

    /// Ends the connection, for this reason, if the agent has not reported in time how the peer's process has exited.
    pub(crate) fn check_orphaned(&mut self, tools: &mut Tools, reason: u32) {
        if !self.attached || self.orphaned == 0 {
            return;
        }
        if self.orphaned <= tools.now {
            self.die(tools, reason);
            self.orphaned = 0;
        } else {
            tools.orphaned = tools.orphaned.min(self.orphaned);
        }
    }

    /// Number of the next send doorbell.
    fn next_send(&self) -> u32 {
        self.sends().wrapping_add(self.offered)
    }

    /// Whether a send doorbell has been rung that can be processed now.
    #[inline(always)]
    pub(crate) fn is_rung(&self) -> bool {
        if self.halted {
            return false;
        }
        let pages = self.queues.pages();
        if self.link.is_some() {
            return pages.is_send_rung(self.posted.next_send());
        }
        let ready = self.peer.is_some() && !self.held;
        ready && pages.is_send_rung(self.next_send())
    }

    /// Whether there is anything to do.
    #[inline(always)]
    pub(crate) fn has_work(&self) -> bool {
        self.is_rung() || self.offered > 0
    }

    pub(crate) fn has_offers(&self) -> bool {
        self.offered > 0
    }

    /// Whether the application's side is fetching the next message.
    pub(crate) fn is_fetching(&self) -> bool {
        let slot = self.queues.pages().received(self.receives());
        slot.claim.state() == claim::FETCHING
    }

    /// Completes the send at the head.
    pub(crate) fn complete_send(&mut self, tools: &Tools, status: u32) {
        self.moved = (0, 0);
        self.completions.send(&self.queues, tools, status);
        let more = self.has_work();
        self.completions.announce_sent(&self.queues, tools, more);
    }

    /// Completes the receive at the head, with `small` bytes of data in [`Tools::bounce`].
    pub(crate) fn complete_receive(&mut self, tools: &Tools, outcome: Outcome, small: usize) {
        let (completions, queues) = (&mut self.completions, &self.queues);
        completions.receive(queues, tools, outcome, small);
    }

    /// Reports an event that does not end the connection.
    pub(crate) fn raise(&mut self, tools: &Tools, event: usize) {
        self.completions.raise(&self.queues, tools, event);
    }

    /// Ends the connection; the first reason counts. Nothing of this VI is processed afterwards.
    pub(crate) fn die(&mut self, tools: &mut Tools, reason: u32) {
        if !self.halted {
            self.halted = true;
            self.completions.end(&self.queues, tools, reason);
        }
    }

    /// Writes all open completions into the application's memory.
    pub(crate) fn write_back_all(&mut self, tools: &mut Tools) {
        self.completions.write_back_all(&self.queues, tools);
    }

    /// Makes the VI hot. True: it was not.
    pub(crate) fn warm(&mut self) -> bool {
        self.quiet = 0;
        !std::mem::replace(&mut self.hot, true)
    }

    pub(crate) fn is_hot(&self) -> bool {
        self.hot
    }

    /// The end of a round: writes completions that are due. False: the VI is not hot any more.
    pub(crate) fn end_round(&mut self, tools: &mut Tools) -> bool {
        if self.completions.is_due(tools.now) {
            let more = self.has_work();
            self.completions.write_back(&self.queues, tools, more);
        }
        self.quiet = self.quiet.saturating_add(1);
        self.hot =
            self.completions.has_open() || self.offered > 0 || (self.attached && self.quiet < COOL);
        self.hot
    }
}
