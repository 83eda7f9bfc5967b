//! The errors of calls, and the return codes for the application.

use vipl_abi::VIP_RETURN;

/// Why a call failed. The function that detects an error logs the details; this value only carries the
/// result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A handle, pointer or value is invalid.
    #[error("invalid parameter")]
    InvalidParameter,
    /// A limit was reached, or the system refused a resource.
    #[error("out of a resource")]
    Resource,
    /// Nothing is complete yet.
    #[error("not done")]
    NotDone,
    /// The timeout expired.
    #[error("timed out")]
    Timeout,
    /// The peer refused.
    #[error("rejected")]
    Reject,
    /// Reliability levels are unsupported or differ.
    #[error("invalid reliability level")]
    ReliabilityLevel,
    /// Transfer sizes are out of range or differ.
    #[error("invalid transfer size")]
    Mtu,
    /// QoS is not NULL.
    #[error("invalid quality of service")]
    Qos,
    /// Not a live tag of this NIC handle.
    #[error("invalid protection tag")]
    Ptag,
    /// RDMA Read is not offered.
    #[error("RDMA Read not supported")]
    RdmaRead,
    /// The VI is in another state.
    #[error("invalid state")]
    State,
    /// The name service has no entry.
    #[error("not in the name service")]
    NameService,
    /// No server is waiting on the discriminator.
    #[error("no server is waiting for this discriminator")]
    NoMatch,
    /// The network reports that there is no such node.
    #[error("not reachable")]
    NotReachable,
    /// The plug-in does not support this.
    #[error("not supported")]
    NotSupported,
}

impl Error {
    /// The return code of the C interface.
    pub fn to_return(self) -> VIP_RETURN {
        match self {
            Error::InvalidParameter => VIP_RETURN::VIP_INVALID_PARAMETER,
            Error::Resource => VIP_RETURN::VIP_ERROR_RESOURCE,
            Error::NotDone => VIP_RETURN::VIP_NOT_DONE,
            Error::Timeout => VIP_RETURN::VIP_TIMEOUT,
            Error::Reject => VIP_RETURN::VIP_REJECT,
            Error::ReliabilityLevel => VIP_RETURN::VIP_INVALID_RELIABILITY_LEVEL,
            Error::Mtu => VIP_RETURN::VIP_INVALID_MTU,
            Error::Qos => VIP_RETURN::VIP_INVALID_QOS,
            Error::Ptag => VIP_RETURN::VIP_INVALID_PTAG,
            Error::RdmaRead => VIP_RETURN::VIP_INVALID_RDMAREAD,
            Error::State => VIP_RETURN::VIP_INVALID_STATE,
            Error::NameService => VIP_RETURN::VIP_ERROR_NAMESERVICE,
            Error::NoMatch => VIP_RETURN::VIP_NO_MATCH,
            Error::NotReachable => VIP_RETURN::VIP_NOT_REACHABLE,
            Error::NotSupported => VIP_RETURN::VIP_ERROR_NOT_SUPPORTED,
        }
    }
}

/// Whether the system lacks a resource, perhaps temporarily.
pub(crate) fn is_shortage(error: &std::io::Error) -> bool {
    let passing = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|code| passing.contains(&code))
}
