//! Descriptions of the codes of VIPL (`vipl_strerror` and similar functions).

use std::ffi::{CStr, c_int};

use crate::text;

/// Name and meaning of a VIP_RETURN (spec §2.8).
pub fn of_return(code: c_int) -> &'static CStr {
    const MEANINGS: [&CStr; 17] = [
        c"VIP_SUCCESS: done",
        c"VIP_NOT_DONE: nothing has completed yet",
        c"VIP_INVALID_PARAMETER: an argument is wrong; the log says which",
        c"VIP_ERROR_RESOURCE: a limit is reached, something is in use, or a permission is lacking; the log says what",
        c"VIP_TIMEOUT: the time is up",
        c"VIP_REJECT: the peer has refused the connection",
        c"VIP_INVALID_RELIABILITY_LEVEL: the NIC lacks this reliability level, or the peer's VI has another one",
        c"VIP_INVALID_MTU: MaxTransferSize is above what the NIC can do",
        c"VIP_INVALID_QOS: the NIC lacks this quality of service",
        c"VIP_INVALID_PTAG: the protection tag is none of this NIC handle",
        c"VIP_INVALID_RDMAREAD: the NIC has no RDMA Read at this reliability level",
        c"VIP_DESCRIPTOR_ERROR: a descriptor has completed with an error, or the queue is empty",
        c"VIP_INVALID_STATE: the VI is in a state that does not permit this call",
        c"VIP_ERROR_NAMESERVICE: the name or the address is unknown, or the name service is not initialized",
        c"VIP_NO_MATCH: no process waits for a connection at this address and discriminator",
        c"VIP_NOT_REACHABLE: there is no way to the peer's host, or no Kernel Agent there",
        c"VIP_ERROR_NOT_SUPPORTED: the plug-in cannot do this",
    ];
    at(&MEANINGS, code, c"no code of VIP_RETURN")
}

/// Name and meaning of a VIP_ERROR_CODE, passed to the error callback (spec §2.8, §6.4).
pub fn of_error(code: c_int) -> &'static CStr {
    const MEANINGS: [&CStr; 11] = [
        c"VIP_ERROR_POST_DESC: a descriptor that was to be posted is misaligned or not in registered memory",
        c"VIP_ERROR_CONN_LOST: the connection is lost",
        c"VIP_ERROR_RECVQ_EMPTY: a message came, and no receive descriptor was posted",
        c"VIP_ERROR_VI_OVERRUN: more descriptors were posted than a queue can hold",
        c"VIP_ERROR_RDMAW_PROT: an RDMA Write of the peer was not permitted here",
        c"VIP_ERROR_RDMAW_DATA: an RDMA Write of the peer arrived with damaged data",
        c"VIP_ERROR_RDMAW_ABORT: an RDMA Write of the peer ended before all of it was here",
        c"VIP_ERROR_RDMAR_PROT: an RDMA Read of the peer was not permitted here",
        c"VIP_ERROR_COMP_PROT: the result of a descriptor could not be written to its memory",
        c"VIP_ERROR_RDMA_TRANSPORT: the network lost RDMA of the peer",
        c"VIP_ERROR_CATASTROPHIC: the NIC has failed",
    ];
    at(&MEANINGS, code, c"no code of VIP_ERROR_CODE")
}

/// Name of a VIP_VI_STATE (spec §4.1).
pub fn of_state(state: c_int) -> &'static CStr {
    const NAMES: [&CStr; 4] = [
        c"VIP_STATE_IDLE",
        c"VIP_STATE_CONNECTED",
        c"VIP_STATE_CONNECT_PENDING",
        c"VIP_STATE_ERROR",
    ];
    at(&NAMES, state, c"no state of a VI")
}

/// The bits of a descriptor's Status: `DONE|LENGTH_ERROR|OP_RECEIVE` (spec §5.8).
pub fn of_status(status: u32) -> String {
    text::status(status)
}

fn at(texts: &[&'static CStr], code: c_int, otherwise: &'static CStr) -> &'static CStr {
    let found = usize::try_from(code).ok().and_then(|code| texts.get(code));
    found.copied().unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use vipl_abi::*;

    use super::*;

    fn name(text: &CStr) -> &str {
        let text = text.to_str().unwrap();
        text.split_once(':').map_or(text, |(name, _)| name)
    }

    #[test]
    fn names_are_those_of_the_header() {
        for code in [
            VIP_RETURN::VIP_SUCCESS,
            VIP_RETURN::VIP_TIMEOUT,
            VIP_RETURN::VIP_INVALID_PTAG,
            VIP_RETURN::VIP_DESCRIPTOR_ERROR,
            VIP_RETURN::VIP_ERROR_NOT_SUPPORTED,
        ] {
            assert_eq!(name(of_return(code as c_int)), format!("{code:?}"));
        }
        for code in [
            VIP_ERROR_CODE::VIP_ERROR_POST_DESC,
            VIP_ERROR_CODE::VIP_ERROR_RDMAW_DATA,
            VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT,
            VIP_ERROR_CODE::VIP_ERROR_CATASTROPHIC,
        ] {
            assert_eq!(name(of_error(code as c_int)), format!("{code:?}"));
        }
        for state in [VIP_VI_STATE::VIP_STATE_IDLE, VIP_VI_STATE::VIP_STATE_ERROR] {
            assert_eq!(name(of_state(state as c_int)), format!("{state:?}"));
        }
    }

    /// The header and the manual say the same, and more.
    #[test]
    fn texts_are_those_of_the_declarations() {
        let source = include_str!("../../../base/abi/src/enums.rs");
        let mut comment = String::new();
        let mut count = 0;
        for line in source.lines().map(str::trim) {
            if let Some(text) = line.strip_prefix("///") {
                comment += text;
                continue;
            }
            let declared = line.split_once(" = ");
            let number = declared.and_then(|(_, n)| n.strip_suffix(',')?.parse().ok());
            if let Some(number) = number {
                for text in [of_return(number), of_error(number)] {
                    let (known, text) = text.to_str().unwrap().split_once(": ").unwrap_or_default();
                    if line.starts_with(&format!("{known} ")) {
                        let comment = comment.trim().to_lowercase();
                        assert!(
                            comment.starts_with(&format!("{}.", text.to_lowercase())),
                            "{known}"
                        );
                        count += 1;
                    }
                }
            }
            comment.clear();
        }
        assert_eq!(count, 17 + 11);
    }

    #[test]
    fn other_numbers_are_said_to_be_none() {
        for number in [-1, 17, c_int::MAX, c_int::MIN] {
            for text in [of_return(number), of_error(number), of_state(number)] {
                assert!(text.to_str().unwrap().starts_with("no "), "{number}");
            }
        }
    }
}
