//! What can go wrong in a tool.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Mutex;

use vipl_client::{AsyncCode, Code, Error as VipError};
use vipl_sys::text::one_line;

/// Result of everything that can fail in the tools.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something failed. Its text is what the user reads.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The library could not be opened, a function failed, or a descriptor completed with an error.
    Vipl(VipError),
    /// A system call or file failed.
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Nothing arrived in time.
    Silence(&'static str),
    /// The peer process reported this.
    Peer(String),
    /// The peer process requested something that is refused.
    Refused(String),
    /// The options do not go together, or the device cannot do what was asked.
    Usage(String),
    /// Received data differs from what was sent.
    Corrupt(String),
}

impl Error {
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
            Self::Vipl(error) => Self::Vipl(error.context(text)),
            other => other,
        }
    }

    /// The code, if a function of the library returned it.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Vipl(error) => error.code(),
            _ => None,
        }
    }
}

impl From<VipError> for Error {
    fn from(error: VipError) -> Self {
        Self::Vipl(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vipl(error @ VipError::Completion { .. }) => {
                write!(f, "{error}")?;
                match *last_async() {
                    None => Ok(()),
                    Some(code) => write!(f, "; last asynchronous error: {}", code.name()),
                }
            }
            Self::Vipl(error) => write!(f, "{error}"),
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Silence(what) => write!(f, "timed out after {PATIENCE_S} s while {what}"),
            Self::Peer(text) => write!(f, "peer: {}", one_line(text)),
            Self::Refused(text) => write!(f, "refused: {}", one_line(text)),
            Self::Usage(text) | Self::Corrupt(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// Seconds that a tool waits for something that should come at once.
pub const PATIENCE_S: u64 = 20;

static LAST_ASYNC: Mutex<Option<AsyncCode>> = Mutex::new(None);

fn last_async() -> std::sync::MutexGuard<'static, Option<AsyncCode>> {
    LAST_ASYNC
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Stores an asynchronous error, which is shown with the failure that it explains. Any thread.
pub fn note_async(code: AsyncCode) {
    *last_async() = Some(code);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_commands_no_terminal_and_forges_no_line() {
        let text = Error::Peer("gone\r\n\x1b]0;title\x07".to_owned()).to_string();
        assert_eq!(text, "peer: gone\\r\\n\\u001b]0;title\\u0007");
    }

    #[test]
    fn context_is_shown_with_the_call() {
        let error = Error::from(VipError::call("VipOpenNic", 2)).context("/dev/x");
        let text = "VipOpenNic (/dev/x) returned VIP_INVALID_PARAMETER";
        assert_eq!(error.to_string(), text);
    }
}
