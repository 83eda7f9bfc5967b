//! One attempt to connect one VI, from the call to the agent's decision, and how the VI is put on its
//! connection.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use kagent_proto::*;
use vipl_plugin_abi::{VIPL_OK, vipl_connection};

use super::again::Again;
use super::{detach, to_error};
use crate::agent::{Agent, Link, Live, Reply, Ticket, tell_nobody, tell_taken};
use crate::error::Error;
use crate::table::{Guard, Slot};
use crate::trace::hexadecimal;
use crate::vi::{CONNECTED, IDLE, PENDING, Vi};
use crate::{process, queue};

/// An attempt to connect one VI.
pub(crate) struct Attempt {
    pub(super) slot: &'static Slot<Vi>,
    pub(super) generation: u32,
    pub(super) call: u64,
    pub(super) result: Arc<PeerAttempt>,
    /// What the next agent is asked if this one goes; nothing for VipConnectAccept, whose client asks.
    pub(super) again: Option<Box<Again>>,
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

/// Begins an attempt: the VI is Connect Pending.
pub(super) fn begin(vi: &mut Guard<Vi>, call: u64) -> Attempt {
    log::debug!(target: "vi", "VI {:?}: Idle -> Connect Pending", vi.handle);
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
            (_, None) => {
                self.tell_why(&reply);
                Err(to_error(reply.status))
            }
        };
        if let (Some(vi), true, Err(_)) = (&mut vi, ours, &result) {
            vi.attempt = None;
            vi.abi.state = IDLE;
            log::debug!(target: "vi", "VI {:?}: Connect Pending -> Idle (no connection)", vi.handle);
        }
        // Before anybody hears of it: a program that then closes all numbers and takes them for its own files would
        // find these closed.
        drop(reply);
        drop(vi);
        match (result, connected) {
            (Ok(attributes), Some(connected)) if connected.remote != 0 => {
                self.confirm(agent, &connected, attributes);
            }
            (result, _) => self.result.complete(result),
        }
    }

    /// What the agent says of a refusal beyond its status.
    fn tell_why(&self, reply: &Reply) {
        if let (Some(detail), Some(again)) = (reply.body::<Detail>(), &self.again) {
            tell_taken(&detail, &again.body.local);
            tell_nobody(reply.status, &detail, &again.body.remote);
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
                log::debug!(target: "vi", "VI {:?}: Connected -> Idle (the partner has not confirmed)", vi.handle);
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

/// Whom a VI is connected with, for people.
fn partner(connected: &Connected) -> String {
    if connected.remote == 0 {
        return format!(
            "VI {} of process {}",
            connected.partner_vi, connected.partner_pid
        );
    }
    let length = usize::from(connected.remote_host_len).min(connected.remote_host.len());
    format!(
        "a VI of the host {}",
        hexadecimal(&connected.remote_host[..length])
    )
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
    vi.remote = connected.remote != 0;
    vi.epoch += 1;
    vi.abi.state = CONNECTED;
    if log::log_enabled!(target: "vi", log::Level::Debug) {
        log::debug!(target: "vi", "VI {:?}: Connect Pending -> Connected with {}", vi.handle, partner(connected));
    }
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
