//! Enumerations (spec §2.8). The library returns and writes them; it never reads one.

/// Result of a function. The text after the name is what vipl_strerror says, and what to do.
#[must_use]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VIP_RETURN {
    /// Done.
    VIP_SUCCESS = 0,
    /// Nothing has completed yet. Ask again later, or wait.
    VIP_NOT_DONE = 1,
    /// An argument is wrong; the log says which. Correct the program.
    VIP_INVALID_PARAMETER = 2,
    /// A limit is reached, something is in use, or a permission is lacking; the log says what. Release what
    /// is in use, or raise the limit.
    VIP_ERROR_RESOURCE = 3,
    /// The time is up. Call again, or give up.
    VIP_TIMEOUT = 4,
    /// The peer has refused the connection. The VI is Idle again and may be used for another request.
    VIP_REJECT = 5,
    /// The NIC lacks this reliability level, or the peer's VI has another one. Choose a level of
    /// ReliabilityLevelSupport, the same on both sides.
    VIP_INVALID_RELIABILITY_LEVEL = 6,
    /// MaxTransferSize is above what the NIC can do. Choose a MaxTransferSize up to that of the NIC, the
    /// same on both sides.
    VIP_INVALID_MTU = 7,
    /// The NIC lacks this quality of service. Set QoS to NULL.
    VIP_INVALID_QOS = 8,
    /// The protection tag is none of this NIC handle. Use a tag that VipCreatePtag has made for this NIC
    /// handle and that still exists.
    VIP_INVALID_PTAG = 9,
    /// The NIC has no RDMA Read at this reliability level. Leave EnableRdmaRead VIP_FALSE, or choose a
    /// level of RDMAReadSupport.
    VIP_INVALID_RDMAREAD = 10,
    /// A descriptor has completed with an error, or the queue is empty. With a descriptor, look at its
    /// Status; with NULL there is nothing to take.
    VIP_DESCRIPTOR_ERROR = 11,
    /// The VI is in a state that does not permit this call. VipQueryVi tells the state.
    VIP_INVALID_STATE = 12,
    /// The name or the address is unknown, or the name service is not initialized. Call VipNSInit before;
    /// check the table of hosts.
    VIP_ERROR_NAMESERVICE = 13,
    /// No process waits for a connection at this address and discriminator. The server may not be ready yet:
    /// try again a little later.
    VIP_NO_MATCH = 14,
    /// There is no way to the peer's host, or no Kernel Agent there. Check the address and the network;
    /// `vipinfo --why DEVICE HOST` does.
    VIP_NOT_REACHABLE = 15,
    /// The plug-in cannot do this. Do without, or use another device.
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
pub enum VIP_VI_STATE {
    /// There is no connection. The VI can be connected or destroyed, and receives can be posted.
    VIP_STATE_IDLE = 0,
    /// Connected: descriptors are processed.
    VIP_STATE_CONNECTED = 1,
    /// An attempt to connect runs.
    VIP_STATE_CONNECT_PENDING = 2,
    /// The connection is lost or broken by an error; what is posted is flushed. VipDisconnect makes the VI
    /// Idle.
    VIP_STATE_ERROR = 3,
}

/// Kind of an asynchronous error.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VIP_ERROR_CODE {
    /// A descriptor that was to be posted is misaligned or not in registered memory. VipPostSend or
    /// VipPostRecv has refused it, too.
    VIP_ERROR_POST_DESC = 0,
    /// The connection is lost. The VI is in VIP_STATE_ERROR and its queues are flushed: take the
    /// descriptors off, call VipDisconnect.
    VIP_ERROR_CONN_LOST = 1,
    /// A message came, and no receive descriptor was posted. Post receives before the peer sends. On a
    /// reliable connection the VI is in VIP_STATE_ERROR.
    VIP_ERROR_RECVQ_EMPTY = 2,
    /// More descriptors were posted than a queue can hold. Or a completion queue has more entries than
    /// room. Take completions off sooner, or make the queue larger.
    VIP_ERROR_VI_OVERRUN = 3,
    /// An RDMA Write of the peer was not permitted here. Check the address and handle that the peer was
    /// given, tags, and EnableRdmaWrite of VI and region.
    VIP_ERROR_RDMAW_PROT = 4,
    /// An RDMA Write of the peer arrived with damaged data. On an unreliable connection it is dropped.
    VIP_ERROR_RDMAW_DATA = 5,
    /// An RDMA Write of the peer ended before all of it was here. The contents of the memory are undefined.
    VIP_ERROR_RDMAW_ABORT = 6,
    /// An RDMA Read of the peer was not permitted here. Check the address and handle that the peer was
    /// given, tags, and EnableRdmaRead of VI and region.
    VIP_ERROR_RDMAR_PROT = 7,
    /// The result of a descriptor could not be written to its memory. The memory of a posted descriptor was
    /// deregistered; the VI is in VIP_STATE_ERROR.
    VIP_ERROR_COMP_PROT = 8,
    /// The network lost RDMA of the peer. The data of an RDMA Read could not be sent; the connection is
    /// broken.
    VIP_ERROR_RDMA_TRANSPORT = 9,
    /// The NIC has failed. Every VI of it is in VIP_STATE_ERROR. Release all, close the NIC, and open it
    /// again.
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
pub enum VIP_RESOURCE_CODE {
    /// The NIC.
    VIP_RESOURCE_NIC = 0,
    /// A VI: ViHandle is set.
    VIP_RESOURCE_VI = 1,
    /// A completion queue: CQHandle is set.
    VIP_RESOURCE_CQ = 2,
    /// A descriptor: ViHandle and DescriptorPtr are set.
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
