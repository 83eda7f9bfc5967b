//! One attempt to connect one VI, from the call to the agent's decision, and attaching the VI to its
//! connection.
//!
//! An attempt of a client or a peer outlives its agent: it is repeated at the next one for the rest of its
//! timeout, so that the application sees one call.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use vipl_sys::clock::Instant;

use kagent_proto::*;
use vipl_abi::VIP_VI_HANDLE;
use vipl_pages::record::Happened;
use vipl_plugin_abi::{VIPL_OK, vipl_connection};
use zerocopy::{Immutable, IntoBytes};

use super::convert::to_error;
use super::disconnect::{detach, peer_gone};
use crate::agent::{
    Agent, Agents, GONE, Live, NicRegistration, Owner, Reply, Side, Ticket, Unanswered,
    log_discriminator_taken, log_no_server, log_unanswered,
};
use crate::clock::remaining_ms;
use crate::error::Error;
use crate::object::table::{Guard, Name, Slot};
use crate::text::hexadecimal;
use crate::vi::state::{self, CONNECTED, IDLE, PENDING};
use crate::vi::{self, Pending, Vi, Which, complete};

/// Minimum grace period for a server at the next agent, in milliseconds: the server's process changes to that
/// agent at about the same time, perhaps later.
const GRACE_MS: u64 = 10_000;

/// The request that is repeated at the next agent.
pub(super) struct Again {
    pub(super) op: Op,
    pub(super) body: Request,
    pub(super) registration: Arc<NicRegistration>,
}

/// An attempt to connect one VI.
pub(super) struct Attempt {
    slot: &'static Slot<Vi>,
    name: Name,
    agents: &'static Agents,
    pub(super) pending: Pending,
    /// The request to repeat at the next agent if this one exits; `None` for VipConnectAccept, whose client
    /// repeats.
    pub(super) again: Option<Box<Again>>,
    /// Set while the VI is attached to a peer on another host that has not confirmed yet.
    confirming: Option<Confirming>,
}

/// A connection that may still fail.
struct Confirming {
    /// The agent's identifier of it.
    connection: u64,
    side: Side,
    attributes: Attributes,
}

/// Begins an attempt: the VI becomes Connect Pending.
pub(super) fn begin(vi: &mut Guard<Vi>, call: u64, deadline: Option<Instant>) -> Attempt {
    log::debug!(target: "vi", "VI {:?}: Idle -> Connect Pending", vi.handle);
    let pending = Pending {
        call,
        result: Ticket::new(),
        deadline,
    };
    vi.set_state(PENDING);
    vi.attempt = Some(pending.clone());
    Attempt {
        slot: vi.slot(),
        name: vi.name(),
        agents: vi.nic.agents(),
        pending,
        again: None,
        confirming: None,
    }
}

impl Attempt {
    /// Sends it to an agent.
    pub(super) fn send<B>(self, agent: &Arc<Agent>, op: Op, body: &B)
    where
        B: IntoBytes + Immutable,
    {
        agent.start(self.pending.call, op, body, &[], |agent, reply| {
            self.finish(agent, reply)
        });
    }

    /// Processes the agent's decision. Runs on the thread that reads the agent's messages.
    fn finish(mut self, agent: &Arc<Agent>, reply: Reply) {
        if let Some(confirming) = self.confirming.take() {
            return self.finish_confirming(agent, &confirming, reply.status);
        }
        if reply.status == GONE && self.again.is_some() {
            return self.agents.ask_later(Box::new(self));
        }
        let connected: Option<Connected> =
            (reply.op == Op::CONNECTED).then(|| reply.body()).flatten();
        let mut vi = self.slot.lock(self.name);
        let ours = vi.as_ref().is_some_and(|vi| self.is_of(vi));
        let result = match (&mut vi, connected) {
            (Some(vi), Some(connected)) if ours => {
                vi.attempt = None;
                let attached = attach(vi, agent, &connected, &reply);
                if attached.is_ok() && connected.remote != 0 {
                    // Its caller can still withdraw it.
                    self.pending.call = Agent::next_id();
                    vi.attempt = Some(self.pending.clone());
                }
                attached
            }
            (_, Some(connected)) => {
                agent.disconnect(connected.connection);
                Err(Error::Timeout)
            }
            (_, None) => {
                self.log_reason(&reply);
                Err(to_error(reply.status))
            }
        };
        if let (Some(vi), true, Err(_)) = (&mut vi, ours, &result) {
            vi.attempt = None;
            vi.set_state(IDLE);
            vi.happened(Happened::NotConnected(reply.status.0));
            log::debug!(target: "vi", "VI {:?}: Connect Pending -> Idle (no connection)", vi.handle);
        }
        // Descriptors are closed before the application learns of the result: it may then close all
        // descriptors and reuse their numbers.
        drop(reply);
        drop(vi);
        match (result, connected) {
            (Ok(attributes), Some(connected)) if connected.remote != 0 => {
                self.confirm(agent, &connected, attributes);
            }
            (result, _) => self.pending.result.complete(result),
        }
    }

    /// Logs the agent's reason for a refusal.
    fn log_reason(&self, reply: &Reply) {
        let waited = reply.body::<Waited>();
        let detail = waited.map(|waited| waited.detail);
        if let (Some(detail), Some(again)) = (detail.or_else(|| reply.body()), &self.again) {
            log_discriminator_taken(&detail, &again.body.local);
            let host = again.registration.host_text(again.body.remote.host());
            let early = again.body.grace_ms == 0;
            let waited = waited.as_ref();
            log_no_server(
                reply.status,
                &detail,
                waited,
                &again.body.remote,
                &host,
                early,
            );
            log_unanswered(&detail, &again.body.remote);
        }
    }

    /// Confirms to the agent that the VI is attached, for a peer on another host. Both sides do so before
    /// either application learns of the connection, so that no message arrives at a VI that is not attached.
    fn confirm(self, agent: &Arc<Agent>, connected: &Connected, attributes: Attributes) {
        let connection = connected.connection;
        let attempt = Attempt {
            again: None,
            confirming: Some(Confirming {
                connection,
                side: side_of(connected),
                attributes,
            }),
            ..self
        };
        attempt.send(agent, Op::CONFIRM, &ConnectionRef { connection });
    }

    /// The peer has confirmed, or the connection has failed, in which case receives stay posted.
    fn finish_confirming(self, agent: &Agent, confirming: &Confirming, status: Status) {
        let mut vi = self.slot.lock(self.name);
        if let Some(vi) = &mut vi
            && self.is_of(vi)
        {
            vi.attempt = None;
        }
        let result = if status == Status::OK {
            Ok(confirming.attributes)
        } else {
            agent.forget(confirming.connection);
            self.agents.connections.forget(confirming.side);
            if let Some(vi) = &mut vi
                && vi.connection == Some(confirming.side)
            {
                detach(vi);
                log::debug!(target: "vi", "VI {:?}: Connected -> Idle (not confirmed by the peer)", vi.handle);
                vi.set_state(IDLE);
                vi.happened(Happened::NotConnected(0));
                vi.epoch += 1;
                complete::flush(vi, Which::Send);
            }
            Err(to_error(status))
        };
        drop(vi);
        self.pending.result.complete(result);
    }

    /// Whether the VI still waits for this attempt.
    fn is_of(&self, vi: &Vi) -> bool {
        let attempt = vi.attempt.as_ref();
        attempt.is_some_and(|attempt| attempt.call == self.pending.call)
    }

    fn is_wanted(&self) -> bool {
        let vi = self.slot.lock(self.name);
        vi.is_some_and(|vi| self.is_of(&vi))
    }

    /// Ends the attempt without a connection.
    fn fail(self, error: Error) {
        if let Some(mut vi) = self.slot.lock(self.name)
            && self.is_of(&vi)
        {
            vi.attempt = None;
            vi.set_state(IDLE);
        }
        self.pending.result.complete(Err(error));
    }
}

impl Unanswered for Attempt {
    fn is_over(&self) -> bool {
        remaining_ms(self.pending.deadline) == 0 || !self.is_wanted()
    }

    fn give_up(self: Box<Self>) {
        self.fail(Error::Timeout);
    }

    fn ask_again(mut self: Box<Self>, agent: &Arc<Agent>) {
        if self.is_over() {
            return self.give_up();
        }
        let Some(again) = &mut self.again else {
            return self.give_up();
        };
        let Some(nic) = again.registration.name_at(agent) else {
            return self.fail(Error::Resource);
        };
        again.body.nic = nic;
        again.body.timeout_ms = remaining_ms(self.pending.deadline).max(1);
        again.body.grace_ms = again.body.grace_ms.max(GRACE_MS);
        let (op, body) = (again.op, again.body);
        let call = Agent::next_id();
        match self.slot.lock(self.name) {
            Some(mut vi) if self.is_of(&vi) => {
                self.pending.call = call;
                vi.attempt = Some(self.pending.clone());
            }
            _ => return self.give_up(),
        }
        let (slot, name) = (self.slot, self.name);
        self.send(agent, op, &body);
        cancel_if_unwanted(slot, name, agent, call);
    }
}

/// Cancels the call again if a VipDisconnect has cancelled it before the agent knew it.
pub(super) fn cancel_if_unwanted(
    slot: &'static Slot<Vi>,
    name: Name,
    agent: &Arc<Agent>,
    call: u64,
) {
    let wanted = slot.lock(name).is_some_and(|vi| {
        let attempt = vi.attempt.as_ref();
        attempt.is_some_and(|attempt| attempt.call == call)
    });
    if !wanted {
        agent.notify(Op::CANCEL, &Cancel { call });
    }
}

/// The result of an attempt, until a limit, if any. Then the attempt ends without one: a connection
/// established later is disconnected.
pub(super) fn outcome(
    handle: VIP_VI_HANDLE,
    pending: &Pending,
    limit: Option<Instant>,
) -> Result<Result<Attributes, Error>, Error> {
    if let Some(result) = pending.result.wait_at_most(limit)? {
        return Ok(result);
    }
    withdraw(handle, pending, true);
    pending.result.wait()
}

/// Ends an attempt whose caller returns without its result, unless the result is about to arrive. `late`:
/// because its deadline has passed.
pub(super) fn withdraw(handle: VIP_VI_HANDLE, pending: &Pending, late: bool) {
    let Ok(mut vi) = vi::lock(handle) else {
        return pending.result.complete(Err(Error::Timeout));
    };
    let Some(attempt) = vi.attempt.take_if(|attempt| attempt.is(pending)) else {
        return;
    };
    let before = state::name(vi.abi.state);
    let why = if late {
        "the time of the call is over"
    } else {
        "the calling thread is cancelled"
    };
    log::debug!(target: "vi", "VI {handle:?}: {before} -> Idle ({why})");
    let connection = detach(&mut vi);
    vi.set_state(IDLE);
    vi.epoch += 1;
    complete::flush(&mut vi, Which::Send);
    let nic = vi.nic.clone();
    drop(vi);
    match nic.registration.here() {
        Some((agent, _)) => {
            if late {
                agent.log_late();
            }
            agent.take_back(attempt.call);
        }
        None => nic.agents().wake_keeper(),
    }
    if let Some(side) = connection {
        nic.agents().connections.disconnect(side);
    }
    pending.result.complete(Err(Error::Timeout));
}

fn side_of(connected: &Connected) -> Side {
    Side {
        key: connected.key,
        side: connected.side,
    }
}

/// The description of a VI's peer in log lines.
fn peer_name(connected: &Connected) -> String {
    if connected.remote == 0 {
        return format!("VI {} of process {}", connected.peer_vi, connected.peer_pid);
    }
    let length = usize::from(connected.remote_host_len).min(connected.remote_host.len());
    format!(
        "a VI of the host {}",
        hexadecimal(&connected.remote_host[..length])
    )
}

/// Attaches the VI to its connection.
fn attach(
    vi: &mut Guard<Vi>,
    agent: &Arc<Agent>,
    connected: &Connected,
    reply: &Reply,
) -> Result<Attributes, Error> {
    let fd = |place: usize| {
        reply
            .fds
            .get(place)
            .map_or(-1, |fd| fd.as_raw_fd() as c_int)
    };
    let description = vipl_connection {
        size: size_of::<vipl_connection>(),
        id: agent.unique(connected.connection),
        key: connected.key,
        side: connected.side,
        peer_pid: connected.peer_pid,
        peer_nic: agent.unique(connected.peer_nic),
        peer_vi: connected.peer_vi as u32,
        segment_fd: fd(0),
        segment_bytes: connected.segment_bytes,
        peer_fds: [fd(1), fd(2)],
        peer_rdma_write: connected.attributes.rdma_write,
        peer_rdma_read: connected.attributes.rdma_read,
        reserved: [0; 2],
        remote: connected.remote,
        remote_endpoint: connected.remote_endpoint,
        remote_address_len: connected.remote_host_len,
        remote_address: connected.remote_host,
        data_address_len: connected.data_address.length,
        data_address: connected.data_address.bytes,
        sealed: connected.sealed,
        seal: connected.seal,
    };
    if vi.nic.has_failed() {
        agent.disconnect(connected.connection);
        return Err(Error::Resource);
    }
    if connected.remote == 0 && reply.fds.is_empty() {
        // The reading thread has logged the reason.
        agent.disconnect(connected.connection);
        return Err(Error::Resource);
    }
    // The descriptors stay open during the call.
    let status = vi.attach(&description);
    if status != VIPL_OK {
        // The plug-in logs the reason. The plug-in has logged the reason.
        log::info!(target: "cm", "the plug-in cannot use the connection (status {status})");
        agent.disconnect(connected.connection);
        return Err(Error::Resource);
    }
    let side = side_of(connected);
    vi.connection = Some(side);
    vi.remote = connected.remote != 0;
    vi.epoch += 1;
    vi.set_state(CONNECTED);
    vi.publish_peer(connected);
    if log::log_enabled!(target: "vi", log::Level::Debug) {
        log::debug!(target: "vi", "VI {:?}: Connect Pending -> Connected with {}", vi.handle, peer_name(connected));
    }
    vi.set_watch();
    let name = connected.connection;
    let owner = Owner {
        side,
        vi: vi.handle.addr(),
        peer_gone,
    };
    agent.connected(name, owner);
    let live = Live {
        owner,
        vi: vi.abi.index,
        attributes: vi.wire_attributes(),
        registration: vi.nic.registration.clone(),
        at: Some((agent.clone(), name)),
        no_handover: connected.remote != 0,
    };
    vi.nic.agents().connections.insert(side, live);
    // The peer may already have sent.
    vi.progress();
    Ok(connected.attributes)
}
