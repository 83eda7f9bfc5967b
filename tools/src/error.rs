//! What can go wrong in a tool, and the names of the library's codes.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};

use vipl_abi as abi;
use vipl_sys::text::one_line;

/// Result of everything that can fail in the tools.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something failed. Its text is what the user reads.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No library could be opened; the text lists what was tried.
    Load(String),
    /// A function of the library returned another code than VIP_SUCCESS.
    Call {
        /// The function.
        function: &'static str,
        /// What it returned.
        code: i32,
        /// What it was called for.
        context: String,
    },
    /// A descriptor completed with an error.
    Descriptor {
        /// The function that gave it back.
        function: &'static str,
        /// Its status word.
        status: u32,
    },
    /// A system call or file failed.
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Nothing came for too long.
    Silence(&'static str),
    /// The partner process reported this.
    Partner(String),
    /// The partner process has asked for something that it does not get.
    Refused(String),
    /// The options do not go together, or the device cannot do what was asked.
    Usage(String),
    /// Received data differs from what was sent.
    Corrupt(String),
}

impl Error {
    /// A call that failed, without further context.
    #[cold]
    pub fn call(function: &'static str, code: i32) -> Self {
        Self::Call {
            function,
            code,
            context: String::new(),
        }
    }

    /// A failed system call or file access.
    #[cold]
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }

    /// Adds what the call was for.
    #[must_use]
    pub fn context(self, text: impl Into<String>) -> Self {
        match self {
            Self::Call { function, code, .. } => Self::Call {
                function,
                code,
                context: text.into(),
            },
            other => other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(tried) => write!(f, "no VIPL library found\n{tried}"),
            Self::Call {
                function,
                code,
                context,
            } => {
                write!(f, "{function}")?;
                if !context.is_empty() {
                    write!(f, " ({context})")?;
                }
                write!(f, " returned {}", return_name(*code))
            }
            Self::Descriptor { function, status } => {
                let (bits, operation) = (status_bits(*status), operation(*status));
                write!(
                    f,
                    "{function} returned a {operation} descriptor with {bits}"
                )?;
                match LAST_ASYNC.load(Ordering::Relaxed) {
                    NO_ASYNC => Ok(()),
                    code => write!(f, "; last asynchronous error: {}", async_name(code)),
                }
            }
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Silence(what) => write!(f, "timed out after {PATIENCE_S} s while {what}"),
            Self::Partner(text) => write!(f, "peer: {}", one_line(text)),
            Self::Refused(text) => write!(f, "refused: {}", one_line(text)),
            Self::Usage(text) | Self::Corrupt(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// Seconds that a tool waits for something that should come at once.
pub const PATIENCE_S: u64 = 20;

const NO_ASYNC: i32 = -1;
static LAST_ASYNC: AtomicI32 = AtomicI32::new(NO_ASYNC);

/// Remembers an asynchronous error, to be told with the failure that it explains. Any thread.
pub fn note_async(code: i32) {
    LAST_ASYNC.store(code, Ordering::Relaxed);
}

/// Name of a return code.
#[must_use]
pub fn return_name(code: i32) -> String {
    const NAMES: [&str; 17] = [
        "VIP_SUCCESS",
        "VIP_NOT_DONE",
        "VIP_INVALID_PARAMETER",
        "VIP_ERROR_RESOURCE",
        "VIP_TIMEOUT",
        "VIP_REJECT",
        "VIP_INVALID_RELIABILITY_LEVEL",
        "VIP_INVALID_MTU",
        "VIP_INVALID_QOS",
        "VIP_INVALID_PTAG",
        "VIP_INVALID_RDMAREAD",
        "VIP_DESCRIPTOR_ERROR",
        "VIP_INVALID_STATE",
        "VIP_ERROR_NAMESERVICE",
        "VIP_NO_MATCH",
        "VIP_NOT_REACHABLE",
        "VIP_ERROR_NOT_SUPPORTED",
    ];
    name_of(&NAMES, code)
}

fn async_name(code: i32) -> String {
    const NAMES: [&str; 11] = [
        "VIP_ERROR_POST_DESC",
        "VIP_ERROR_CONN_LOST",
        "VIP_ERROR_RECVQ_EMPTY",
        "VIP_ERROR_VI_OVERRUN",
        "VIP_ERROR_RDMAW_PROT",
        "VIP_ERROR_RDMAW_DATA",
        "VIP_ERROR_RDMAW_ABORT",
        "VIP_ERROR_RDMAR_PROT",
        "VIP_ERROR_COMP_PROT",
        "VIP_ERROR_RDMA_TRANSPORT",
        "VIP_ERROR_CATASTROPHIC",
    ];
    name_of(&NAMES, code)
}

fn name_of(names: &[&str], code: i32) -> String {
    let name = usize::try_from(code)
        .ok()
        .and_then(|index| names.get(index));
    name.map_or_else(|| format!("unknown code {code}"), ToString::to_string)
}

fn status_bits(status: u32) -> String {
    const BITS: [(u32, &str); 8] = [
        (abi::VIP_STATUS_FORMAT_ERROR, "FORMAT_ERROR"),
        (abi::VIP_STATUS_PROTECTION_ERROR, "PROTECTION_ERROR"),
        (abi::VIP_STATUS_LENGTH_ERROR, "LENGTH_ERROR"),
        (abi::VIP_STATUS_PARTIAL_ERROR, "PARTIAL_ERROR"),
        (abi::VIP_STATUS_DESC_FLUSHED_ERROR, "DESC_FLUSHED_ERROR"),
        (abi::VIP_STATUS_TRANSPORT_ERROR, "TRANSPORT_ERROR"),
        (abi::VIP_STATUS_RDMA_PROT_ERROR, "RDMA_PROT_ERROR"),
        (abi::VIP_STATUS_REMOTE_DESC_ERROR, "REMOTE_DESC_ERROR"),
    ];
    let names: Vec<&str> = BITS
        .iter()
        .filter(|(bit, _)| status & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    if names.is_empty() {
        format!("status {status:#x}")
    } else {
        names.join("+")
    }
}

fn operation(status: u32) -> &'static str {
    match status & abi::VIP_STATUS_OP_MASK {
        abi::VIP_STATUS_OP_SEND => "send",
        abi::VIP_STATUS_OP_RECEIVE => "receive",
        abi::VIP_STATUS_OP_RDMA_WRITE => "RDMA Write",
        abi::VIP_STATUS_OP_REMOTE_RDMA_WRITE => "remote RDMA Write",
        abi::VIP_STATUS_OP_RDMA_READ => "RDMA Read",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_of_the_header() {
        assert_eq!(
            return_name(abi::VIP_RETURN::VIP_SUCCESS as i32),
            "VIP_SUCCESS"
        );
        assert_eq!(
            return_name(abi::VIP_RETURN::VIP_NO_MATCH as i32),
            "VIP_NO_MATCH"
        );
        let last = abi::VIP_RETURN::VIP_ERROR_NOT_SUPPORTED as i32;
        assert_eq!(return_name(last), "VIP_ERROR_NOT_SUPPORTED");
        assert_eq!(return_name(last + 1), "unknown code 17");
        assert_eq!(return_name(-1), "unknown code -1");
    }

    #[test]
    fn a_failed_descriptor_names_its_bits() {
        let status = abi::VIP_STATUS_DONE
            | abi::VIP_STATUS_OP_RECEIVE
            | abi::VIP_STATUS_PARTIAL_ERROR
            | abi::VIP_STATUS_TRANSPORT_ERROR;
        let text = Error::Descriptor {
            function: "VipRecvDone",
            status,
        }
        .to_string();
        assert!(
            text.contains("receive descriptor with PARTIAL_ERROR+TRANSPORT_ERROR"),
            "{text}"
        );
    }

    #[test]
    fn a_peer_commands_no_terminal_and_forges_no_line() {
        let text = Error::Partner("gone\r\n\x1b]0;title\x07".to_owned()).to_string();
        assert_eq!(text, "peer: gone\\r\\n\\u001b]0;title\\u0007");
    }

    #[test]
    fn context_is_shown_with_the_call() {
        let text = Error::call("VipOpenNic", 2).context("/dev/x").to_string();
        assert_eq!(text, "VipOpenNic (/dev/x) returned VIP_INVALID_PARAMETER");
    }
}
