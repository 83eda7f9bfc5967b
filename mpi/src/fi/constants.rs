//! Constants of libfabric's headers. Only those that the provider uses.

pub(crate) const FI_MSG: u64 = 1 << 1;
pub(crate) const FI_RMA: u64 = 1 << 2;
pub(crate) const FI_TAGGED: u64 = 1 << 3;
pub(crate) const FI_READ: u64 = 1 << 8;
pub(crate) const FI_WRITE: u64 = 1 << 9;
pub(crate) const FI_RECV: u64 = 1 << 10;
pub(crate) const FI_SEND: u64 = 1 << 11;
pub(crate) const FI_TRANSMIT: u64 = FI_SEND;
pub(crate) const FI_REMOTE_READ: u64 = 1 << 12;
pub(crate) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const FI_PEEK: u64 = 1 << 19;
pub(crate) const FI_COMPLETION: u64 = 1 << 24;
pub(crate) const FI_INJECT: u64 = 1 << 25;
pub(crate) const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub(crate) const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
#[cfg(test)]
pub(crate) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const FI_LOCAL_COMM: u64 = 1 << 51;
pub(crate) const FI_REMOTE_COMM: u64 = 1 << 52;
/// Of receives: the message that was claimed; of probes: to claim, or to drop, what is found.
pub(crate) const FI_CLAIM: u64 = 1 << 59;
pub(crate) const FI_DISCARD: u64 = 1 << 58;
pub(crate) const FI_DIRECTED_RECV: u64 = 1 << 59;
pub(crate) const FI_SOURCE: u64 = 1 << 57;
/// Flag of a binding: only operations that request it complete to the queue.
pub(crate) const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

pub(crate) const FI_FORMAT_UNSPEC: u32 = 0;
pub(crate) const FI_SOCKADDR: u32 = 1;
pub(crate) const FI_SOCKADDR_IN6: u32 = 3;
pub(crate) const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
pub(crate) const FI_ADDR_UNSPEC: u64 = u64::MAX;
pub(crate) const FI_SHARED_CONTEXT: usize = usize::MAX;

pub(crate) const FI_MR_BASIC: i32 = 1;
/// Of interfaces before 1.5: any memory, and keys of the program's choice.
pub(crate) const FI_MR_SCALABLE: i32 = 2;
pub(crate) const FI_MR_LOCAL: i32 = 1 << 2;
pub(crate) const FI_MR_VIRT_ADDR: i32 = 1 << 4;
pub(crate) const FI_MR_ALLOCATED: i32 = 1 << 5;
pub(crate) const FI_MR_PROV_KEY: i32 = 1 << 6;
/// Mode bit of interfaces before 1.5, their form of FI_MR_LOCAL.
pub(crate) const FI_LOCAL_MR: u64 = 1 << 55;

pub(crate) const FI_PROGRESS_AUTO: i32 = 1;
pub(crate) const FI_PROGRESS_MANUAL: i32 = 2;
pub(crate) const FI_THREAD_SAFE: i32 = 1;
pub(crate) const FI_RM_ENABLED: i32 = 2;
pub(crate) const FI_AV_UNSPEC: i32 = 0;
pub(crate) const FI_EP_UNSPEC: i32 = 0;
pub(crate) const FI_AV_TABLE: i32 = 2;
pub(crate) const FI_EP_MSG: i32 = 1;
pub(crate) const FI_EP_RDM: i32 = 3;

/// All nine orders of FI_ORDER_STRICT: read, write and send after each other.
pub(crate) const FI_ORDER_STRICT: u64 = 0x1FF;
pub(crate) const FI_ORDER_WAR: u64 = 1 << 3;
pub(crate) const FI_ORDER_SAR: u64 = 1 << 6;
/// Sends after sends.
pub(crate) const FI_ORDER_SAS: u64 = 1 << 8;
/// The orders of RMA operations among themselves.
pub(crate) const FI_ORDER_RMA: u64 = 0xF << 32;
pub(crate) const FI_ORDER_RMA_WAR: u64 = 1 << 34;

pub(crate) const FI_CLASS_FABRIC: usize = 1;
pub(crate) const FI_CLASS_DOMAIN: usize = 2;
pub(crate) const FI_CLASS_EP: usize = 3;
pub(crate) const FI_CLASS_PEP: usize = 9;
pub(crate) const FI_CLASS_AV: usize = 11;
pub(crate) const FI_CLASS_MR: usize = 12;
pub(crate) const FI_CLASS_EQ: usize = 13;
pub(crate) const FI_CLASS_CQ: usize = 14;
pub(crate) const FI_CLASS_CONNREQ: usize = 18;

pub(crate) const FI_GETWAIT: i32 = 5;
pub(crate) const FI_ENABLE: i32 = 6;
pub(crate) const FI_GETWAITOBJ: i32 = 16;
pub(crate) const FI_OPT_ENDPOINT: i32 = 0;
pub(crate) const FI_OPT_CM_DATA_SIZE: i32 = 1;

pub(crate) const FI_WAIT_NONE: i32 = 0;
pub(crate) const FI_WAIT_UNSPEC: i32 = 1;
pub(crate) const FI_WAIT_FD: i32 = 3;

pub(crate) const FI_CQ_FORMAT_UNSPEC: i32 = 0;
pub(crate) const FI_CQ_FORMAT_CONTEXT: i32 = 1;
pub(crate) const FI_CQ_FORMAT_MSG: i32 = 2;
pub(crate) const FI_CQ_FORMAT_DATA: i32 = 3;
pub(crate) const FI_CQ_FORMAT_TAGGED: i32 = 4;

pub(crate) const FI_NOTIFY: u32 = 0;
pub(crate) const FI_CONNREQ: u32 = 1;
pub(crate) const FI_CONNECTED: u32 = 2;
pub(crate) const FI_SHUTDOWN: u32 = 3;

pub(crate) const FI_PARAM_STRING: i32 = 0;
pub(crate) const FI_PARAM_INT: i32 = 1;
pub(crate) const FI_PARAM_SIZE_T: i32 = 3;

pub(crate) const FI_LOG_WARN: i32 = 0;
pub(crate) const FI_LOG_INFO: i32 = 2;
pub(crate) const FI_LOG_EP_CTRL: i32 = 3;

/// Errors beyond those of the C library.
pub(crate) const FI_EOTHER: i32 = 256;
pub(crate) const FI_ETOOSMALL: i32 = 257;
pub(crate) const FI_EOPBADSTATE: i32 = 258;
pub(crate) const FI_EAVAIL: i32 = 259;
pub(crate) const FI_ENOEQ: i32 = 261;
pub(crate) const FI_ENOCQ: i32 = 263;
pub(crate) const FI_ETRUNC: i32 = 265;
pub(crate) const FI_ENOKEY: i32 = 266;
