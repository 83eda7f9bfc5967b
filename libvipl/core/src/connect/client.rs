//! The requesting side: VipConnectRequest, and both sides of the peer-to-peer model (spec §3.11, §3.13 to
//! §3.15).

use std::sync::Arc;
use vipl_sys::clock::Instant;

use kagent_proto::*;
use vipl_abi::*;
use vipl_pages::record::Happened;

use super::attempt::{Again, begin, cancel_if_unwanted, outcome, withdraw};
use super::convert::{check_discriminator, to_program};
use super::disconnect::disconnect;
use crate::agent::{Agent, limit};
use crate::clock;
use crate::connect::address::Address;
use crate::error::Error;
use crate::logger::{self, log_failure};
use crate::object::table::Guard;
use crate::text::{discriminator, hexadecimal};
use crate::vi::state::IDLE;
use crate::vi::{self, Pending, Vi};
use crate::waiting::{Begun, Wait, is_over, slice_end};

/// Sends VipConnectRequest or VipConnectPeerRequest to the agent.
fn start(
    handle: VIP_VI_HANDLE,
    local: &Address,
    remote: &Address,
    timeout: VIP_ULONG,
    op: Op,
) -> Result<Pending, Error> {
    let deadline = clock::deadline(timeout);
    loop {
        let nic = vi::lock(handle)?.nic.clone();
        check_discriminator(&nic, local)?;
        check_discriminator(&nic, remote)?;
        if timeout == 0 || remote.0.host_len != nic.info.address_len {
            log::warn!(
                target: "cm",
                "cannot request a connection: Timeout is {timeout}, the remote host address has {} bytes; expected a Timeout above 0 and {} bytes (NicAddressLen)",
                remote.0.host_len, nic.info.address_len
            );
            return Err(Error::InvalidParameter);
        }
        // Called before the VI is locked, since it may wait for a thread that locks VIs.
        let here = nic.registration.here();
        let vi = vi::lock(handle)?;
        if vi.abi.state != IDLE {
            return Err(Error::State);
        }
        if nic.has_failed() {
            return Err(Error::Resource);
        }
        if let Some(place) = here {
            return start_at(vi, place, (local, remote), (timeout, deadline), op);
        }
        drop(vi);
        nic.agents().place_until(&nic.registration, deadline)?;
    }
}

/// Sends the request to this agent.
fn start_at(
    mut vi: Guard<Vi>,
    (agent, nic_name): (Arc<Agent>, u64),
    (local, remote): (&Address, &Address),
    (timeout, deadline): (VIP_ULONG, Option<Instant>),
    op: Op,
) -> Result<Pending, Error> {
    let nic = vi.nic.clone();
    let call = Agent::next_id();
    let body = Request {
        nic: nic_name,
        vi: u64::from(vi.abi.index),
        timeout_ms: clock::timeout_ms(timeout),
        grace_ms: nic.process.settings.connect_grace_ms(),
        segment_bytes: nic.info.segment_bytes,
        reserved: 0,
        attributes: vi.wire_attributes(),
        local: Point::new(nic.address(), local.0.discriminator()).ok_or(Error::InvalidParameter)?,
        remote: remote.0,
    };
    log::debug!(
        target: "cm",
        "VI {handle:?}: requests a connection with {} {}, timeout {} ms",
        nic.registration.host_text(remote.0.host()),
        discriminator(remote.0.discriminator()),
        body.timeout_ms,
        handle = vi.handle
    );
    vi.publish_points(&body.local, &body.remote);
    vi.happened(Happened::Requested);
    let mut attempt = begin(&mut vi, call, deadline);
    attempt.again = Some(Box::new(Again {
        op,
        body,
        registration: nic.registration.clone(),
    }));
    let pending = attempt.pending.clone();
    vi.peer = (op == Op::PEER).then(|| pending.clone());
    let (slot, name) = (vi.slot(), vi.name());
    drop(vi);
    attempt.send(&agent, op, &body);
    cancel_if_unwanted(slot, name, &agent, call);
    Ok(pending)
}

/// A thread that waits for the end of an attempt.
pub struct Attempting {
    handle: VIP_VI_HANDLE,
    pending: Pending,
    /// The server requested by a client; a peer-to-peer attempt continues without the thread.
    server: Option<Address>,
    over: bool,
}

/// VipConnectRequest.
pub fn request(
    handle: VIP_VI_HANDLE,
    local: &Address,
    remote: &Address,
    timeout: VIP_ULONG,
) -> Result<Begun<Attempting>, Error> {
    Ok(Begun::Waits(Attempting {
        handle,
        pending: start(handle, local, remote, timeout, Op::REQUEST)?,
        server: Some(*remote),
        over: false,
    }))
}

impl Wait for Attempting {
    type Found = Result<VIP_VI_ATTRIBUTES, Error>;

    fn slice(&mut self) -> Option<Self::Found> {
        let limit = limit(self.pending.deadline);
        let result = match self.pending.result.wait_until(slice_end(limit)) {
            Ok(Some(result)) => Ok(result),
            Ok(None) if !is_over(limit) => return None,
            Ok(None) => outcome(self.handle, &self.pending, limit),
            Err(error) => Err(error),
        };
        self.over = true;
        Some(result.and_then(|result| {
            match &self.server {
                Some(server) => result
                    .inspect_err(|error| {
                        // A Timeout before the deadline is VipDisconnect's, by which the program itself has ended the attempt.
                        if *error != Error::Timeout || is_over(self.pending.deadline) {
                            log_failed(self.handle, *error, server);
                        }
                    })
                    .map(|attributes| to_program(&attributes)),
                None => {
                    forget_peer(self.handle, &self.pending);
                    ended(result)
                }
            }
        }))
    }
}

impl Drop for Attempting {
    /// If the thread of a client ends, its attempt ends, or the connection just established.
    fn drop(&mut self) {
        if self.over || self.server.is_none() {
            return;
        }
        withdraw(self.handle, &self.pending, false);
        if let Ok(Ok(_)) = self.pending.result.wait() {
            let _ = disconnect(self.handle);
        }
    }
}

/// Logs why there is no connection, unless the agent's reason was logged (`agent::log_no_server`).
#[cold]
fn log_failed(handle: VIP_VI_HANDLE, error: Error, remote: &Address) {
    let why = match error {
        // The agent's thread has logged its findings about that host.
        Error::Timeout if logger::has_warned_recently() => return,
        Error::Timeout => {
            "no answer in time: the server does not call VipConnectAccept, or its host does not answer"
        }
        Error::Reject => {
            "the server has not accepted it: it called VipConnectReject, which servers also do if reliability level or MaxTransferSize of its VI differ, or it has exited"
        }
        Error::ReliabilityLevel | Error::Mtu => {
            "reliability level and MaxTransferSize must be equal on both sides"
        }
        _ => return,
    };
    let host = vi::lock(handle).map_or_else(
        |_| hexadecimal(remote.0.host()),
        |vi| vi.nic.registration.host_text(remote.0.host()),
    );
    log_failure!(
        "cm",
        (why, handle.addr()),
        "no connection to {} {}: {why}",
        host,
        discriminator(remote.0.discriminator())
    );
}

/// VipConnectPeerRequest.
pub fn peer_request(
    handle: VIP_VI_HANDLE,
    local: &Address,
    remote: &Address,
    timeout: VIP_ULONG,
) -> Result<(), Error> {
    start(handle, local, remote, timeout, Op::PEER).map(drop)
}

/// Converts the result of a peer-to-peer attempt.
fn ended(result: Result<Attributes, Error>) -> Result<VIP_VI_ATTRIBUTES, Error> {
    let attributes = result.inspect_err(|error| {
        log_failure!(
            "cm",
            error.to_string(),
            "no peer-to-peer connection: {error}"
        );
    })?;
    Ok(to_program(&attributes))
}

/// VipConnectPeerDone.
pub fn peer_done(handle: VIP_VI_HANDLE) -> Result<VIP_VI_ATTRIBUTES, Error> {
    let pending = vi::lock(handle)?.peer.clone().ok_or(Error::State)?;
    if limit(pending.deadline).is_some_and(|limit| limit <= Instant::now()) {
        withdraw(handle, &pending, true);
    }
    let result = pending.result.try_take()?.ok_or(Error::NotDone)?;
    forget_peer(handle, &pending);
    ended(result)
}

/// VipConnectPeerWait.
pub fn peer_wait(handle: VIP_VI_HANDLE) -> Result<Begun<Attempting>, Error> {
    let pending = vi::lock(handle)?.peer.clone().ok_or(Error::State)?;
    Ok(Begun::Waits(Attempting {
        handle,
        pending,
        server: None,
        over: false,
    }))
}

/// Removes a peer request whose result has been taken.
fn forget_peer(handle: VIP_VI_HANDLE, pending: &Pending) {
    if let Ok(mut vi) = vi::lock(handle) {
        vi.peer.take_if(|peer| peer.is(pending));
    }
}
