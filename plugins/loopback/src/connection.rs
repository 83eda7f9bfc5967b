//! A connection: the peer, the two directions, and the copies that both sides share. It brings together what the other modules do not
//! know of each other, and alone ends a connection.
//!
//! A side that closes publishes the reason in one word of its own. The peer first takes every message that arrived before, and
//! every acknowledgement, and then acts on the reason. No slot is needed for it, so it works when the ring is full.

mod start;
mod take;

use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::{Host, Port, Queue, Status};
use vipl_sys::shm::Mapping;

use crate::choice::Choice;
use crate::copy;
use crate::ending::{CONN_LOST, Closed, Ending};
use crate::nic::LoopbackNic;
use crate::peer::{self, Call, Peer, Reach};
use crate::receive::{self, Receiver, Taken};
use crate::segment::{self, PAYLOAD, PUBLISH_EVERY, SEGMENT, SLOTS};
use crate::send::{self, Sender, Step};
use crate::shared_copy::SharedCopy;
use crate::transfer::{read, refusal};

/// Slots taken in one go.
const BATCH: u32 = 32;

/// A connection. The fields that every message touches lie in three cache lines: a program with many connections finds each
/// of them cold.
#[repr(C, align(64))]
pub(crate) struct Connection {
    peer: Peer,
    sender: Sender,
    inbound: Inbound,
    choice: Choice,
}

/// The receive side, and the word of shared copies, in one cache line.
#[repr(C, align(64))]
struct Inbound {
    receiver: Receiver,
    shared: SharedCopy,
}

// With pointers of 32 bits the lines begin elsewhere, and are fewer.
const _: () = assert!(cfg!(target_pointer_width = "32") || peer::HOT == 128);
const _: () = assert!(offset_of!(Connection, peer) == 0);
const _: () = assert!(offset_of!(Inbound, shared) < 64);

/// The arguments of an operation, borrowed so that the directions stay free.
macro_rules! call {
    ($self:ident, $port:ident) => {
        Call {
            port: $port,
            peer: &$self.peer,
        }
    };
}
use call;

impl Connection {
    /// Maps the segment and introduces this side.
    ///
    /// # Errors
    /// `Resource`: the segment or the peer's NIC cannot be mapped.
    pub(crate) fn attach(
        nic: &LoopbackNic,
        port: &Port,
        connection: &vipl_connection,
    ) -> Result<Connection, Status> {
        let failed = |error: std::io::Error| {
            let hint = match error.raw_os_error() {
                Some(libc::ENOMEM) => {
                    " (each connection is one mapping: ulimit -v, sysctl vm.max_map_count)"
                }
                _ => "",
            };
            let text = format!("loopback: cannot map a connection: {error}{hint}");
            Host::get().log(VIPL_LOG_ERROR, &text);
            Status::Resource
        };
        if (connection.segment_bytes as usize) < SEGMENT {
            return Err(failed(std::io::Error::other("the segment is too small")));
        }
        let mapping = Mapping::open(connection.segment_fd, SEGMENT, true).map_err(failed)?;
        let shared = nic
            .peer(connection.peer_nic, connection.peer_fds)
            .map_err(failed)?;
        // SAFETY: the peer has the mapping, and goes with the views.
        let (words, out, in_) = unsafe { segment::views(mapping.base(), connection.side) };
        let peer = Peer::new(nic, port, connection, mapping, words, shared);
        copy::publish_probe(&peer);
        peer.introduce(port);
        nic.watch().add(port.index());
        peer.alert_if_waiting();
        let receiver = Receiver::new(in_, peer.reception());
        Ok(Connection {
            peer,
            sender: Sender::new(out, port),
            inbound: Inbound {
                receiver,
                shared: SharedCopy::new(),
            },
            choice: Choice::new(),
        })
    }

    /// VipDisconnect: takes what has arrived, closes, and waits until the peer does not access this process's memory.
    pub(crate) fn detach(mut self, nic: &LoopbackNic, port: &Port) {
        // The last poll may have left something to the next.
        if port.is_connected() {
            self.poll_all(nic, port);
        }
        self.peer.close(Closed::DISCONNECTED);
        copy::wait_for_peer(&self.peer);
    }

    /// The receive doorbell.
    #[inline(always)]
    pub(crate) fn post_recv(&self, port: &Port) {
        self.peer.publish_posted(port);
    }

    /// The send doorbell.
    #[inline(always)]
    pub(crate) fn post_send(&mut self, nic: &LoopbackNic, port: &Port) {
        let number = port.completed(Queue::Send);
        let alone = port.posted(Queue::Send) == number.wrapping_add(1);
        // Without short circuits: one branch for all.
        let busy = self.sender.is_busy() | self.peer.is_waiting() | self.peer.reception();
        if !alone || busy {
            return self.pump(nic, port);
        }
        // Nothing else is on the queue: the message completes at once.
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Send, number) };
        if !self.start_frame(nic, port, entry) {
            return self.start_alone(nic, port);
        }
        // SAFETY: the only one.
        match unsafe { send::complete(port, entry, VIP_STATUS_OP_SEND) } {
            Ok(_) => self.peer.wake(),
            Err(ending) => self.end(port, ending),
        }
    }

    /// A descriptor that is alone on its queue and no single-frame message. It is read again, so that nothing has to be kept
    /// for this case.
    #[inline(never)]
    fn start_alone(&mut self, nic: &LoopbackNic, port: &Port) {
        let Some(entry) = port.oldest(Queue::Send) else {
            return;
        };
        if self.start_write(port, entry) {
            // SAFETY: the only one.
            let completed = unsafe { send::complete(port, entry, VIP_STATUS_OP_RDMA_WRITE) };
            if let Err(ending) = completed {
                self.end(port, ending);
            }
            return;
        }
        let result = self.start(nic, port, entry);
        self.after_pump(nic, port, result);
    }

    /// Processes what is posted.
    #[inline(never)]
    fn pump(&mut self, nic: &LoopbackNic, port: &Port) {
        let before = self.sender.sent();
        let mut result = Ok(Step::Done);
        while !self.sender.is_halted()
            && let Some(entry) = port.outstanding(Queue::Send, self.sender.next_number(port))
        {
            result = if self.sender.pieces().is_none() && self.start_frame(nic, port, entry) {
                let call = call!(self, port);
                // SAFETY: the oldest one that is not processed.
                unsafe { self.sender.accepted(call, entry, VIP_STATUS_OP_SEND) }
            } else if self.start_write(port, entry) {
                send::complete_oldest(port, VIP_STATUS_OP_RDMA_WRITE)
            } else {
                self.start(nic, port, entry)
            };
            if !matches!(result, Ok(Step::Done)) {
                break;
            }
        }
        if self.sender.sent() != before {
            self.peer.wake();
        }
        self.after_pump(nic, port, result);
    }

    /// Ends the connection if the last descriptor demands it, and publishes whether sends wait for the peer.
    #[inline]
    fn after_pump(&mut self, nic: &LoopbackNic, port: &Port, result: Result<Step, Ending>) {
        let blocked = matches!(result, Ok(Step::Wait));
        if let Err(ending) = result {
            self.end(port, ending);
        }
        let waits = port.is_connected()
            && (blocked
                || (!self.peer.reception() && self.sender.has_outstanding())
                || self.sender.is_serving()
                || self.inbound.shared.is_open());
        if waits != self.peer.is_waiting() {
            self.wait_for_peer(nic, port, waits);
        }
    }

    #[cold]
    fn wait_for_peer(&mut self, nic: &LoopbackNic, port: &Port, waits: bool) {
        self.peer.set_waiting(waits);
        self.inbound.receiver.clear_idle();
        if !waits {
            return;
        }
        let call = call!(self, port);
        copy::find_reach(&self.peer);
        let before = self.sender.consumed();
        match self.sender.refresh(call) {
            Err(ending) => self.end(port, ending),
            // The peer went on while this was published.
            Ok(()) if self.sender.consumed() != before => self.pump(nic, port),
            Ok(()) => {}
        }
    }

    /// Takes what has arrived, then goes on with what was waiting.
    #[inline(always)]
    pub(crate) fn poll(&mut self, nic: &LoopbackNic, port: &Port) {
        let Some(arrival) = self.inbound.receiver.arrival(&self.peer) else {
            return self.found_nothing(nic, port);
        };
        if !self.inbound.receiver.take_idle() | wants_signals(port) {
            return self.poll_all(nic, port);
        }
        // A message that was polled for is received sooner if nothing else is checked: the next call does that.
        let Some(from) = self.frame(&arrival) else {
            return self.poll_all(nic, port);
        };
        self.sender.learn(&arrival);
        match receive::deliver(call!(self, port), &arrival, from) {
            Ok(_) => {
                let next = segment::next(self.peer.consumed(), arrival.flags);
                self.peer.set_consumed(next);
                self.peer.acknowledge();
            }
            Err(ending) => self.end(port, ending),
        }
    }

    /// The end of a poll of an empty ring.
    #[inline(always)]
    fn found_nothing(&mut self, nic: &LoopbackNic, port: &Port) {
        self.inbound.receiver.prefetch_expected();
        if self.needs_more(nic, port) {
            self.poll_more(nic, port);
        } else {
            self.inbound.receiver.note_idle();
        }
    }

    /// Takes as many messages as there are, then goes on with what was waiting.
    #[inline(never)]
    fn poll_all(&mut self, nic: &LoopbackNic, port: &Port) {
        let (before, mut bytes) = (self.peer.consumed(), 0);
        let all = self.receive(port, BATCH, &mut bytes);
        if self.peer.consumed() != before {
            if all {
                self.receive_more(nic, port, bytes);
            }
            self.peer.acknowledge();
        }
        if self.needs_more(nic, port) {
            self.poll_more(nic, port);
        }
    }

    /// After a whole batch with so many bytes: goes on while nothing completes, and asks to be polled again if there is more. A
    /// sender that uses the room meanwhile does not make a poll longer.
    #[cold]
    fn receive_more(&mut self, nic: &LoopbackNic, port: &Port, mut bytes: u32) {
        let completed = port.completed(Queue::Recv);
        for _ in 0..SLOTS / BATCH {
            if !port.is_connected() || self.inbound.receiver.arrival(&self.peer).is_none() {
                return;
            }
            if port.completed(Queue::Recv) != completed || bytes >= PAYLOAD {
                break;
            }
            self.receive(port, BATCH, &mut bytes);
        }
        nic.shared().ready().set(port.index());
    }

    /// Takes so many slots, if they have arrived, and adds up the `bytes` of the payload area that become free. True: as many
    /// as that, or as much as the area holds.
    #[inline(always)]
    fn receive(&mut self, port: &Port, most: u32, bytes: &mut u32) -> bool {
        for taken in 0..most {
            let Some(arrival) = self.inbound.receiver.arrival(&self.peer) else {
                self.inbound.receiver.prefetch_expected();
                return false;
            };
            if taken != 0 {
                self.inbound.receiver.prefetch_slot(&self.peer);
            }
            self.sender.learn(&arrival);
            match self.take(port, &arrival) {
                Ok(Taken::Yes) => {
                    let next = segment::next(self.peer.consumed(), arrival.flags);
                    self.peer.set_consumed(next);
                }
                result => {
                    self.cannot_take(port, result);
                    return false;
                }
            }
            // A batch of smaller messages has no more than that.
            if arrival.length > PUBLISH_EVERY / BATCH {
                let published = *bytes / PUBLISH_EVERY;
                *bytes += take::payload_bytes(&arrival);
                if *bytes / PUBLISH_EVERY != published {
                    self.peer.publish_consumed();
                }
            }
            if !port.is_connected() {
                return false;
            }
            if *bytes >= PAYLOAD {
                return true;
            }
        }
        true
    }

    /// A slot was not consumed: it is taken later, or the connection ends.
    #[cold]
    fn cannot_take(&mut self, port: &Port, result: Result<Taken, Ending>) {
        match result {
            Ok(Taken::Yes | Taken::Later) => {}
            Ok(Taken::PeerLeft) => self.peer_closed(port, self.peer.closed()),
            Err(ending) => self.end(port, ending),
        }
    }

    /// Takes everything that lies in the ring.
    fn drain(&mut self, port: &Port) {
        // An honest peer has no more slots than these.
        for _ in 0..SLOTS / BATCH {
            if !port.is_connected() || self.inbound.receiver.arrival(&self.peer).is_none() {
                break;
            }
            self.receive(port, BATCH, &mut 0);
        }
        self.peer.acknowledge();
    }

    /// Whether anything but the ring needs attention.
    #[inline(always)]
    fn needs_more(&self, nic: &LoopbackNic, port: &Port) -> bool {
        let sends = port
            .posted(Queue::Send)
            .wrapping_sub(port.completed(Queue::Send));
        (sends != 0 && self.sends_need_more(nic, sends))
            || self.peer.side().closed.load(Ordering::Relaxed) != 0
            || self.sender.is_serving()
            || self.peer.is_waiting()
            || self.peer.reach() == Reach::Unknown
            || self.inbound.shared.is_asked(&self.peer)
    }

    #[cold]
    fn sends_need_more(&self, nic: &LoopbackNic, sends: u32) -> bool {
        let signalled = self.is_signalled(nic);
        self.sender.needs_attention(&self.peer, sends, signalled)
    }

    /// Whether this poll may follow a ready bit or the bell. Either stands for all acknowledgements before it, which nothing
    /// else reports.
    fn is_signalled(&self, nic: &LoopbackNic) -> bool {
        self.inbound.receiver.wants_ready_bit() || nic.shared().bell().is_wanted()
    }

    #[cold]
    fn poll_more(&mut self, nic: &LoopbackNic, port: &Port) {
        if !port.is_connected() {
            return;
        }
        if let Some(layout) = self.peer.other_layout() {
            return self.end(port, Ending::other_layout(layout, self.peer.pid()));
        }
        let call = call!(self, port);
        copy::find_reach(&self.peer);
        if self.inbound.shared.is_asked(&self.peer) {
            self.inbound.shared.help(call, &self.sender);
        }
        if let Err(ending) = self.catch_up(nic, port) {
            return self.end(port, ending);
        }
        self.pump(nic, port);
        if let Some(closed) = self.peer.closed()
            && port.is_connected()
        {
            self.drain(port);
            if port.is_connected() {
                self.peer_closed(port, Some(closed));
            }
        }
    }

    /// Serves the peer's RDMA Read, and completes what the peer has consumed.
    fn catch_up(&mut self, nic: &LoopbackNic, port: &Port) -> Result<(), Ending> {
        let call = call!(self, port);
        if self.sender.is_serving() {
            self.sender.learn_consumed(&self.peer);
            read::serve(call, &mut self.sender)?;
        }
        let brought = self.peer.reception() && self.sender.oldest_is_consumed();
        if brought {
            self.sender.reap(port)?;
        }
        // A message has brought a count, but a ready bit may stand for a later one.
        if !brought || self.sender.has_outstanding() && self.is_signalled(nic) {
            self.sender.refresh(call)?;
        }
        Ok(())
    }

    /// Ends the connection from this side.
    #[cold]
    fn end(&mut self, port: &Port, ending: Ending) {
        self.sender.halt();
        self.peer.close(ending.reason);
        self.inbound.shared.withdraw(&self.peer);
        self.peer.set_waiting(false);
        if let Some((cause, opcode)) = ending.report {
            port.fail(cause, opcode, std::ptr::null_mut());
        }
    }

    /// The peer has closed the connection, for this reason if it is known, and everything from before has been taken.
    #[cold]
    fn peer_closed(&mut self, port: &Port, reason: Option<Closed>) {
        if let Err(ending) = self.sender.refresh(call!(self, port)) {
            return self.end(port, ending);
        }
        let lost = |cause| Ending::new(Closed::LOST, cause, 0);
        let with = |code: VIP_ERROR_CODE, opcode| Ending::new(Closed::LOST, code as i32, opcode);
        if let Some(Closed::WRITE_REFUSED | Closed::READ_REFUSED) = reason {
            refusal::learned(call!(self, port));
        }
        let ending = match reason {
            Some(Closed::DISCONNECTED) => lost(VIPL_CAUSE_DISCONNECTED),
            Some(Closed::RECEIVE_FAILED) => {
                let error = vipl_rules::receive_failed(port.reliability());
                lost(self.sender.fail_oldest(port, error))
            }
            Some(Closed::TARGET_REFUSED) => {
                let cause = self.sender.fail_oldest(port, VIP_STATUS_RDMA_PROT_ERROR);
                if cause == CONN_LOST {
                    refusal::unreported(port);
                }
                lost(cause)
            }
            Some(Closed::SENDER_FAULT) => {
                lost(self.sender.fail_oldest(port, VIP_STATUS_PROTECTION_ERROR))
            }
            Some(Closed::WRITE_REFUSED) => with(
                VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT,
                VIP_STATUS_OP_REMOTE_RDMA_WRITE,
            ),
            Some(Closed::READ_REFUSED) => with(
                VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT,
                VIP_STATUS_OP_RDMA_READ,
            ),
            Some(Closed::EMPTY) => Ending::new(
                Closed::RECEIVE_FAILED,
                VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as i32,
                VIP_STATUS_OP_RECEIVE,
            ),
            _ => lost(CONN_LOST),
        };
        self.end(port, ending);
    }

    /// The agent reports that the peer has exited or closed; what lies in the ring still counts.
    pub(crate) fn peer_gone(&mut self, port: &Port, orderly: bool) {
        if !orderly {
            self.peer.set_dead();
        }
        self.drain(port);
        if !port.is_connected() {
            return;
        }
        if let Err(ending) = self.sender.refresh(call!(self, port)) {
            return self.end(port, ending);
        }
        match self.peer.closed() {
            Some(closed) => self.peer_closed(port, Some(closed)),
            None => {
                let cause = if orderly {
                    VIPL_CAUSE_DISCONNECTED
                } else {
                    CONN_LOST
                };
                self.end(port, Ending::new(Closed::LOST, cause, 0));
            }
        }
    }

    /// Asks the peer to set the ready bit of this VI, or not to.
    pub(crate) fn watch(&mut self, on: bool) {
        let reception = self.peer.reception();
        self.inbound.receiver.set_wants_ready_bit(on, reception);
        self.peer.ask_for_ready_bit(on);
    }

    /// Whether the peer uses no region that has been deregistered. With no time `left` its copy is abandoned, and the connection
    /// ends: it shall not take for data what lies there later.
    pub(crate) fn quiesced(&mut self, port: &Port, since: &mut u64, left: Duration) -> bool {
        if !self.peer.is_copying(since) || self.peer.is_abandoned(*since) {
            return true;
        }
        if left.is_zero() {
            self.peer.abandon(*since);
            self.end(port, Ending::new(Closed::LOST, CONN_LOST, 0));
        }
        false
    }
}

/// Whether a completion wakes or calls a thread. Then one poll completes all that it can.
#[inline(always)]
fn wants_signals(port: &Port) -> bool {
    port.wants_signal(Queue::Recv) | port.wants_signal(Queue::Send)
}

#[cfg(test)]
mod tests;
