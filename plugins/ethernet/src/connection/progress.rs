//! Progress of a connection: frames that have arrived, acknowledgements, and what is due.

use vipl_plugin_sdk::{Host, Port};
use vipl_wire::{Connection, Kind, Received, Refused};

use super::{RETRY_NS, ViConnection};
use crate::device::{Device, Origin, count};
use crate::env::{self, ViCall};
use crate::moving::Moving;
use crate::segment::InvalidCursor;
use crate::trains::TRY;

/// Frames from a peer on this host that one poll takes.
const POLL_FRAMES: u32 = 64;
/// Frames from a peer on this host that are taken before a deadline counts: more than can wait from a peer that
/// respects the window.
const WAITING_FRAMES: u32 = 512;
/// Polls that find nothing to do before one reads the clock, for the deadlines and for the watch thread.
const EMPTY_POLLS: u32 = 8;

/// One poll that has something to do.
struct Poll<'a> {
    device: &'a Device,
    engine: &'a mut Connection,
    moving: &'a mut Moving,
    follows: bool,
    /// Whether a TRIED may be about trains.
    awaits_trains: bool,
    call: ViCall<'a>,
    now: u64,
    /// Frames taken.
    frames: u32,
}

impl Poll<'_> {
    /// Passes a frame to the engine. `marked`: a congested router has marked it.
    #[inline(always)]
    fn take(&mut self, frame: &[u8], marked: bool, from: Origin) {
        self.frames += 1;
        let counters = &self.device.counters;
        match self.engine.received(frame, self.now, &mut self.call) {
            Received::Taken => {
                if marked {
                    self.engine.marked(frame);
                    count(counters.marked, 1);
                }
                if self.awaits_trains && Kind::Tried.is_of(frame) {
                    self.trains_answered();
                }
                if self.follows {
                    let frame = (frame, from());
                    self.moving
                        .note_sender(self.engine, frame, self.now, &mut self.call);
                }
            }
            Received::WrongKey => count(counters.stray, 1),
            Received::Refused(Refused::Seal) => count(counters.forged, 1),
            Received::Refused(Refused::Corrupt) => count(counters.corrupt, 1),
            Received::Refused(_) => count(counters.bad, 1),
        }
    }

    /// Asks the peer whether it receives trains.
    #[cold]
    fn ask_for_trains(&mut self) {
        let Some(trains) = self.call.out.carrier.trains() else {
            return;
        };
        trains.begin_to_ask(self.now);
        for _ in 0..2 {
            self.engine.ask(TRY, self.now, &mut self.call);
        }
        if let Some(trains) = self.call.out.carrier.trains() {
            trains.end_asking();
        }
    }

    /// Handles a TRIED, which the engine has taken.
    #[cold]
    fn trains_answered(&mut self) {
        let answer = self.engine.take_answer();
        if let Some(trains) = self.call.out.carrier.trains()
            && answer == Some(TRY)
        {
            let longest = trains.answered(self.now);
            self.engine.limit_frames(longest as u16);
        }
    }

    /// Takes up to `most` frames from a peer on this host.
    fn take_local(&mut self, buffer: &mut Vec<u8>, most: u32) -> Result<(), InvalidCursor> {
        for _ in 0..most {
            if !self.call.out.carrier.take(buffer)? {
                break;
            }
            self.take(buffer, false, &|| None);
        }
        Ok(())
    }
}

impl ViConnection {
    /// Whether a poll need not even read the clock: no frame has arrived, none is to be sent, and a poll a moment ago
    /// has checked the deadlines. The sooner such a poll ends, the sooner the next one sees a frame. Prefetches a frame
    /// that has arrived.
    #[inline(always)]
    fn finds_nothing(&mut self) -> bool {
        let device = &*self.device;
        let (Some(uplink), true) = (&device.uplink, self.peer.is_some()) else {
            return false;
        };
        if self.coalesced.is_none_or(|bytes| bytes == 0) {
            self.coalesced = None;
            uplink.doorbell.ring();
        }
        let nothing = !uplink.inlet.finds_frame()
            && !device.inbox(self.index).is_filled()
            && !uplink.doorbell.waits()
            && self.coalesced.is_none()
            && !device.coalescing.is_unreported(self.index)
            && !self.engine.is_blocked()
            && !self.engine.ack_owed()
            && self.empty_polls < EMPTY_POLLS
            // The watch thread polls when something is due.
            && !device.watch.serves(self.index);
        self.empty_polls = if nothing { self.empty_polls + 1 } else { 0 };
        nothing
    }

    /// Takes the frames that have arrived, and does what is due.
    #[inline(always)]
    pub(crate) fn progress(&mut self, port: &Port) {
        self.device.watch.note_application();
        // Prefetches a waiting frame while the clock is read.
        if self.finds_nothing() {
            return;
        }
        let now = Host::get().now_ns();
        let waiting = self.stop_coalescing();
        let device = &*self.device;
        let by_application = !device.watch.serves(self.index);
        if by_application {
            device.schedule.begin_to_serve(self.index, now);
        }
        device.hand_over_coalescing(self.index);
        let alone = self.carrier.uses_trains() && self.engine.is_quiet();
        let awaits_trains = self
            .carrier
            .trains()
            .is_some_and(|trains| trains.await_answer());
        let out = self.carrier.transmitter(Some(now), false).begins(alone);
        let mut poll = Poll {
            device,
            engine: &mut self.engine,
            moving: &mut self.moving,
            follows: self.follows,
            awaits_trains,
            call: env::call(port, device, out, self.peer.as_deref()),
            now,
            frames: 0,
        };
        if waiting {
            poll.engine.posted(now, &mut poll.call);
            poll.call.out.hand_over();
        }
        device.ring();
        device.receive(self.index, self.check, |frame, marked, from| {
            poll.take(frame, marked, from);
        });
        if poll.take_local(&mut self.frame, POLL_FRAMES).is_err() {
            // The peer has damaged the shared segment: it loses this connection, and nothing else.
            poll.engine.peer_gone(false, now, &mut poll.call);
        }
        if poll.frames > 0 {
            device.watch.note_arrival();
        } else if poll.engine.ack_owed() {
            // No more frames, and the application has posted nothing that could carry the acknowledgement.
            poll.engine.flush_acks(now, &mut poll.call);
        }
        if poll.frames > 0 || poll.engine.is_blocked() {
            poll.engine.flush(now, &mut poll.call);
        }
        let mut deadline = poll.engine.deadline();
        if deadline <= now {
            // All frames that have arrived count before the deadline does.
            let all = if self.peer.is_some() {
                device.catch_up(self.index, self.check, |frame, marked, from| {
                    poll.take(frame, marked, from);
                })
            } else {
                // The next poll finds an invalid position again.
                let _ = poll.take_local(&mut self.frame, WAITING_FRAMES);
                true
            };
            if all {
                poll.engine.timeout(now, &mut poll.call);
                deadline = poll.engine.deadline();
            } else {
                deadline = now + RETRY_NS;
            }
        }
        if poll.call.out.carrier.wants_trains(now) {
            poll.ask_for_trains();
        }
        if poll.moving.deadline() <= now {
            poll.moving.go_on(poll.engine, now, &mut poll.call);
        }
        drop(poll);
        // Before the deadline is set: frames that still wait then are a reason to come back soon.
        self.device.ring();
        let deadline = self.finish(now, deadline);
        if by_application {
            self.device.schedule.end_serving(now);
        }
        // Otherwise an application's operation leaves an earlier deadline in place.
        if !by_application || self.engine.take_put_off() {
            self.device.schedule.renew_deadline(self.index, deadline);
        }
    }
}
