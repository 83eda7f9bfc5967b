//! The server's side: VipConnectWait, VipConnectAccept, VipConnectReject, and unanswered requests (spec §3.8
//! to §3.10).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vipl_sys::clock::Instant;

use kagent_proto::*;
use vipl_abi::*;
use vipl_pages::record::Happened;

use super::attempt::{begin, outcome};
use super::convert::{check_discriminator, to_error, to_program};
use crate::agent::{Agent, GONE, PendingCall, Reply, limit, log_discriminator_taken};
use crate::clock::{self, remaining_ms};
use crate::connect::address::Address;
use crate::error::Error;
use crate::nic::Nic;
use crate::object::handle::Kind;
use crate::object::table::{Guard, Table};
use crate::text::{discriminator, hexadecimal};
use crate::vi;
use crate::vi::state::IDLE;
use crate::waiting::{Begun, Wait, is_over, slice_end};

/// Time between two requests to an agent that refuses the NIC.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

static INCOMING: Table<Unanswered> = Table::new(Kind::Connection);

/// A received, unanswered request.
struct Unanswered {
    nic: Arc<Nic>,
    /// The agent that knows it, and its identifier there.
    agent: Arc<Agent>,
    connection: u64,
    attributes: Attributes,
    /// Whether a thread is inside VipConnectAccept with it.
    busy: bool,
}

/// The result of VipConnectWait.
pub struct Arrived {
    /// The requester's address.
    pub remote: Address,
    /// The requester's VI.
    pub attributes: VIP_VI_ATTRIBUTES,
    /// The handle.
    pub handle: VIP_CONN_HANDLE,
}

/// A waiting server. One call of the application may outlive several agents.
pub struct Waiting {
    nic: Arc<Nic>,
    local: Point,
    deadline: Option<Instant>,
    /// The call to the current agent.
    call: Option<PendingCall>,
    /// Whether an agent has exited since the wait began.
    again: bool,
}

/// VipConnectWait.
pub fn wait(nic: &Arc<Nic>, local: &Address, timeout: VIP_ULONG) -> Result<Begun<Waiting>, Error> {
    check_discriminator(nic, local)?;
    Ok(Begun::Waits(Waiting {
        nic: nic.clone(),
        local: Point::new(&[], local.0.discriminator()).ok_or(Error::InvalidParameter)?,
        deadline: clock::deadline(timeout),
        call: None,
        again: false,
    }))
}

impl Wait for Waiting {
    type Found = Result<Arrived, Error>;

    fn slice(&mut self) -> Option<Self::Found> {
        let end = slice_end(self.deadline);
        let wait_end = slice_end(limit(self.deadline));
        loop {
            // If it is withdrawn, the next client goes to another server.
            if self.nic.has_failed() {
                log::error!(
                    target: "cm",
                    "VipConnectWait: the device of NIC {:?} has failed; close it and open it again",
                    self.nic.handle
                );
                return Some(Err(Error::Resource));
            }
            if self.call.is_none() {
                match self.ask(end) {
                    Ok(call) => self.call = Some(call),
                    Err(_) if Instant::now() >= end && !is_over(self.deadline) => return None,
                    Err(Error::Resource) if self.again && is_over(self.deadline) => {
                        return Some(Err(Error::Timeout));
                    }
                    Err(Error::Resource)
                        if self.again && !self.nic.registration.is_unreachable() =>
                    {
                        // An agent that is there and refuses the NIC answers at once.
                        let left = end.saturating_duration_since(Instant::now());
                        vipl_sys::clock::sleep(REFUSED_PAUSE.min(left));
                        continue;
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
            let reply = self.call.as_mut()?.wait(wait_end)?;
            let agent = self.call.take()?.agent.clone();
            if reply.status != GONE {
                return Some(arrived(&self.nic, &self.local, &agent, &reply));
            }
            self.again = true;
        }
    }
}

impl Waiting {
    /// Sends the wait to the current agent. Waits for an agent until `end`.
    fn ask(&self, end: Instant) -> Result<PendingCall, Error> {
        let nic = &self.nic;
        let (agent, name) = nic.agents().place_until(&nic.registration, Some(end))?;
        if nic.registration.is_unreachable() {
            log::error!(
                target: "cm",
                "VipConnectWait: the Kernel Agent that gave this NIC its data socket is lost, and other hosts do not reach the NIC any more; close it and open it again"
            );
            return Err(Error::Resource);
        }
        let body = kagent_proto::Wait {
            nic: name,
            timeout_ms: remaining_ms(self.deadline),
            local: self.local,
            reserved: 0,
        };
        Ok(PendingCall::new(agent, Op::WAIT, &body, self.deadline))
    }
}

/// Processes the agent's reply to a server.
fn arrived(
    nic: &Arc<Nic>,
    local: &Point,
    agent: &Arc<Agent>,
    reply: &Reply,
) -> Result<Arrived, Error> {
    if reply.op != Op::INCOMING {
        if let Some(detail) = reply.body::<Detail>() {
            log_discriminator_taken(&detail, local);
        }
        // Only VipCloseNic cancels a wait.
        return Err(match reply.status {
            Status::CANCELLED | Status::INVALID => Error::InvalidParameter,
            status => to_error(status),
        });
    }
    let incoming: Incoming = reply.body().ok_or(Error::Resource)?;
    let request = Unanswered {
        nic: nic.clone(),
        agent: agent.clone(),
        connection: incoming.connection,
        attributes: incoming.attributes,
        busy: false,
    };
    let handle = {
        let mut unanswered = nic.incoming.lock();
        if nic.closing.load(Ordering::Acquire) {
            return Err(Error::InvalidParameter);
        }
        if nic.has_failed() {
            agent.cancel(reply.id);
            return Err(Error::Resource);
        }
        let handle = INCOMING.insert(&nic.process.connections, |_| request);
        let Some(handle) = handle else {
            log::error!(target: "cm", "too many unanswered connection requests in this process; VipConnectAccept and VipConnectReject release them");
            agent.cancel(reply.id);
            return Err(Error::Resource);
        };
        unanswered.push(handle.addr());
        handle
    };
    log::debug!(
        target: "cm",
        "connection request {handle:?} from {} {}",
        hexadecimal(incoming.remote.host()),
        discriminator(incoming.remote.discriminator())
    );
    Ok(Arrived {
        remote: Address(incoming.remote),
        attributes: to_program(&incoming.attributes),
        handle,
    })
}

fn lock_incoming(handle: VIP_CONN_HANDLE) -> Result<Guard<Unanswered>, Error> {
    let request = INCOMING.lock(handle).ok_or(Error::InvalidParameter)?;
    if request.busy || request.nic.closing.load(Ordering::Acquire) {
        return Err(Error::InvalidParameter);
    }
    Ok(request)
}

/// The NIC handle of a request that can be answered.
pub(crate) fn owner(handle: VIP_CONN_HANDLE) -> Option<VIP_NIC_HANDLE> {
    Some(lock_incoming(handle).ok()?.nic.handle)
}

fn drop_incoming(handle: VIP_CONN_HANDLE) {
    if let Some(request) = INCOMING.lock(handle) {
        request
            .nic
            .incoming
            .lock()
            .retain(|known| *known != handle.addr());
        let process = request.nic.process;
        drop(INCOMING.remove(&process.connections, request, handle));
    }
}

/// The NIC closes: the agent rejects unanswered requests, and their handles become invalid.
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
    vi.happened(Happened::Accepting);
    let attempt = begin(&mut vi, call, None);
    let pending = attempt.pending.clone();
    drop(vi);
    // VIP_TIMEOUT if the agent that knows the request has exited: the client repeats it at the next one.
    attempt.send(&agent, Op::ACCEPT, &body);
    // The agent repeats an acceptance to another host for up to 30 s.
    let patience = agent.patience() * 2;
    let limit = Instant::now() + patience;
    let outcome = outcome(handle, &pending, Some(limit)).and_then(|result| result.map(drop));
    if Instant::now() >= limit {
        // The agent may not have received the call: the client must not wait for this server.
        agent.notify(Op::REJECT, &ConnectionRef { connection: id });
        agent.log_silence(Op::ACCEPT, patience);
    }
    match outcome {
        // The agent found a conflict that did not exist when checked here: the request stays.
        Err(Error::ReliabilityLevel | Error::Mtu | Error::Qos) => {
            if let Some(mut request) = INCOMING.lock(connection) {
                request.busy = false;
            }
        }
        _ => drop_incoming(connection),
    }
    outcome.map_err(|error| {
        let error = match error {
            Error::InvalidParameter => Error::Timeout,
            error => error,
        };
        if error == Error::Timeout {
            log::info!(target: "cm", "VipConnectAccept: the client has given up or exited");
        }
        error
    })
}

/// Checks the attributes that must agree, in the order of spec §3.9.
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
    log::debug!(target: "cm", "connection request {connection:?} rejected");
    let body = ConnectionRef {
        connection: connection_name,
    };
    agent.call(Op::REJECT, &body, &[]);
    Ok(())
}
