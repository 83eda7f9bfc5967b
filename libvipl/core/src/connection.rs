//! Connections: both models, disconnecting, and the loss of a partner (spec §3.8 to §3.15, §9).
//!
//! The agent decides; this module keeps the VI's state in step with what it decided. An attempt belongs
//! to a VI as long as `Vi::attempt` names its call: a VipDisconnect in between takes it away, and
//! whatever the agent says afterwards is undone.

use std::ffi::c_int;

use kagent_proto::*;
use vipl_abi::*;
use vipl_plugin_abi::VIPL_CAUSE_DISCONNECTED;

use crate::address::Address;
use crate::agent::{GONE, Link};
use crate::error::Error;
use crate::nic::Nic;
use crate::vi::{self, CONNECTED, ERROR, IDLE, Vi};
use crate::{process, queue};

mod again;
mod attempt;
mod client;
mod server;

pub(crate) use attempt::{Attempt, PeerAttempt};
pub use client::{peer_done, peer_request, peer_wait, request};
pub use server::{Arrived, accept, reject, wait};
pub(crate) use server::{forget_incoming, owner};

/// The attributes as the program sees those of a partner; a partner's tag means nothing here.
fn to_program(attributes: &Attributes) -> VIP_VI_ATTRIBUTES {
    VIP_VI_ATTRIBUTES {
        ReliabilityLevel: attributes.reliability,
        MaxTransferSize: attributes.max_transfer_size as VIP_ULONG,
        QoS: std::ptr::null_mut(),
        Ptag: std::ptr::null_mut(),
        EnableRdmaWrite: VIP_BOOLEAN::from(attributes.rdma_write != 0),
        EnableRdmaRead: VIP_BOOLEAN::from(attributes.rdma_read != 0),
    }
}

fn to_error(status: Status) -> Error {
    match status {
        Status::TIMEOUT | Status::CANCELLED | GONE => Error::Timeout,
        Status::REJECTED => Error::Reject,
        Status::NO_MATCH => Error::NoMatch,
        Status::NOT_REACHABLE => Error::NotReachable,
        Status::CONFLICT_RELIABILITY => Error::ReliabilityLevel,
        Status::CONFLICT_MTU => Error::Mtu,
        Status::CONFLICT_QOS => Error::Qos,
        Status::INVALID => Error::InvalidParameter,
        _ => Error::Resource,
    }
}

fn check_discriminator(nic: &Nic, address: &Address) -> Result<(), Error> {
    if address.0.discriminator_len > nic.info.discriminator_max {
        log::warn!(
            target: "cm",
            "a discriminator has {} bytes, the device takes {} at most (MaxDiscriminatorLen)",
            address.0.discriminator_len, nic.info.discriminator_max
        );
        return Err(Error::InvalidParameter);
    }
    Ok(())
}

/// VipDisconnect.
pub fn disconnect(handle: VIP_VI_HANDLE) -> Result<(), Error> {
    let mut vi = vi::lock(handle)?;
    let attempt = vi.attempt.take();
    if let Some(peer) = vi.peer.take() {
        peer.complete(Err(Error::Timeout));
    }
    let connection = detach(&mut vi);
    if vi.abi.state != IDLE {
        let before = vi::state_name(vi.abi.state);
        log::debug!(target: "vi", "VI {handle:?}: {before} -> Idle (VipDisconnect)");
    }
    vi.abi.state = IDLE;
    vi.epoch += 1;
    queue::flush(&mut vi);
    let nic = vi.nic.clone();
    drop(vi);
    nic.events.forget_breaks(handle);
    if let Some(call) = attempt {
        match nic.registration.here() {
            Some((agent, _)) => drop(agent.call(Op::CANCEL, &Cancel { call }, &[])),
            None => again::forget_unanswered(),
        }
    }
    if let Some(link) = connection {
        process::get().agents.connections.disconnect(link);
    }
    Ok(())
}

/// Takes the VI off its connection.
fn detach(vi: &mut Vi) -> Option<Link> {
    let connection = vi.connection.take()?;
    // What the partner has acknowledged is complete, not flushed (COMPAT-08).
    vi.progress();
    if let Some(detach) = vi.nic.ops.detach {
        // SAFETY: attached and locked.
        unsafe { detach(&raw mut vi.abi) };
    }
    Some(connection)
}

impl Vi {
    /// Tells the plug-in whether somebody looks at the NIC rather than at this VI.
    pub(crate) fn set_watch(&mut self) {
        let on = self.recv.cq.is_some()
            || self.send.cq.is_some()
            || self.send.notifications() + self.recv.notifications() > 0;
        if let (Some(watch), true) = (self.nic.ops.watch, self.is_attached()) {
            // SAFETY: attached and locked.
            unsafe { watch(&raw mut self.abi, c_int::from(on)) };
        }
    }

    /// The agent says that the partner has gone.
    pub(crate) fn partner_gone(&mut self, link: Link, orderly: bool) {
        if self.connection != Some(link) || self.abi.state != CONNECTED {
            return;
        }
        log::debug!(
            target: "cm",
            "VI {:?}: the partner has {}", self.handle, if orderly { "disconnected" } else { "gone" }
        );
        if let Some(partner_gone) = self.nic.ops.partner_gone {
            // SAFETY: attached and locked.
            unsafe { partner_gone(&raw mut self.abi, c_int::from(orderly)) };
        }
        // What a partner on another host sent last may still be on its way: then the plug-in fails the VI later.
        if self.abi.state != ERROR && !(orderly && self.remote) {
            let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as i32;
            let cause = if orderly {
                VIPL_CAUSE_DISCONNECTED
            } else {
                lost
            };
            self.fail(cause, 0, std::ptr::null_mut());
        }
    }
}
