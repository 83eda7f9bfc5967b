//! Named values.

use core::ffi::c_int;

use crate::{vipl_entry, vipl_nic, vipl_queue, vipl_region, vipl_vi};

vipl_abi::constants! {
    /// "VIPLPLUG" read as little-endian.
    pub const VIPL_PLUGIN_MAGIC: u64 = 0x4755_4C50_4C50_4956;
    /// A new major version is a new symbol and a new directory.
    pub const VIPL_PLUGIN_ABI_MAJOR: u16 = 1;
    /// Counts additions to the sized structures. Two files of the same minor version have the same sizes; those
    /// of a lower one are not larger, those of a higher one not smaller.
    pub const VIPL_PLUGIN_ABI_MINOR: u16 = 2;
    /// Sizes of what has no size field: `vipl_vi`, `vipl_nic`, `vipl_queue`, `vipl_entry`, `vipl_region`, and a
    /// pointer.
    pub const VIPL_PLUGIN_FINGERPRINT: u64 = ((core::mem::size_of::<vipl_vi>() as u64) << 40)
        | ((core::mem::size_of::<vipl_nic>() as u64) << 32)
        | ((core::mem::size_of::<vipl_queue>() as u64) << 24)
        | ((core::mem::size_of::<vipl_entry>() as u64) << 16)
        | ((core::mem::size_of::<vipl_region>() as u64) << 8)
        | core::mem::size_of::<usize>() as u64;
    /// Kind of a plug-in that serves devices.
    pub const VIPL_KIND_PROVIDER: u32 = 1;
    /// Kind of a plug-in that sees the calls of the application; the file is `libvipl_layer_NAME.so`.
    pub const VIPL_KIND_LAYER: u32 = 2;

    /// Longest host address in bytes.
    pub const VIPL_ADDRESS_MAX: usize = 32;
    /// Form of a host address: bytes without a meaning outside its network.
    pub const VIPL_ADDRESS_BYTES: u32 = 0;
    /// Form of a host address: an IP address and the UDP port of the host's agent.
    pub const VIPL_ADDRESS_IP: u32 = 1;
    /// Ethertype of the frames of a data socket that the agent opens on an Ethernet interface, one of the two reserved for
    /// local experiments.
    pub const VIPL_DATA_ETHERTYPE: u16 = 0x88B5;
    /// Where such a frame names the endpoint that it is for, in bytes from the start of the Ethernet header: 16 bits,
    /// big-endian.
    pub const VIPL_ENDPOINT_OFFSET: u32 = 16;
    /// Longest data address in bytes.
    pub const VIPL_DATA_ADDRESS_MAX: usize = 256;

    /// Kind of a setting: any text.
    pub const VIPL_SETTING_TEXT: u32 = 0;
    /// Kind of a setting: true or false; the plug-in gets `1` or `0`.
    pub const VIPL_SETTING_BOOLEAN: u32 = 1;
    /// Kind of a setting: a whole number from `minimum` to `maximum`.
    pub const VIPL_SETTING_NUMBER: u32 = 2;
    /// Kind of a setting: a number of bytes from `minimum` to `maximum`, given as `65536` or `64k`; the plug-in
    /// gets digits.
    pub const VIPL_SETTING_BYTES: u32 = 3;
    /// Kind of a setting: a number with a point, from `minimum` to `maximum` millionths.
    pub const VIPL_SETTING_FRACTION: u32 = 4;

    /// Status of an operation: success.
    pub const VIPL_OK: c_int = 0;
    /// Status of an operation: a resource is exhausted.
    pub const VIPL_E_RESOURCE: c_int = -1;
    /// Status of an operation: an argument is invalid, for instance the name of a device.
    pub const VIPL_E_INVALID: c_int = -2;
    /// Status of an operation: not part of this plug-in.
    pub const VIPL_E_NOT_SUPPORTED: c_int = -3;
    /// Status of an operation: the user lacks a permission; the log says which.
    pub const VIPL_E_NOT_PERMITTED: c_int = -4;

    /// Bit of [`vipl_region`]'s access word: may be written by RDMA.
    pub const VIPL_REGION_RDMA_WRITE: u32 = 1;
    /// Bit of [`vipl_region`]'s access word: may be read by RDMA.
    pub const VIPL_REGION_RDMA_READ: u32 = 2;
    /// Tag of a VI that matches every region of its NIC (compatible mode).
    pub const VIPL_PTAG_ANY: u32 = 0;
    /// Tag of a region without one: matches every VI of its NIC (compatible mode).
    pub const VIPL_PTAG_NONE: u32 = u32::MAX;

    /// Option bit of [`vipl_nic`]: immediate data travels also when the flag is not set.
    pub const VIPL_OPTION_CARRY_IMMEDIATE: u32 = 1;
    /// Option bit of [`vipl_nic`]: the memory handle of a descriptor is checked, also at its completion.
    pub const VIPL_OPTION_CHECK_DESCRIPTOR: u32 = 2;
    /// Option bit of [`vipl_nic`]: the data segments of a receive descriptor are checked whole. Else they are
    /// checked as far as the message reaches.
    pub const VIPL_OPTION_CHECK_RECEIVE_WHOLE: u32 = 4;

    /// `fail`: a descriptor has reported the cause, so no asynchronous error is raised.
    pub const VIPL_CAUSE_REPORTED: c_int = -1;
    /// `fail`: the peer disconnected in good order.
    pub const VIPL_CAUSE_DISCONNECTED: c_int = -2;

    /// `poll`: nothing completed.
    pub const VIPL_POLL_NOTHING: c_int = 0;
    /// `poll`: some descriptor completed.
    pub const VIPL_POLL_PROGRESS: c_int = 1;
    /// `poll`: nothing was done, because the application is using the VI itself. Poll again before sleeping.
    pub const VIPL_POLL_BUSY: c_int = 2;

    /// Log level of `log`.
    pub const VIPL_LOG_ERROR: c_int = 1;
    /// Log level of `log`.
    pub const VIPL_LOG_WARN: c_int = 2;
    /// Log level of `log`.
    pub const VIPL_LOG_INFO: c_int = 3;
    /// Log level of `log`.
    pub const VIPL_LOG_DEBUG: c_int = 4;

    /// Room for the arguments of a `vipl_call`.
    pub const VIPL_CALL_ARGUMENTS: usize = 8;
    /// Words that a layer has for one call, from `before` to `after`.
    pub const VIPL_LAYER_WORDS: usize = 4;
    /// `after`: the thread was cancelled in the call, which has no result.
    pub const VIPL_CALL_LEFT: c_int = -1;
    /// An asynchronous error is raised.
    pub const VIPL_EVENT_ERROR: u32 = 1;
    /// The handler of a notify request is about to be called.
    pub const VIPL_EVENT_HANDLER: u32 = 2;

    /// `vipl_call.function`: VipOpenNic.
    pub const VIPL_CALL_OPEN_NIC: u32 = 1;
    /// `vipl_call.function`: VipCloseNic.
    pub const VIPL_CALL_CLOSE_NIC: u32 = 2;
    /// `vipl_call.function`: VipQueryNic.
    pub const VIPL_CALL_QUERY_NIC: u32 = 3;
    /// `vipl_call.function`: VipCreateVi.
    pub const VIPL_CALL_CREATE_VI: u32 = 4;
    /// `vipl_call.function`: VipDestroyVi.
    pub const VIPL_CALL_DESTROY_VI: u32 = 5;
    /// `vipl_call.function`: VipQueryVi.
    pub const VIPL_CALL_QUERY_VI: u32 = 6;
    /// `vipl_call.function`: VipSetViAttributes.
    pub const VIPL_CALL_SET_VI_ATTRIBUTES: u32 = 7;
    /// `vipl_call.function`: VipSetUserData.
    pub const VIPL_CALL_SET_USER_DATA: u32 = 8;
    /// `vipl_call.function`: VipGetUserData.
    pub const VIPL_CALL_GET_USER_DATA: u32 = 9;
    /// `vipl_call.function`: VipConnectWait.
    pub const VIPL_CALL_CONNECT_WAIT: u32 = 10;
    /// `vipl_call.function`: VipConnectAccept.
    pub const VIPL_CALL_CONNECT_ACCEPT: u32 = 11;
    /// `vipl_call.function`: VipConnectReject.
    pub const VIPL_CALL_CONNECT_REJECT: u32 = 12;
    /// `vipl_call.function`: VipConnectRequest.
    pub const VIPL_CALL_CONNECT_REQUEST: u32 = 13;
    /// `vipl_call.function`: VipDisconnect.
    pub const VIPL_CALL_DISCONNECT: u32 = 14;
    /// `vipl_call.function`: VipConnectPeerRequest.
    pub const VIPL_CALL_CONNECT_PEER_REQUEST: u32 = 15;
    /// `vipl_call.function`: VipConnectPeerDone.
    pub const VIPL_CALL_CONNECT_PEER_DONE: u32 = 16;
    /// `vipl_call.function`: VipConnectPeerWait.
    pub const VIPL_CALL_CONNECT_PEER_WAIT: u32 = 17;
    /// `vipl_call.function`: VipCreatePtag.
    pub const VIPL_CALL_CREATE_PTAG: u32 = 18;
    /// `vipl_call.function`: VipDestroyPtag.
    pub const VIPL_CALL_DESTROY_PTAG: u32 = 19;
    /// `vipl_call.function`: VipRegisterMem.
    pub const VIPL_CALL_REGISTER_MEM: u32 = 20;
    /// `vipl_call.function`: VipDeregisterMem.
    pub const VIPL_CALL_DEREGISTER_MEM: u32 = 21;
    /// `vipl_call.function`: VipQueryMem.
    pub const VIPL_CALL_QUERY_MEM: u32 = 22;
    /// `vipl_call.function`: VipSetMemAttributes.
    pub const VIPL_CALL_SET_MEM_ATTRIBUTES: u32 = 23;
    /// `vipl_call.function`: VipPostSend.
    pub const VIPL_CALL_POST_SEND: u32 = 24;
    /// `vipl_call.function`: VipPostRecv.
    pub const VIPL_CALL_POST_RECV: u32 = 25;
    /// `vipl_call.function`: VipSendDone.
    pub const VIPL_CALL_SEND_DONE: u32 = 26;
    /// `vipl_call.function`: VipRecvDone.
    pub const VIPL_CALL_RECV_DONE: u32 = 27;
    /// `vipl_call.function`: VipSendWait.
    pub const VIPL_CALL_SEND_WAIT: u32 = 28;
    /// `vipl_call.function`: VipRecvWait.
    pub const VIPL_CALL_RECV_WAIT: u32 = 29;
    /// `vipl_call.function`: VipSendNotify.
    pub const VIPL_CALL_SEND_NOTIFY: u32 = 30;
    /// `vipl_call.function`: VipRecvNotify.
    pub const VIPL_CALL_RECV_NOTIFY: u32 = 31;
    /// `vipl_call.function`: VipCreateCQ.
    pub const VIPL_CALL_CREATE_CQ: u32 = 32;
    /// `vipl_call.function`: VipDestroyCQ.
    pub const VIPL_CALL_DESTROY_CQ: u32 = 33;
    /// `vipl_call.function`: VipResizeCQ.
    pub const VIPL_CALL_RESIZE_CQ: u32 = 34;
    /// `vipl_call.function`: VipCQDone.
    pub const VIPL_CALL_CQ_DONE: u32 = 35;
    /// `vipl_call.function`: VipCQWait.
    pub const VIPL_CALL_CQ_WAIT: u32 = 36;
    /// `vipl_call.function`: VipCQNotify.
    pub const VIPL_CALL_CQ_NOTIFY: u32 = 37;
    /// `vipl_call.function`: VipErrorCallback.
    pub const VIPL_CALL_ERROR_CALLBACK: u32 = 38;
    /// `vipl_call.function`: VipQuerySystemManagementInfo.
    pub const VIPL_CALL_QUERY_SYSTEM_MANAGEMENT_INFO: u32 = 39;
    /// `vipl_call.function`: VipNSInit.
    pub const VIPL_CALL_NS_INIT: u32 = 40;
    /// `vipl_call.function`: VipNSGetHostByName.
    pub const VIPL_CALL_NS_GET_HOST_BY_NAME: u32 = 41;
    /// `vipl_call.function`: VipNSGetHostByAddr.
    pub const VIPL_CALL_NS_GET_HOST_BY_ADDR: u32 = 42;
    /// `vipl_call.function`: VipNSShutdown.
    pub const VIPL_CALL_NS_SHUTDOWN: u32 = 43;
    /// `vipl_call.function`: vipl_alloc.
    pub const VIPL_CALL_ALLOC: u32 = 44;
    /// `vipl_call.function`: vipl_free.
    pub const VIPL_CALL_FREE: u32 = 45;
    /// `vipl_call.function`: vipl_describe.
    pub const VIPL_CALL_DESCRIBE: u32 = 46;
    /// `vipl_call.function`: vipl_cq_fd.
    pub const VIPL_CALL_CQ_FD: u32 = 47;
    /// `vipl_call.function`: vipl_cq_arm.
    pub const VIPL_CALL_CQ_ARM: u32 = 48;
}
