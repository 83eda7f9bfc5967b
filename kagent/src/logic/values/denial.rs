//! Why a call is refused: its status and the detail sent with it.

#![forbid(unsafe_code)]

use kagent_proto::{Budget, Detail, Reason, Status};

/// A refusal of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub(crate) status: Status,
    pub(crate) detail: Option<Detail>,
}

/// The result of a command.
pub(crate) type Outcome = Result<(), Denial>;

impl From<Status> for Denial {
    fn from(status: Status) -> Self {
        let detail = None;
        Denial { status, detail }
    }
}

impl Denial {
    /// A status with a reason that has no figures.
    pub(crate) fn because(status: Status, reason: Reason) -> Self {
        let detail = Some(Detail::new(reason));
        Denial { status, detail }
    }

    /// The user has reached its limit.
    pub(crate) fn user(budget: Budget, user: u32, used: usize, limit: usize) -> Self {
        Self::budget(Reason::USER_BUDGET, budget, user, used, limit)
    }

    /// The process has reached its limit.
    pub(crate) fn process(budget: Budget, user: u32, used: usize, limit: usize) -> Self {
        Self::budget(Reason::PROCESS_BUDGET, budget, user, used, limit)
    }

    fn budget(reason: Reason, budget: Budget, user: u32, used: usize, limit: usize) -> Self {
        let detail = Detail {
            budget: budget as u32,
            user,
            used: used as u64,
            limit: limit as u64,
            ..Detail::new(reason)
        };
        Denial {
            status: Status::RESOURCE,
            detail: Some(detail),
        }
    }
}
