//! What can fail, and the names of all codes.

use std::ffi::c_int;
use std::fmt;

use crate::status::Status;

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No library could be opened; the text lists what was tried.
    #[error("no VIPL library found\n{0}")]
    NotFound(String),
    /// A function of the library returned another code than VIP_SUCCESS. Its meaning, with advice, is the
    /// [source](std::error::Error::source); the library's log has details.
    #[error("{function}{} returned {}", in_parentheses(.context), .code.name())]
    Call {
        /// The function.
        function: &'static str,
        /// What it returned.
        #[source]
        code: Code,
        /// What it was called for, or nothing.
        context: String,
    },
    /// A descriptor completed with an error.
    #[error("{function} returned a {} descriptor with {status}", status.operation())]
    Completion {
        /// The function that returned it.
        function: &'static str,
        /// Its status.
        status: Status,
    },
    /// This library lacks a function that VIPL 1.0 does not demand of all.
    #[error("{0} is not in this VIPL library")]
    Missing(&'static str),
    /// The NIC is not thread-safe: see [`Nic::open_unsynchronized`](crate::Nic::open_unsynchronized).
    #[error("{0} is not thread-safe")]
    NotThreadSafe(String),
    /// A name with a NUL byte.
    #[error("a {0} name cannot contain NUL")]
    Nul(&'static str),
    /// The system has no memory.
    #[error("mapping memory: {0}")]
    Memory(#[source] std::io::Error),
}

impl Error {
    /// A call that failed.
    #[cold]
    #[must_use]
    pub fn call(function: &'static str, code: c_int) -> Self {
        Self::Call {
            function,
            code: Code::from(code),
            context: String::new(),
        }
    }

    /// Adds what a call was for.
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

    /// The code, if a function of the library returned it.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Call { code, .. } => Some(*code),
            _ => None,
        }
    }
}

fn in_parentheses(context: &str) -> String {
    match context {
        "" => String::new(),
        context => format!(" ({context})"),
    }
}

/// Fails unless a function returned VIP_SUCCESS.
#[inline]
pub(crate) fn check(function: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::call(function, code)),
    }
}

/// An error that gives back what was to be used up by the call.
#[derive(Debug)]
pub struct Returned<T> {
    /// Why the call failed.
    pub error: Error,
    /// What it was called with.
    pub value: T,
}

impl<T> fmt::Display for Returned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for Returned<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<Returned<T>> for Error {
    fn from(returned: Returned<T>) -> Self {
        returned.error
    }
}

macro_rules! codes {
    ($(#[$about:meta])* $name:ident { $($variant:ident = $number:literal $text:literal $meaning:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`: ", $meaning, ".")] $variant,)*
            /// A code that VIPL 1.0 does not have.
            Unknown(i32),
        }

        impl From<c_int> for $name {
            fn from(code: c_int) -> Self {
                match code {
                    $($number => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }
        }

        impl $name {
            /// The name in the header.
            #[must_use]
            pub fn name(self) -> String {
                match self {
                    $(Self::$variant => $text.to_owned(),)*
                    Self::Unknown(code) => format!("unknown code {code}"),
                }
            }
        }

        /// The meaning.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($meaning),)*
                    Self::Unknown(code) => write!(f, "unknown code {code}"),
                }
            }
        }

        impl std::error::Error for $name {}
    };
}

codes! {
    /// A VIP_RETURN (spec §2.8).
    Code {
        Success = 0 "VIP_SUCCESS" "done";
        NotDone = 1 "VIP_NOT_DONE" "nothing has completed yet";
        InvalidParameter = 2 "VIP_INVALID_PARAMETER" "an argument is wrong; the log names it";
        Resource = 3 "VIP_ERROR_RESOURCE"
            "a limit is reached, something is in use, or a permission is lacking; the log names it";
        Timeout = 4 "VIP_TIMEOUT" "the time is up";
        Reject = 5 "VIP_REJECT" "the peer refused the connection";
        InvalidReliabilityLevel = 6 "VIP_INVALID_RELIABILITY_LEVEL"
            "the NIC lacks this reliability level, or the peer's VI has another one";
        InvalidMtu = 7 "VIP_INVALID_MTU"
            "the largest message is above the NIC's limit, or the peer's VI has another one";
        InvalidQos = 8 "VIP_INVALID_QOS" "the NIC lacks this quality of service";
        InvalidPtag = 9 "VIP_INVALID_PTAG" "the protection tag is none of this NIC handle";
        InvalidRdmaRead = 10 "VIP_INVALID_RDMAREAD"
            "the NIC has no RDMA Read at this reliability level";
        DescriptorError = 11 "VIP_DESCRIPTOR_ERROR"
            "a descriptor completed with an error, or the queue is empty";
        InvalidState = 12 "VIP_INVALID_STATE" "the state of the VI does not permit this call";
        NameService = 13 "VIP_ERROR_NAMESERVICE" "the name service does not know the name or address";
        NoMatch = 14 "VIP_NO_MATCH"
            "no server waits at this address and discriminator; start it first, or try again";
        NotReachable = 15 "VIP_NOT_REACHABLE"
            "there is no way to the peer's host, or no Kernel Agent runs there";
        NotSupported = 16 "VIP_ERROR_NOT_SUPPORTED" "the plug-in cannot do this";
    }
}

codes! {
    /// A VIP_ERROR_CODE: what an asynchronous error reports (spec §6.4).
    AsyncCode {
        PostDescriptor = 0 "VIP_ERROR_POST_DESC"
            "a posted descriptor is misaligned or not in registered memory";
        ConnectionLost = 1 "VIP_ERROR_CONN_LOST" "the connection is lost";
        ReceiveQueueEmpty = 2 "VIP_ERROR_RECVQ_EMPTY"
            "a message arrived, and no receive descriptor was posted";
        Overrun = 3 "VIP_ERROR_VI_OVERRUN" "more descriptors were posted than a queue can hold";
        RdmaWriteProtection = 4 "VIP_ERROR_RDMAW_PROT"
            "an RDMA Write of the peer was not permitted here";
        RdmaWriteData = 5 "VIP_ERROR_RDMAW_DATA"
            "an RDMA Write of the peer arrived with damaged data";
        RdmaWriteAbort = 6 "VIP_ERROR_RDMAW_ABORT" "an RDMA Write of the peer was incomplete";
        RdmaReadProtection = 7 "VIP_ERROR_RDMAR_PROT"
            "an RDMA Read of the peer was not permitted here";
        CompletionProtection = 8 "VIP_ERROR_COMP_PROT"
            "the result of a descriptor could not be written to its memory";
        RdmaTransport = 9 "VIP_ERROR_RDMA_TRANSPORT" "the network lost RDMA of the peer";
        Catastrophic = 10 "VIP_ERROR_CATASTROPHIC" "the NIC failed";
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use vipl_abi::{VIP_ERROR_CODE, VIP_RETURN};

    use super::*;

    #[test]
    fn codes_have_the_names_of_the_header() {
        let last = VIP_RETURN::VIP_ERROR_NOT_SUPPORTED as i32;
        let names: Vec<String> = (0..=last).map(|code| Code::from(code).name()).collect();
        assert_eq!(names[0], format!("{:?}", VIP_RETURN::VIP_SUCCESS));
        let no_match = VIP_RETURN::VIP_NO_MATCH;
        assert_eq!(names[no_match as usize], format!("{no_match:?}"));
        assert_eq!(names[16], "VIP_ERROR_NOT_SUPPORTED");
        assert_eq!(Code::from(last + 1).name(), "unknown code 17");
        assert_eq!(Code::from(-1).name(), "unknown code -1");
        let failed = VIP_ERROR_CODE::VIP_ERROR_CATASTROPHIC;
        assert_eq!(AsyncCode::from(failed as i32).name(), format!("{failed:?}"));
        assert_eq!(AsyncCode::from(11).name(), "unknown code 11");
    }

    #[test]
    fn a_failed_call_shows_its_context_and_its_meaning() {
        let error = Error::call("VipOpenNic", 2).context("/dev/x");
        assert_eq!(
            error.to_string(),
            "VipOpenNic (/dev/x) returned VIP_INVALID_PARAMETER"
        );
        let source = error.source().unwrap().to_string();
        assert_eq!(source, "an argument is wrong; the log names it");
        assert_eq!(
            Error::call("VipCQDone", 2).to_string(),
            "VipCQDone returned VIP_INVALID_PARAMETER"
        );
    }
}
