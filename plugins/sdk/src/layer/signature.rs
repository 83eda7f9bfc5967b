//! The arguments of the functions that layers see, in the order of `vipl_call.arguments`.

use vipl_plugin_abi::*;

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A NIC handle.
    Nic,
    /// A VI handle.
    Vi,
    /// A CQ handle, or NULL.
    Cq,
    /// A protection tag, or NULL.
    Ptag,
    /// A handle of a connection request.
    Connection,
    /// A handle of a memory region.
    Memory,
    /// A number.
    Number,
    /// A time in milliseconds.
    Timeout,
    /// An address in memory of the application, whose content the function does not read.
    Address,
    /// A NUL-terminated text, or NULL.
    Text,
    /// A network address, `VIP_NET_ADDRESS`.
    Net,
    /// `VIP_VI_ATTRIBUTES`.
    ViAttributes,
    /// `VIP_MEM_ATTRIBUTES`, or NULL.
    MemAttributes,
    /// A descriptor to post.
    Descriptor,
    /// A function of the application.
    Handler,
    /// Where the function writes a handle.
    OutHandle,
    /// Where the function writes a memory handle.
    OutMemory,
    /// Where the function writes the address of a descriptor that is complete.
    OutDescriptor,
    /// Where the function writes a number or truth value.
    OutNumber,
    /// Where the function writes something else.
    Out,
}

/// Names and kinds of the arguments of a function; none for an unknown number.
pub fn arguments(function: u32) -> &'static [(&'static str, Argument)] {
    use Argument::*;
    const NIC: (&str, Argument) = ("NicHandle", Nic);
    const VI: (&str, Argument) = ("ViHandle", Vi);
    const CQ: (&str, Argument) = ("CQHandle", Cq);
    const TIMEOUT: (&str, Argument) = ("Timeout", Timeout);
    const OUT_VI: (&str, Argument) = ("ViHandle", OutHandle);
    const RECV: (&str, Argument) = ("RecvQueue", OutNumber);
    const CONTEXT: (&str, Argument) = ("Context", Address);
    const HANDLER: (&str, Argument) = ("Handler", Handler);
    const LOCAL: (&str, Argument) = ("LocalAddr", Net);
    const REMOTE: (&str, Argument) = ("RemoteAddr", Net);
    const PEER: (&str, Argument) = ("RemoteViAttribs", Out);
    const DONE: (&str, Argument) = ("DescriptorPtr", OutDescriptor);
    const MEMORY: (&str, Argument) = ("MemoryHandle", Memory);
    match function {
        VIPL_CALL_OPEN_NIC => &[("DeviceName", Text), ("NicHandle", OutHandle)],
        VIPL_CALL_CLOSE_NIC | VIPL_CALL_NS_SHUTDOWN => &[NIC],
        VIPL_CALL_QUERY_NIC => &[NIC, ("NicAttribs", Out)],
        VIPL_CALL_CREATE_VI => &[
            NIC,
            ("ViAttribs", ViAttributes),
            ("SendCQHandle", Cq),
            ("RecvCQHandle", Cq),
            OUT_VI,
        ],
        VIPL_CALL_DESTROY_VI | VIPL_CALL_DISCONNECT => &[VI],
        VIPL_CALL_QUERY_VI => &[
            VI,
            ("State", OutNumber),
            ("ViAttribs", Out),
            ("ViSendQEmpty", OutNumber),
            ("ViRecvQEmpty", OutNumber),
        ],
        VIPL_CALL_SET_VI_ATTRIBUTES => &[VI, ("ViAttribs", ViAttributes)],
        VIPL_CALL_SET_USER_DATA => &[VI, ("Data", Address)],
        VIPL_CALL_GET_USER_DATA => &[VI, ("Data", Out)],
        VIPL_CALL_CONNECT_WAIT => &[
            NIC,
            LOCAL,
            TIMEOUT,
            ("RemoteAddr", Out),
            PEER,
            ("ConnHandle", OutHandle),
        ],
        VIPL_CALL_CONNECT_ACCEPT => &[("ConnHandle", Connection), VI],
        VIPL_CALL_CONNECT_REJECT => &[("ConnHandle", Connection)],
        VIPL_CALL_CONNECT_REQUEST => &[VI, LOCAL, REMOTE, TIMEOUT, PEER],
        VIPL_CALL_CONNECT_PEER_REQUEST => &[VI, LOCAL, REMOTE, TIMEOUT],
        VIPL_CALL_CONNECT_PEER_DONE | VIPL_CALL_CONNECT_PEER_WAIT => &[VI, PEER],
        VIPL_CALL_CREATE_PTAG => &[NIC, ("Ptag", OutHandle)],
        VIPL_CALL_DESTROY_PTAG => &[NIC, ("Ptag", Ptag)],
        VIPL_CALL_REGISTER_MEM => &[
            NIC,
            ("VirtualAddress", Address),
            ("Length", Number),
            ("MemAttribs", MemAttributes),
            ("MemoryHandle", OutMemory),
        ],
        VIPL_CALL_DEREGISTER_MEM => &[NIC, ("VirtualAddress", Address), MEMORY],
        VIPL_CALL_QUERY_MEM => &[
            NIC,
            ("Address", Address),
            ("MemHandle", Memory),
            ("MemAttribs", Out),
        ],
        VIPL_CALL_SET_MEM_ATTRIBUTES => &[
            NIC,
            ("Address", Address),
            ("MemHandle", Memory),
            ("MemAttribs", MemAttributes),
        ],
        VIPL_CALL_POST_SEND | VIPL_CALL_POST_RECV => &[VI, ("DescriptorPtr", Descriptor), MEMORY],
        VIPL_CALL_SEND_DONE | VIPL_CALL_RECV_DONE => &[VI, DONE],
        VIPL_CALL_SEND_WAIT | VIPL_CALL_RECV_WAIT => &[VI, TIMEOUT, DONE],
        VIPL_CALL_SEND_NOTIFY | VIPL_CALL_RECV_NOTIFY => &[VI, CONTEXT, HANDLER],
        VIPL_CALL_CREATE_CQ => &[NIC, ("EntryCount", Number), ("CQHandle", OutHandle)],
        VIPL_CALL_DESTROY_CQ => &[CQ],
        VIPL_CALL_RESIZE_CQ => &[CQ, ("EntryCount", Number)],
        VIPL_CALL_CQ_DONE => &[CQ, OUT_VI, RECV],
        VIPL_CALL_CQ_WAIT => &[CQ, TIMEOUT, OUT_VI, RECV],
        VIPL_CALL_CQ_NOTIFY => &[CQ, CONTEXT, HANDLER],
        VIPL_CALL_ERROR_CALLBACK => &[NIC, CONTEXT, HANDLER],
        VIPL_CALL_QUERY_SYSTEM_MANAGEMENT_INFO => {
            &[NIC, ("InfoType", Number), ("SysManInfo", Address)]
        }
        VIPL_CALL_NS_INIT => &[NIC, ("NSInitInfo", Text)],
        VIPL_CALL_NS_GET_HOST_BY_NAME => {
            &[NIC, ("Name", Text), ("NameIndex", Number), ("Address", Out)]
        }
        VIPL_CALL_NS_GET_HOST_BY_ADDR => {
            &[NIC, ("Address", Net), ("Name", Out), ("NameLen", OutNumber)]
        }
        VIPL_CALL_ALLOC => &[("Length", Number), ("Address", OutHandle)],
        VIPL_CALL_FREE => &[("Address", Address)],
        VIPL_CALL_CQ_FD => &[CQ, ("Descriptor", OutNumber)],
        VIPL_CALL_CQ_ARM => &[CQ],
        VIPL_CALL_DESCRIBE => &[("Topic", Text), ("Buffer", Address), ("Length", OutNumber)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_arguments_and_its_number() {
        for (place, name) in FUNCTIONS.iter().enumerate() {
            let number = place as u32 + 1;
            assert_eq!(function(name), number);
            assert!(!arguments(number).is_empty(), "{name}");
        }
        for (number, name) in [
            (VIPL_CALL_OPEN_NIC, "VipOpenNic"),
            (VIPL_CALL_POST_SEND, "VipPostSend"),
            (VIPL_CALL_CQ_NOTIFY, "VipCQNotify"),
            (VIPL_CALL_NS_SHUTDOWN, "VipNSShutdown"),
            (VIPL_CALL_DESCRIBE, "vipl_describe"),
            (VIPL_CALL_CQ_ARM, "vipl_cq_arm"),
        ] {
            assert_eq!(FUNCTIONS[number as usize - 1], name);
        }
    }
}
