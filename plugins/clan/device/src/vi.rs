//! A VI and its state in the device.

use std::rc::Rc;

use vipl_abi::{VIP_SERVICE_RELIABLE_RECEPTION, VIP_SERVICE_UNRELIABLE};
use vipl_clan_proto::claim;
use vipl_clan_proto::message::{Request, flag};
use vipl_clan_proto::nic::DevicePage;
use vipl_clan_proto::vi::{Segment, ViPages, news};
use vipl_sys::shm::Mapping;

use crate::events::NEVER;
use crate::remote::Away;
use crate::vm::Process;

/// Bytes that are moved in one go; they pass through a buffer that stays in the processor's cache.
pub(crate) const CHUNK: usize = 64 << 10;

/// Segments of one descriptor: with what a completion adds, not more than the kernel takes in one call.
const SEGMENTS_MAX: u16 = 1000;

/// What the engine works with.
pub(crate) struct Tools {
    page: Mapping,
    /// Data on its way.
    pub(crate) bounce: Box<[u8]>,
    /// Segments of the descriptor that sends.
    pub(crate) out: Vec<Segment>,
    /// Segments of the descriptor that receives.
    pub(crate) into: Vec<Segment>,
    /// For one call of the kernel.
    pub(crate) pieces: Vec<libc::iovec>,
    /// Nanoseconds.
    pub(crate) now: u64,
    /// When the first orphaned VI is told, in nanoseconds.
    pub(crate) orphaned: u64,
}

impl Tools {
    pub(crate) fn new(page: Mapping) -> Tools {
        Tools {
            page,
            // Data, and what a completion adds to it.
            bounce: vec![0; CHUNK + 12].into_boxed_slice(),
            out: Vec::new(),
            into: Vec::new(),
            pieces: Vec::new(),
            now: 0,
            orphaned: NEVER,
        }
    }

    /// What all processes see of the device.
    pub(crate) fn page(&self) -> &DevicePage {
        // SAFETY: a page of zeroes at first, which is valid, and all atomic.
        unsafe { &*self.page.base().cast::<DevicePage>() }
    }
}

/// How long the agent has to say how a process has ended, in nanoseconds.
const ORPHANED_NS: u64 = 2_000_000_000;

/// What the VI is to its connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) epoch: u32,
    pub(crate) key: u64,
    pub(crate) ptag: u32,
    pub(crate) max_transfer: u64,
    pub(crate) reliability: u16,
    pub(crate) flags: u16,
    pub(crate) read_levels: u16,
    pub(crate) segments_max: u16,
}

/// Completions that wait for the program to look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unseen {
    /// The first one that may still be open.
    pub(crate) first: u32,
    /// Those before this one have waited long enough when the time has come.
    pub(crate) aged: u32,
}

/// One VI.
pub(crate) struct Vi {
    pub(crate) process: Rc<Process>,
    pub(crate) number: u32,
    pub(crate) pages: ViPages,
    pub(crate) terms: Terms,
    pub(crate) attached: bool,
    /// The connection has ended, or the partner has gone without a word: nothing is processed.
    pub(crate) halted: bool,
    pub(crate) partner: Option<usize>,
    /// When it is told that the partner's process has ended, unless the agent has said so before, in
    /// nanoseconds; 0: it has not ended.
    pub(crate) orphaned: u64,
    /// The connection, if the partner is on another host.
    pub(crate) away: Option<Box<Away>>,
    /// Number of the next completion of a send.
    pub(crate) sends: u32,
    /// The same of receives.
    pub(crate) receives: u32,
    /// Bytes of the send at the head that have been moved, and its length.
    pub(crate) moved: (u32, u32),
    /// Sends at the head that the partner may fetch.
    pub(crate) offered: u32,
    /// The send behind them waits for them.
    pub(crate) held: bool,
    /// When the first of them came to the head, in nanoseconds.
    pub(crate) offered_at: u64,
    /// Messages that are not offered to this VI, since its program did not look.
    pub(crate) unattended: u32,
    /// Completed sends that nobody has been told of.
    pub(crate) untold: u32,
    /// When the first of them completed, in nanoseconds.
    pub(crate) untold_at: u64,
    pub(crate) unseen_sent: Unseen,
    pub(crate) unseen_received: Unseen,
    /// When completions that nobody has looked at are put into the program's memory; 0: there are none.
    pub(crate) due: u64,
    /// What it has been told, by the places of `news`.
    pub(crate) news: [u32; news::KINDS],
    /// Rounds without work.
    pub(crate) quiet: u32,
    pub(crate) hot: bool,
    _memory: Mapping,
}

impl Vi {
    pub(crate) fn new(process: Rc<Process>, number: u32, memory: Mapping) -> Vi {
        Vi {
            process,
            number,
            // SAFETY: the mapping lives in the VI, as long as the view.
            pages: unsafe { ViPages::new(memory.base()) },
            terms: Terms::default(),
            attached: false,
            halted: true,
            partner: None,
            orphaned: 0,
            away: None,
            sends: 0,
            receives: 0,
            moved: (0, 0),
            offered: 0,
            held: false,
            offered_at: 0,
            unattended: 0,
            untold: 0,
            untold_at: 0,
            unseen_sent: Unseen::default(),
            unseen_received: Unseen::default(),
            due: 0,
            news: [0; news::KINDS],
            quiet: 0,
            hot: false,
            _memory: memory,
        }
    }

    /// The partner's process has ended. The agent says how, as long as it does.
    pub(crate) fn orphan(&mut self, tools: &mut Tools) {
        if self.attached && !self.halted {
            self.orphaned = tools.now + ORPHANED_NS;
            tools.orphaned = tools.orphaned.min(self.orphaned);
        }
    }

    pub(crate) fn attach(&mut self, request: &Request) {
        self.orphaned = 0;
        self.terms = Terms {
            epoch: request.epoch,
            key: request.key,
            ptag: request.ptag,
            max_transfer: request.max_transfer.min(u64::from(u32::MAX)),
            reliability: request.reliability,
            flags: request.flags,
            read_levels: request.read_levels,
            segments_max: request.segments_max.min(SEGMENTS_MAX),
        };
        (self.sends, self.receives) = (request.sends, request.receives);
        self.unseen_sent = Unseen {
            first: self.sends,
            aged: self.sends,
        };
        self.unseen_received = Unseen {
            first: self.receives,
            aged: self.receives,
        };
        self.moved = (0, 0);
        self.offered = 0;
        self.held = false;
        self.unattended = 0;
        self.untold = 0;
        self.due = 0;
        self.partner = None;
        self.attached = true;
        self.halted = false;
        self.quiet = 0;
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.terms.flags & flag != 0
    }

    /// For the rest of this connection the device moves everything.
    pub(crate) fn fetches_no_more(&mut self) {
        self.terms.flags &= !flag::FETCHES;
    }

    pub(crate) fn is_unreliable(&self) -> bool {
        self.terms.reliability == VIP_SERVICE_UNRELIABLE
    }

    pub(crate) fn waits_for_reception(&self) -> bool {
        self.terms.reliability == VIP_SERVICE_RELIABLE_RECEPTION
    }

    /// Whether a small message may come with its completion: under Reliable Reception it is in the posted
    /// buffers before the send completes.
    pub(crate) fn takes_inline(&self) -> bool {
        self.has(flag::INLINE) && !self.waits_for_reception()
    }

    /// Whether the program's side is just fetching the message that comes next.
    pub(crate) fn is_fetching(&self) -> bool {
        self.pages.received(self.receives).claim.state() == claim::FETCHING
    }

    /// Number of the next send doorbell.
    pub(crate) fn next_send(&self) -> u32 {
        self.sends.wrapping_add(self.offered)
    }

    /// Whether there is anything to do.
    #[inline(always)]
    pub(crate) fn is_rung(&self) -> bool {
        if self.halted {
            return false;
        }
        match &self.away {
            None => {
                let ready = self.partner.is_some() && !self.held;
                ready && self.pages.is_send_rung(self.next_send())
            }
            Some(away) => self.pages.is_send_rung(away.posted.next_send()),
        }
    }
}
