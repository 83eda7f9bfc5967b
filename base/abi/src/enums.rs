//! Enumerations (spec §2.8). The library returns and writes them; it never reads one.

/// Return code of every function.
#[must_use]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VIP_RETURN {
    VIP_SUCCESS = 0,
    VIP_NOT_DONE = 1,
    VIP_INVALID_PARAMETER = 2,
    VIP_ERROR_RESOURCE = 3,
    VIP_TIMEOUT = 4,
    VIP_REJECT = 5,
    VIP_INVALID_RELIABILITY_LEVEL = 6,
    VIP_INVALID_MTU = 7,
    VIP_INVALID_QOS = 8,
    VIP_INVALID_PTAG = 9,
    VIP_INVALID_RDMAREAD = 10,
    VIP_DESCRIPTOR_ERROR = 11,
    VIP_INVALID_STATE = 12,
    VIP_ERROR_NAMESERVICE = 13,
    VIP_NO_MATCH = 14,
    VIP_NOT_REACHABLE = 15,
    VIP_ERROR_NOT_SUPPORTED = 16,
}

impl VIP_RETURN {
    /// All codes; each stands at the place of its number.
    pub const ALL: [VIP_RETURN; 17] = [
        VIP_RETURN::VIP_SUCCESS,
        VIP_RETURN::VIP_NOT_DONE,
        VIP_RETURN::VIP_INVALID_PARAMETER,
        VIP_RETURN::VIP_ERROR_RESOURCE,
        VIP_RETURN::VIP_TIMEOUT,
        VIP_RETURN::VIP_REJECT,
        VIP_RETURN::VIP_INVALID_RELIABILITY_LEVEL,
        VIP_RETURN::VIP_INVALID_MTU,
        VIP_RETURN::VIP_INVALID_QOS,
        VIP_RETURN::VIP_INVALID_PTAG,
        VIP_RETURN::VIP_INVALID_RDMAREAD,
        VIP_RETURN::VIP_DESCRIPTOR_ERROR,
        VIP_RETURN::VIP_INVALID_STATE,
        VIP_RETURN::VIP_ERROR_NAMESERVICE,
        VIP_RETURN::VIP_NO_MATCH,
        VIP_RETURN::VIP_NOT_REACHABLE,
        VIP_RETURN::VIP_ERROR_NOT_SUPPORTED,
    ];

    /// The code with this number.
    pub fn of(number: i32) -> Option<VIP_RETURN> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// State of a VI.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VIP_VI_STATE {
    VIP_STATE_IDLE = 0,
    VIP_STATE_CONNECTED = 1,
    VIP_STATE_CONNECT_PENDING = 2,
    VIP_STATE_ERROR = 3,
}

/// Kind of an asynchronous error.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VIP_ERROR_CODE {
    VIP_ERROR_POST_DESC = 0,
    VIP_ERROR_CONN_LOST = 1,
    VIP_ERROR_RECVQ_EMPTY = 2,
    VIP_ERROR_VI_OVERRUN = 3,
    VIP_ERROR_RDMAW_PROT = 4,
    VIP_ERROR_RDMAW_DATA = 5,
    VIP_ERROR_RDMAW_ABORT = 6,
    VIP_ERROR_RDMAR_PROT = 7,
    VIP_ERROR_COMP_PROT = 8,
    VIP_ERROR_RDMA_TRANSPORT = 9,
    VIP_ERROR_CATASTROPHIC = 10,
}

impl VIP_ERROR_CODE {
    /// All codes; each stands at the place of its number.
    pub const ALL: [VIP_ERROR_CODE; 11] = [
        VIP_ERROR_CODE::VIP_ERROR_POST_DESC,
        VIP_ERROR_CODE::VIP_ERROR_CONN_LOST,
        VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY,
        VIP_ERROR_CODE::VIP_ERROR_VI_OVERRUN,
        VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT,
        VIP_ERROR_CODE::VIP_ERROR_RDMAW_DATA,
        VIP_ERROR_CODE::VIP_ERROR_RDMAW_ABORT,
        VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT,
        VIP_ERROR_CODE::VIP_ERROR_COMP_PROT,
        VIP_ERROR_CODE::VIP_ERROR_RDMA_TRANSPORT,
        VIP_ERROR_CODE::VIP_ERROR_CATASTROPHIC,
    ];

    /// The code with this number.
    pub fn of(number: i32) -> Option<VIP_ERROR_CODE> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// Kind of object that an asynchronous error concerns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VIP_RESOURCE_CODE {
    VIP_RESOURCE_NIC = 0,
    VIP_RESOURCE_VI = 1,
    VIP_RESOURCE_CQ = 2,
    VIP_RESOURCE_DESCRIPTOR = 3,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_the_code_with_that_value() {
        let last = VIP_ERROR_CODE::VIP_ERROR_CATASTROPHIC as i32;
        for number in 0..=last {
            assert_eq!(
                VIP_ERROR_CODE::of(number).map(|code| code as i32),
                Some(number)
            );
        }
        assert!(VIP_ERROR_CODE::of(-1).is_none());
        assert!(VIP_ERROR_CODE::of(last + 1).is_none());
        let last = VIP_RETURN::VIP_ERROR_NOT_SUPPORTED as i32;
        for number in 0..=last {
            assert_eq!(VIP_RETURN::of(number).map(|code| code as i32), Some(number));
        }
        assert!(VIP_RETURN::of(-1).is_none());
        assert!(VIP_RETURN::of(last + 1).is_none());
    }
}
