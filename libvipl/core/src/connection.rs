//! Connections: both models, disconnecting, and the loss of a partner (spec §3.8 to §3.15, §9).
//!
//! The agent decides; this module keeps the VI's state in step with what it decided. An attempt belongs
//! to a VI as long as `Vi::attempt` names its call: a VipDisconnect in between takes it away, and
//! whatever the agent says afterwards is undone.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kagent_proto::*;
use vipl_abi::*;
use vipl_plugin_abi::{VIPL_CAUSE_DISCONNECTED, VIPL_OK, vipl_connection};

use crate::address::Address;
use crate::agent::{Agent, GONE, Link, Live, Reply, Ticket};
use crate::error::Error;
use crate::handle::Kind;
use crate::nic::Nic;
use crate::table::{Guard, Slot, Table};
use crate::vi::{self, CONNECTED, ERROR, IDLE, PENDING, Vi};
use crate::{clock, process, queue};

mod again;

use again::{Again, forget_unanswered, left_ms};

static INCOMING: Table<Unanswered> = Table::new(Kind::Connection);

/// A received, not yet answered request.
struct Unanswered {
    nic: Arc<Nic>,
    /// Which agent knows it, and its name there.
    agent: Arc<Agent>,
    connection: u64,
    attributes: Attributes,
    /// A thread is inside VipConnectAccept with it.
    busy: bool,
}

/// What VipConnectWait gives.
pub struct Arrived {
    /// The requester's address.
    pub remote: Address,
    /// The requester's VI.
    pub attributes: VIP_VI_ATTRIBUTES,
    /// The handle.
    pub handle: VIP_CONN_HANDLE,
}

/// An attempt to connect one VI.
pub(crate) struct Attempt {
    slot: &'static Slot<Vi>,
    generation: u32,
    call: u64,
    result: Arc<PeerAttempt>,
    /// What the next agent is asked if this one goes; nothing for VipConnectAccept, whose client asks.
    again: Option<Box<Again>>,
    /// The VI is attached to a partner on another host, who has not confirmed yet.
    confirming: Option<Confirming>,
}

/// A connection that may still come to nothing.
struct Confirming {
    /// The agent's name for it.
    connection: u64,
    link: Link,
    attributes: Attributes,
}

/// Where the result of an attempt goes.
pub(crate) type PeerAttempt = Ticket<Result<Attributes, Error>>;

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
        return Err(Error::InvalidParameter);
    }
    Ok(())
}

/// VipConnectWait.
pub fn wait(nic: &Arc<Nic>, local: &Address, timeout: VIP_ULONG) -> Result<Arrived, Error> {
    check_discriminator(nic, local)?;
    let local = Point::new(&[], local.0.discriminator()).ok_or(Error::InvalidParameter)?;
    let (agent, reply) = ask_to_wait(nic, local, timeout)?;
    if reply.op != Op::INCOMING {
        // A wait is cancelled by VipCloseNic only.
        return Err(match reply.status {
            Status::CANCELLED | Status::INVALID => Error::InvalidParameter,
            status => to_error(status),
        });
    }
    let incoming: Incoming = reply.body().ok_or(Error::Resource)?;
    let request = Unanswered {
        nic: nic.clone(),
        agent,
        connection: incoming.connection,
        attributes: incoming.attributes,
        busy: false,
    };
    let handle = {
        let mut unanswered = nic.incoming.lock();
        if nic.closing.load(Ordering::Acquire) {
            return Err(Error::InvalidParameter);
        }
        let handle = INCOMING
            .insert(&process::get().connections, |_| request)
            .ok_or(Error::Resource)?;
        unanswered.push(handle.addr());
        handle
    };
    Ok(Arrived {
        remote: Address(incoming.remote),
        attributes: to_program(&incoming.attributes),
        handle,
    })
}

/// Waits at one agent after the other: it is one call for the program, however many agents go meanwhile.
fn ask_to_wait(nic: &Nic, local: Point, timeout: VIP_ULONG) -> Result<(Arc<Agent>, Reply), Error> {
    let deadline = clock::deadline(timeout);
    let mut timeout_ms = clock::timeout_ms(timeout);
    let mut place = nic.registration.place()?;
    loop {
        let (agent, nic_name) = place;
        let body = Wait {
            nic: nic_name,
            timeout_ms,
            local,
            reserved: 0,
        };
        let reply = agent.call(Op::WAIT, &body, &[]);
        if reply.status != GONE {
            return Ok((agent, reply));
        }
        place = loop {
            match nic.registration.place() {
                Ok(place) => break place,
                Err(error) if error != Error::Resource => return Err(error),
                Err(_) if left_ms(deadline) == 0 => return Err(Error::Timeout),
                Err(_) => {}
            }
        };
        timeout_ms = left_ms(deadline);
    }
}

fn lock_incoming(handle: VIP_CONN_HANDLE) -> Result<Guard<Unanswered>, Error> {
    let request = INCOMING.lock(handle).ok_or(Error::InvalidParameter)?;
    if request.busy || request.nic.closing.load(Ordering::Acquire) {
        return Err(Error::InvalidParameter);
    }
    Ok(request)
}

fn drop_incoming(handle: VIP_CONN_HANDLE) {
    if let Some(request) = INCOMING.lock(handle) {
        request
            .nic
            .incoming
            .lock()
            .retain(|known| *known != handle.addr());
        drop(INCOMING.remove(&process::get().connections, request, handle));
    }
}

/// The NIC closes: the agent rejects what was not answered, and the handles become invalid.
pub(crate) fn forget_incoming(nic: &Nic) {
    let left = std::mem::take(&mut *nic.incoming.lock());
    for handle in left {
        drop_incoming(std::ptr::without_provenance_mut(handle));
    }
}

/// VipConnectAccept.
pub fn accept(connection: VIP_CONN_HANDLE, handle: VIP_VI_HANDLE) -> Result<(), Error> {
    let (nic, agent, id, wanted) = {
        let request = lock_incoming(connection)?;
        let (nic, agent) = (request.nic.clone(), request.agent.clone());
        (nic, agent, request.connection, request.attributes)
    };
    let mut vi = vi::lock(handle)?;
    if !Arc::ptr_eq(&vi.nic, &nic) {
        return Err(Error::InvalidParameter);
    }
    agree(&vi.wire_attributes(), &wanted)?;
    if vi.abi.state != IDLE {
        return Err(Error::State);
    }
    {
        let mut request = lock_incoming(connection)?;
        request.busy = true;
    }
    let call = Agent::next_id();
    let body = Accept {
        connection: id,
        vi: u64::from(vi.abi.index),
        attributes: vi.wire_attributes(),
        segment_bytes: nic.info.segment_bytes,
        reserved: 0,
    };
    let attempt = begin(&mut vi, call);
    let result = attempt.result.clone();
    drop(vi);
    // If the agent that knows the request has gone, its client asks the next one: VIP_TIMEOUT.
    agent.connect(call, attempt, Op::ACCEPT, &body);
    let outcome = result.wait().and_then(|result| result.map(drop));
    match outcome {
        // The agent found a conflict that was not there a moment ago: the request stays.
        Err(Error::ReliabilityLevel | Error::Mtu | Error::Qos) => {
            if let Some(mut request) = INCOMING.lock(connection) {
                request.busy = false;
            }
        }
        _ => drop_incoming(connection),
    }
    outcome.map_err(|error| {
        if error == Error::InvalidParameter {
            Error::Timeout
        } else {
            error
        }
    })
}

/// What must be equal, in the order of spec §3.9.
fn agree(own: &Attributes, other: &Attributes) -> Result<(), Error> {
    if own.reliability != other.reliability {
        return Err(Error::ReliabilityLevel);
    }
    if own.max_transfer_size != other.max_transfer_size {
        return Err(Error::Mtu);
    }
    if own.qos != other.qos {
        return Err(Error::Qos);
    }
    Ok(())
}

/// VipConnectReject.
pub fn reject(connection: VIP_CONN_HANDLE) -> Result<(), Error> {
    let (agent, connection_name) = {
        let request = lock_incoming(connection)?;
        (request.agent.clone(), request.connection)
    };
    drop_incoming(connection);
    let body = ConnectionRef {
        connection: connection_name,
    };
    agent.call(Op::REJECT, &body, &[]);
    Ok(())
}

/// Begins an attempt: the VI is Connect Pending.
fn begin(vi: &mut Guard<Vi>, call: u64) -> Attempt {
    vi.abi.state = PENDING;
    vi.attempt = Some(call);
    Attempt {
        slot: vi.slot(),
        generation: vi.generation(),
        call,
        result: Ticket::new(),
        again: None,
        confirming: None,
    }
}

/// Sends VipConnectRequest or VipConnectPeerRequest to the agent.
fn start(
    handle: VIP_VI_HANDLE,
    local: &Address,
    remote: &Address,
    timeout: VIP_ULONG,
    op: Op,
) -> Result<Arc<PeerAttempt>, Error> {
    loop {
        let nic = vi::lock(handle)?.nic.clone();
        check_discriminator(&nic, local)?;
        check_discriminator(&nic, remote)?;
        if timeout == 0 || remote.0.host_len != nic.info.address_len {
            return Err(Error::InvalidParameter);
        }
        // Asked for before the VI is locked: to look may mean to wait for a thread that locks VIs.
        let here = nic.registration.here();
        let vi = vi::lock(handle)?;
        if vi.abi.state != IDLE {
            return Err(Error::State);
        }
        if nic.has_failed() {
            return Err(Error::Resource);
        }
        if let Some(place) = here {
            return start_at(vi, place, local, remote, timeout, op);
        }
        drop(vi);
        nic.registration.place()?;
    }
}

/// Sends it to this agent.
fn start_at(
    mut vi: Guard<Vi>,
    (agent, nic_name): (Arc<Agent>, u64),
    local: &Address,
    remote: &Address,
    timeout: VIP_ULONG,
    op: Op,
) -> Result<Arc<PeerAttempt>, Error> {
    let nic = vi.nic.clone();
    let call = Agent::next_id();
    let body = Request {
        nic: nic_name,
        vi: u64::from(vi.abi.index),
        timeout_ms: clock::timeout_ms(timeout),
        grace_ms: process::get().settings.connect_grace_ms(),
        segment_bytes: nic.info.segment_bytes,
        reserved: 0,
        attributes: vi.wire_attributes(),
        local: Point::new(nic.address(), local.0.discriminator()).ok_or(Error::InvalidParameter)?,
        remote: remote.0,
    };
    let mut attempt = begin(&mut vi, call);
    attempt.again = Some(Box::new(Again {
        op,
        body,
        registration: nic.registration.clone(),
        deadline: clock::deadline(timeout),
    }));
    let result = attempt.result.clone();
    vi.peer = (op == Op::PEER).then(|| result.clone());
    let (slot, generation) = (vi.slot(), vi.generation());
    drop(vi);
    agent.connect(call, attempt, op, &body);
    // A VipDisconnect in between may have cancelled a call that the agent did not know yet.
    let wanted = slot
        .lock(generation)
        .is_some_and(|vi| vi.attempt == Some(call));
    if !wanted {
        agent.tell(Op::CANCEL, &Cancel { call });
    }
    Ok(result)
}

/// VipConnectRequest.
pub fn request(
    handle: VIP_VI_HANDLE,
    local: &Address,
    remote: &Address,
    timeout: VIP_ULONG,
) -> Result<VIP_VI_ATTRIBUTES, Error> {
    let attributes = start(handle, local, remote, timeout, Op::REQUEST)?.wait()?;
    Ok(to_program(&attributes?))
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

/// VipConnectPeerDone.
pub fn peer_done(handle: VIP_VI_HANDLE) -> Result<VIP_VI_ATTRIBUTES, Error> {
    let mut vi = vi::lock(handle)?;
    let attempt = vi.peer.as_ref().ok_or(Error::State)?;
    let result = attempt.try_take()?.ok_or(Error::NotDone)?;
    vi.peer = None;
    result.map(|attributes| to_program(&attributes))
}

/// VipConnectPeerWait.
pub fn peer_wait(handle: VIP_VI_HANDLE) -> Result<VIP_VI_ATTRIBUTES, Error> {
    let attempt = vi::lock(handle)?.peer.clone().ok_or(Error::State)?;
    let result = attempt.wait()?;
    if let Ok(mut vi) = vi::lock(handle)
        && vi
            .peer
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, &attempt))
    {
        vi.peer = None;
    }
    result.map(|attributes| to_program(&attributes))
}

/// VipDisconnect.
pub fn disconnect(handle: VIP_VI_HANDLE) -> Result<(), Error> {
    let mut vi = vi::lock(handle)?;
    let attempt = vi.attempt.take();
    if let Some(peer) = vi.peer.take() {
        peer.complete(Err(Error::Timeout));
    }
    let connection = detach(&mut vi);
    vi.abi.state = IDLE;
    vi.epoch += 1;
    queue::flush(&mut vi);
    let nic = vi.nic.clone();
    drop(vi);
    nic.events.forget_breaks(handle);
    if let Some(call) = attempt {
        match nic.registration.here() {
            Some((agent, _)) => drop(agent.call(Op::CANCEL, &Cancel { call }, &[])),
            None => forget_unanswered(),
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

impl Attempt {
    /// The agent has decided. Runs on the thread that reads the agent's messages.
    pub(crate) fn finish(mut self, agent: &Arc<Agent>, reply: Reply) {
        if let Some(confirming) = self.confirming.take() {
            return self.finish_confirming(agent, &confirming, reply.status);
        }
        if self.outlives(reply.status) {
            return process::get().agents.ask_later(self);
        }
        let connected: Option<Connected> =
            (reply.op == Op::CONNECTED).then(|| reply.body()).flatten();
        let mut vi = self.slot.lock(self.generation);
        let ours = vi.as_ref().is_some_and(|vi| vi.attempt == Some(self.call));
        let result = match (&mut vi, connected) {
            (Some(vi), Some(connected)) if ours => {
                vi.attempt = None;
                attach(vi, agent, &connected, &reply)
            }
            (_, Some(connected)) => {
                agent.disconnect(connected.connection);
                Err(Error::Timeout)
            }
            (_, None) => Err(to_error(reply.status)),
        };
        if let (Some(vi), true, Err(_)) = (&mut vi, ours, &result) {
            vi.attempt = None;
            vi.abi.state = IDLE;
        }
        drop(vi);
        match (result, connected) {
            (Ok(attributes), Some(connected)) if connected.remote != 0 => {
                self.confirm(agent, &connected, attributes);
            }
            (result, _) => self.result.complete(result),
        }
    }

    /// Tells the agent that the VI is ready for a partner on another host. Both sides do so before either
    /// program hears of the connection, so that no message finds a VI that is not attached.
    fn confirm(self, agent: &Arc<Agent>, connected: &Connected, attributes: Attributes) {
        let call = Agent::next_id();
        let connection = connected.connection;
        let attempt = Attempt {
            call,
            again: None,
            confirming: Some(Confirming {
                connection,
                link: link_of(connected),
                attributes,
            }),
            ..self
        };
        agent.connect(call, attempt, Op::CONFIRM, &ConnectionRef { connection });
    }

    /// The partner has confirmed, or there is no connection after all. Receives stay posted then.
    fn finish_confirming(self, agent: &Agent, confirming: &Confirming, status: Status) {
        let result = if status == Status::OK {
            Ok(confirming.attributes)
        } else {
            agent.forget(confirming.connection);
            process::get().agents.connections.forget(confirming.link);
            if let Some(mut vi) = self.slot.lock(self.generation)
                && vi.connection == Some(confirming.link)
            {
                detach(&mut vi);
                vi.abi.state = IDLE;
                vi.epoch += 1;
                queue::flush_sends(&mut vi);
            }
            Err(to_error(status))
        };
        self.result.complete(result);
    }
}

fn link_of(connected: &Connected) -> Link {
    Link {
        key: connected.key,
        side: connected.side,
    }
}

/// Puts the VI on its connection.
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
        id: agent.unique(connected.connection),
        key: connected.key,
        side: connected.side,
        partner_pid: connected.partner_pid,
        partner_nic: agent.unique(connected.partner_nic),
        partner_vi: connected.partner_vi as u32,
        segment_fd: fd(0),
        segment_bytes: connected.segment_bytes,
        partner_fds: [fd(1), fd(2)],
        partner_rdma_write: connected.attributes.rdma_write,
        partner_rdma_read: connected.attributes.rdma_read,
        reserved: [0; 2],
        remote: connected.remote,
        remote_endpoint: connected.remote_endpoint,
        remote_address_len: connected.remote_host_len,
        remote_address: connected.remote_host,
    };
    if vi.nic.has_failed() {
        agent.disconnect(connected.connection);
        return Err(Error::Resource);
    }
    if connected.remote == 0 && reply.fds.is_empty() {
        // The reading thread has told why.
        agent.disconnect(connected.connection);
        return Err(Error::Resource);
    }
    let Some(attach) = vi.nic.ops.attach else {
        return Err(Error::NotSupported);
    };
    // SAFETY: locked and not attached; the descriptors stay open during the call.
    let status = unsafe { attach(&raw mut vi.abi, &raw const description) };
    if status != VIPL_OK {
        // The plug-in knows why, and tells.
        log::info!(target: "cm", "the plug-in cannot use the connection (status {status})");
        agent.disconnect(connected.connection);
        return Err(Error::Resource);
    }
    let link = link_of(connected);
    vi.connection = Some(link);
    vi.epoch += 1;
    vi.abi.state = CONNECTED;
    vi.set_watch();
    let name = connected.connection;
    agent.connected(name, link, vi.slot(), vi.generation());
    let live = Live {
        slot: vi.slot(),
        generation: vi.generation(),
        vi: vi.abi.index,
        attributes: vi.wire_attributes(),
        registration: vi.nic.registration.clone(),
        at: Some((agent.clone(), name)),
        lone: connected.remote != 0,
    };
    process::get().agents.connections.insert(link, live);
    // The partner may have sent already.
    vi.progress();
    Ok(connected.attributes)
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
        if let Some(partner_gone) = self.nic.ops.partner_gone {
            // SAFETY: attached and locked.
            unsafe { partner_gone(&raw mut self.abi, c_int::from(orderly)) };
        }
        if self.abi.state != ERROR {
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
