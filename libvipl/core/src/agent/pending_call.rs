//! A call to the agent whose reply depends on other processes.

use std::sync::Arc;

use kagent_proto::{Op, Status};
use vipl_sys::clock::Instant;
use zerocopy::{Immutable, IntoBytes};

use super::client::{Agent, GONE, Reply, limit};
use super::ticket::Ticket;

/// A call in progress. If it is dropped without a reply, it is withdrawn; a request received too late goes to
/// another process.
pub(crate) struct PendingCall {
    pub(crate) agent: Arc<Agent>,
    call: u64,
    ticket: Arc<Ticket<Reply>>,
    /// Deadline of the call; `None`: never.
    deadline: Option<Instant>,
    answered: bool,
}

impl PendingCall {
    /// Sends it.
    pub(crate) fn new<B>(
        agent: Arc<Agent>,
        op: Op,
        body: &B,
        deadline: Option<Instant>,
    ) -> PendingCall
    where
        B: IntoBytes + Immutable,
    {
        let ticket = Ticket::new();
        let answered = ticket.clone();
        let call = Agent::next_id();
        agent.start(call, op, body, &[], move |_, reply| {
            answered.complete(reply);
        });
        PendingCall {
            agent,
            call,
            ticket,
            deadline,
            answered: false,
        }
    }

    /// Waits for the reply, at most until `end`. `None`: no reply yet, and the deadline has not passed.
    pub(crate) fn wait(&mut self, end: Instant) -> Option<Reply> {
        let limit = limit(self.deadline);
        let until = limit.map_or(end, |limit| limit.min(end));
        let reply = match self.ticket.wait_until(until) {
            Ok(Some(reply)) => reply,
            Err(_) => Reply::failed(GONE),
            Ok(None) if limit.is_none_or(|limit| Instant::now() < limit) => return None,
            Ok(None) if self.agent.withdraw(self.call) => {
                self.agent.log_late();
                Reply::failed(Status::TIMEOUT)
            }
            // The reading thread is about to complete the ticket.
            Ok(None) => self.ticket.wait().unwrap_or_else(|_| Reply::failed(GONE)),
        };
        self.answered = true;
        Some(reply)
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !self.answered && !self.agent.withdraw(self.call) {
            // The reply has arrived, or is about to.
            self.agent.cancel(self.call);
        }
    }
}
