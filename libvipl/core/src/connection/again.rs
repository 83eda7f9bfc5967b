//! Attempts to connect that outlive the agent they were asked of (VipConnectRequest and
//! VipConnectPeerRequest). The next agent is asked for what is left of their time, so the program sees
//! one call, however many agents answer it.

use std::sync::Arc;
use std::time::Instant;

use kagent_proto::{Cancel, Op, Request, Status};

use super::attempt::Attempt;
use crate::agent::{Agent, NicRegistration};
use crate::error::Error;
use crate::process;

/// How long the next agent looks for a server at least, in milliseconds: the server's process goes over
/// to that agent at about the same time, and may be later.
const GRACE_MS: u64 = 10_000;

/// What has to be asked.
pub(super) struct Again {
    pub(super) op: Op,
    pub(super) body: Request,
    pub(super) registration: Arc<NicRegistration>,
    pub(super) deadline: Option<Instant>,
}

/// What is left until a deadline, as the agent's messages carry it.
pub(super) fn left_ms(deadline: Option<Instant>) -> u64 {
    deadline.map_or(u64::MAX, |end| {
        let left = end.saturating_duration_since(Instant::now());
        left.as_nanos().div_ceil(1_000_000) as u64
    })
}

impl Attempt {
    /// Its agent has gone. False: it cannot be asked again.
    pub(super) fn outlives(&self, status: Status) -> bool {
        status == crate::agent::GONE && self.again.is_some()
    }

    /// Whether nobody waits for it any more, or not in time.
    pub(crate) fn is_over(&self) -> bool {
        let deadline = self.again.as_ref().and_then(|again| again.deadline);
        left_ms(deadline) == 0 || !self.is_wanted()
    }

    fn is_wanted(&self) -> bool {
        let vi = self.slot.lock(self.generation);
        vi.is_some_and(|vi| vi.attempt == Some(self.call))
    }

    /// Ends it as its timeout would have.
    pub(crate) fn give_up(self) {
        self.settle(Err(Error::Timeout));
    }

    /// Asks the next agent, at which the NIC is open.
    pub(crate) fn ask_again(mut self, agent: &Arc<Agent>) {
        if self.is_over() {
            return self.give_up();
        }
        let Some(again) = &mut self.again else {
            return self.give_up();
        };
        let Some(nic) = again.registration.name_at(agent) else {
            return self.settle(Err(Error::Resource));
        };
        again.body.nic = nic;
        again.body.timeout_ms = left_ms(again.deadline).max(1);
        again.body.grace_ms = again.body.grace_ms.max(GRACE_MS);
        let (op, body) = (again.op, again.body);
        let call = Agent::next_id();
        match self.slot.lock(self.generation) {
            Some(mut vi) if vi.attempt == Some(self.call) => vi.attempt = Some(call),
            _ => return self.give_up(),
        }
        self.call = call;
        let (slot, generation) = (self.slot, self.generation);
        agent.connect(call, self, op, &body);
        // A VipDisconnect in between may have cancelled a call that the agent did not know yet.
        let wanted = slot
            .lock(generation)
            .is_some_and(|vi| vi.attempt == Some(call));
        if !wanted {
            agent.tell(Op::CANCEL, &Cancel { call });
        }
    }

    /// Gives the result of an attempt that has not connected.
    fn settle(self, result: Result<kagent_proto::Attributes, Error>) {
        if let Some(mut vi) = self.slot.lock(self.generation)
            && vi.attempt == Some(self.call)
        {
            vi.attempt = None;
            vi.abi.state = crate::vi::IDLE;
        }
        self.result.complete(result);
    }
}

/// Lets the keeper of the agents know that a VI is not to be connected any more.
pub(super) fn forget_unanswered() {
    process::get().agents.wake_keeper();
}
