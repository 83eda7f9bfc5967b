//! The side channel of two processes that measure together: one JSON document at a time.
//!
//! With `--self` it is a socket; else it is a VI of its own, so that nothing but VIPL is needed between
//! the two. The traffic is strictly question and answer, so that a few posted receives are enough.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::Value;

use crate::endpoint::Endpoint;
use crate::error::PATIENCE_S;
use crate::{Error, Result};

/// Sends and receives documents.
pub trait Control {
    /// Sends one.
    ///
    /// # Errors
    /// The peer has exited.
    fn send(&mut self, value: &Value) -> Result<()>;

    /// Waits for the next one; None when the peer has exited in order.
    ///
    /// # Errors
    /// The connection broke, or what came is not a document.
    fn receive(&mut self) -> Result<Option<Value>>;
}

/// Over a socket pair.
pub struct SocketControl {
    reader: BufReader<UnixStream>,
}

impl SocketControl {
    /// Over one end of a pair; `patient` waits forever.
    ///
    /// # Errors
    /// The socket cannot be set up.
    pub fn new(socket: UnixStream, patient: bool) -> Result<Self> {
        let limit = (!patient).then(|| Duration::from_secs(3 * PATIENCE_S));
        socket
            .set_read_timeout(limit)
            .map_err(|error| Error::io("control socket", error))?;
        Ok(Self {
            reader: BufReader::new(socket),
        })
    }
}

impl Control for SocketControl {
    fn send(&mut self, value: &Value) -> Result<()> {
        let line = format!("{value}\n");
        let sent = self.reader.get_mut().write_all(line.as_bytes());
        sent.map_err(|error| Error::io("sending to the peer", error))
    }

    fn receive(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => parse(line.as_bytes()).map(Some),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(Error::Silence("waiting for the peer's answer"))
            }
            Err(error) => Err(Error::io("receiving from the peer", error)),
        }
    }
}

/// Over a VI.
pub struct ViControl {
    endpoint: Endpoint,
    sent: usize,
    received: usize,
    patience: Patience,
}

/// Time limits for documents of the other side.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the first one.
    pub first: Duration,
    /// For each that follows.
    pub next: Duration,
}

impl Patience {
    /// That of a client: an answer comes at once, or after a test that has failed.
    pub const CLIENT: Self = Self {
        first: Duration::from_secs(3 * PATIENCE_S),
        next: Duration::from_secs(3 * PATIENCE_S),
    };
    /// That of a server: a client says at once what it wants, and may measure something by itself later.
    pub const SERVER: Self = Self {
        first: Duration::from_secs(5),
        next: Duration::from_secs(600),
    };
}

/// Bytes of the longest document.
pub const DOCUMENT_MAX: usize = 16 * 1024;

impl ViControl {
    /// Over a connected endpoint with separate buffers of `DOCUMENT_MAX` bytes.
    #[must_use]
    pub fn new(endpoint: Endpoint, patience: Patience) -> Self {
        Self {
            endpoint,
            sent: 0,
            received: 0,
            patience,
        }
    }
}

impl Control for ViControl {
    fn send(&mut self, value: &Value) -> Result<()> {
        let text = value.to_string();
        if text.len() > DOCUMENT_MAX {
            return Err(Error::Usage(
                "a document for the peer is too long".to_owned(),
            ));
        }
        let endpoint = &self.endpoint;
        let index = self.sent % endpoint.sends.len();
        let offset = endpoint.send_offsets[index];
        endpoint.region.write(offset, text.as_bytes());
        endpoint.sends[index].set_send(endpoint.region.span(offset, text.len()));
        endpoint.vi.post_send(endpoint.sends[index])?;
        self.sent += 1;
        let done = endpoint.vi.send_wait(PATIENCE_S * 1000)?;
        done.map(|_| ())
            .ok_or(Error::Silence("sending to the peer"))
    }

    fn receive(&mut self) -> Result<Option<Value>> {
        let endpoint = &self.endpoint;
        let patience = match self.received {
            0 => self.patience.first,
            _ => self.patience.next,
        };
        let came = endpoint.vi.receive_wait(patience.as_millis() as u64)?;
        let descriptor = came
            .ok_or_else(|| Error::Peer(format!("has said nothing for {} s", patience.as_secs())))?;
        let offset = endpoint.receive_offsets[self.received % endpoint.receives.len()];
        self.received += 1;
        let mut bytes = vec![0; (descriptor.length() as usize).min(DOCUMENT_MAX)];
        endpoint.region.read(offset, &mut bytes);
        endpoint.vi.post_receive(descriptor)?;
        parse(&bytes).map(Some)
    }
}

/// Reads a document.
///
/// # Errors
/// It is none.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|error| Error::Peer(format!("invalid message: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documents_go_both_ways_over_a_socket_until_it_ends() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut one = SocketControl::new(one, false).unwrap();
        let mut other = SocketControl::new(other, true).unwrap();
        one.send(&json!({"op": "x", "text": "two\nlines"})).unwrap();
        assert_eq!(
            other.receive().unwrap(),
            Some(json!({"op": "x", "text": "two\nlines"}))
        );
        other.send(&json!({})).unwrap();
        assert_eq!(one.receive().unwrap(), Some(json!({})));
        drop(one);
        assert_eq!(other.receive().unwrap(), None);
    }

    #[test]
    fn what_is_no_document_is_refused() {
        assert!(parse(b"{\"op\":").is_err());
    }
}
