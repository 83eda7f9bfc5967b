//! One VI: its connection, as the host and the device know it.

mod progress;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vipl_abi::VIP_ERROR_CODE;
use vipl_clan_proto::message::{Request, flag, op};
use vipl_clan_proto::vi::event;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::{Host, Port, Status, Vi};
use vipl_sys::wrap;

use super::ClanNic;
use crate::card::{Card, PATIENCE, SHORT};
use crate::queues::Queues;

/// In place of a round of the device: it has been asked to take back the VI's offers.
const RECALLED: u64 = u64::MAX;

/// A connection.
struct Link {
    epoch: u32,
    /// The device has taken the VI off it.
    left: bool,
    /// The host knows that it has ended.
    ended: bool,
    unreliable: bool,
    /// The peer is on another host.
    remote: bool,
    /// Events that have been reported to the application.
    reported: [u32; event::KINDS],
}

/// One VI; the connection comes and goes.
pub struct ClanVi {
    queues: Queues,
    card: Arc<Card>,
    number: u32,
    link: Option<Link>,
    /// This side fetches long messages itself when it polls.
    single_copy: bool,
    /// Number of the last connection.
    epochs: u32,
}

impl ClanVi {
    fn request(&self, op: u32) -> Request {
        Request {
            op,
            vi: self.number,
            epoch: self.epochs,
            ..Request::default()
        }
    }

    fn flags(&self, port: &Port) -> u16 {
        let options = port.options();
        let bits = [
            (port.rdma_write(), flag::RDMA_WRITE),
            (port.rdma_read(), flag::RDMA_READ),
            (
                options & VIPL_OPTION_CARRY_IMMEDIATE != 0,
                flag::CARRY_IMMEDIATE,
            ),
            (
                options & VIPL_OPTION_CHECK_DESCRIPTOR != 0,
                flag::CHECK_DESCRIPTOR,
            ),
            (
                options & VIPL_OPTION_CHECK_RECEIVE_WHOLE != 0,
                flag::CHECK_RECEIVE_WHOLE,
            ),
            (self.queues.is_inline(), flag::INLINE),
            (self.single_copy, flag::FETCHES),
        ];
        let set = bits.iter().filter(|(on, _)| *on);
        set.fold(0, |flags, (_, bit)| flags | bit)
    }

    /// Breaks the connection because of an error that only this side could find; the peer loses it.
    #[cold]
    fn break_off(&mut self) {
        let request = self.request(op::BREAK);
        if self.card.send(&request).is_ok() {
            self.leave(SHORT);
        }
        if let Some(link) = &mut self.link {
            link.ended = true;
        }
    }

    /// Sets whether a completion queue watches this VI.
    pub(super) fn watch(&self, on: bool) {
        let pages = self.queues.pages();
        pages.words().watched.store(u32::from(on), Ordering::SeqCst);
        if on {
            // Completions before that have not set the ready bit.
            self.card.nic().ready.set(self.number);
        }
    }

    /// Takes the VI off its connection in the device. If the device does not confirm that in time, the end of the
    /// connection on this side asks again.
    fn leave(&mut self, time: Duration) {
        if let Some(link) = &mut self.link
            && !link.left
        {
            link.left = self.card.detach(self.number, time);
        }
    }
}

impl Vi for ClanVi {
    type Nic = ClanNic;

    fn new(nic: &ClanNic, port: &Port) -> Result<Self, Status> {
        let number = port.index();
        let memory = nic.card.create(number)?;
        Ok(ClanVi {
            queues: Queues::new(memory, nic.inline_max),
            card: nic.card.clone(),
            number,
            link: None,
            single_copy: nic.single_copy,
            epochs: wrap::start(0),
        })
    }

    fn attach(
        &mut self,
        nic: &ClanNic,
        port: &Port,
        connection: &vipl_connection,
    ) -> Result<(), Status> {
        let remote = connection.remote != 0;
        nic.words.include(port.index());
        self.epochs = self.epochs.wrapping_add(1).max(1);
        self.queues.begin(port);
        // One of an earlier connection that was not asked for.
        let _ = self.queues.pages().words().refused.take();
        let (sends, receives) = self.queues.rung();
        let mut request = Request {
            key: connection.key,
            side: connection.side,
            max_transfer: port.max_transfer(),
            ptag: port.ptag(),
            sends,
            receives,
            reliability: port.reliability(),
            flags: self.flags(port),
            read_levels: nic.read_levels,
            segments_max: port.segments_max() as u16,
            ..self.request(op::ATTACH)
        };
        if remote {
            request.mtu = nic.mtu;
            request.peer_vi = connection.peer_vi;
            request.endpoint = connection.remote_endpoint;
            request
                .address
                .copy_from_slice(&connection.remote_address[..6]);
        }
        let pages = self.queues.pages();
        self.link = Some(Link {
            epoch: self.epochs,
            left: false,
            ended: false,
            unreliable: !port.is_reliable(),
            remote,
            reported: std::array::from_fn(|kind| {
                pages.words().events[kind].load(Ordering::Acquire)
            }),
        });
        // Before the device knows of the connection: a message of the peer may follow at once.
        self.queues.ring_receives(port);
        self.card.send(&request).map_err(|error| {
            let text = format!("clan: cannot tell the device of a connection: {error}");
            Host::get().log(VIPL_LOG_ERROR, &text);
            self.link = None;
            Status::Resource
        })
    }

    fn detach(&mut self, _nic: &ClanNic, port: &Port) {
        self.leave(PATIENCE);
        if self.link.as_ref().is_some_and(|link| !link.left) {
            let text = "clan: the device has not confirmed the end of a connection";
            Host::get().log(VIPL_LOG_WARN, text);
        }
        if port.is_connected() {
            // Descriptors that the device has completed meanwhile are complete, not flushed.
            self.take_all(port);
        }
        self.link = None;
    }

    fn peer_gone(&mut self, _nic: &ClanNic, port: &Port, orderly: bool) {
        let Some(link) = &self.link else { return };
        if link.remote && !link.left {
            // Only the device can interpret the peer's last frames.
            let flags = if orderly { flag::ORDERLY } else { 0 };
            let request = self.request(op::PEER_GONE);
            self.card.peer_gone(Request { flags, ..request });
        } else {
            self.leave(SHORT);
        }
        self.poll(port);
        // The device ends the connection after the peer's last frames, or after a timeout.
        let device_does = orderly && self.link.as_ref().is_some_and(|link| link.remote);
        if port.is_connected() && !device_does {
            self.leave(SHORT);
            let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as i32;
            let cause = if orderly {
                VIPL_CAUSE_DISCONNECTED
            } else {
                lost
            };
            self.end(port, cause, 0);
        }
    }

    #[inline(always)]
    fn post_send(&mut self, _nic: &ClanNic, port: &Port) {
        if self.link.is_some() {
            self.queues.ring_sends(port);
            self.card.kick();
        }
    }

    #[inline(always)]
    fn post_recv(&mut self, _nic: &ClanNic, port: &Port) {
        if self.link.is_some() {
            // No kick: the device reads the doorbell when a message needs it.
            self.queues.ring_receives(port);
        }
    }

    #[inline(always)]
    fn progress(&mut self, _nic: &ClanNic, port: &Port) {
        self.poll(port);
    }

    fn quiesced(&mut self, _port: &Port, since: &mut u64, left: Duration) -> bool {
        let Some(link) = self.link.as_ref().filter(|link| !link.left) else {
            return true;
        };
        let remote = link.remote;
        let is_over = if *since != RECALLED && self.card.is_in_round(since) {
            false
        } else if remote || self.queues.done().0 == self.queues.rung().0 {
            true
        } else {
            // A peer on this host may be fetching from the region.
            *since = RECALLED;
            !left.is_zero() && self.card.recall(self.number, left)
        };
        if !is_over && left.is_zero() {
            // The peer must not take later contents of the memory for data.
            let _ = self.card.send(&self.request(op::BREAK));
        }
        is_over
    }
}

impl Drop for ClanVi {
    fn drop(&mut self) {
        // A device that has exited has no VI to destroy.
        let _ = self.card.send(&self.request(op::DESTROY));
    }
}
