//! TCP between the two processes, as fast as it goes: no delay, and both sides spin.

#![forbid(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::time::Duration;

use vipl_tools::error::PATIENCE_S;
use vipl_tools::patience::Patience;
use vipl_tools::rendezvous::Side;
use vipl_tools::{Error, Result};

use vipl_tools::blocks::median_turn;

/// One end of a connection.
pub(crate) struct Tcp {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// An address with a port, on the interface of this number (which link-local addresses need).
#[must_use]
pub(crate) fn endpoint(address: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, port),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, interface).into(),
    }
}

impl Tcp {
    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
        })
    }

    /// Connects, from the address that `own` is.
    ///
    /// # Errors
    /// No process answers, or the way there begins at another address.
    pub(crate) fn connect(to: SocketAddr, own: IpAddr) -> Result<Self> {
        let failed = |error| Error::io(format!("TCP connection to {to}"), error);
        let stream =
            TcpStream::connect_timeout(&to, Duration::from_secs(PATIENCE_S)).map_err(failed)?;
        let from = stream.local_addr().map_err(failed)?.ip();
        if from != own {
            return Err(Error::Usage(format!(
                "the route to {to} starts at {from}, not at {own}"
            )));
        }
        Self::new(stream).map_err(failed)
    }

    /// Takes the one connection.
    ///
    /// # Errors
    /// None comes.
    pub(crate) fn accept(listener: &TcpListener) -> Result<Self> {
        let failed = |error| Error::io("TCP connection", error);
        listener.set_nonblocking(true).map_err(failed)?;
        let mut patience = Patience::new("waiting for a TCP connection");
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Self::new(stream).map_err(failed),
                Err(error) if again(&error) => patience.spend()?,
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Takes this many turns with messages of `size` bytes. The driver gets the median one-way time in ns.
    ///
    /// # Errors
    /// The connection broke, or the other side does not answer.
    pub(crate) fn ping_pong(&mut self, side: Side, size: usize, turns: u64) -> Result<f64> {
        self.buffer.resize(size.max(1), 0);
        median_turn(turns, |_| match side {
            Side::Driver => {
                self.give()?;
                self.take()
            }
            Side::Server => {
                self.take()?;
                self.give()
            }
        })
    }

    fn give(&mut self) -> Result<()> {
        let (stream, buffer) = (&mut self.stream, &self.buffer);
        whole(buffer.len(), |done| stream.write(&buffer[done..]))
    }

    fn take(&mut self) -> Result<()> {
        let (stream, buffer) = (&mut self.stream, &mut self.buffer);
        whole(buffer.len(), |done| stream.read(&mut buffer[done..]))
    }
}

/// Repeats until all bytes have been moved.
fn whole(bytes: usize, mut some: impl FnMut(usize) -> std::io::Result<usize>) -> Result<()> {
    let mut patience = Patience::new("waiting for the peer over TCP");
    let mut done = 0;
    while done < bytes {
        match some(done) {
            Ok(0) => return Err(Error::Peer("closed the TCP connection".to_owned())),
            Ok(moved) => done += moved,
            Err(error) if again(&error) => patience.spend()?,
            Err(error) => return Err(Error::io("TCP", error)),
        }
    }
    Ok(())
}

/// Whether a call on a socket that does not block is to be made again.
pub(crate) fn again(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_take_turns() {
        let own = IpAddr::from([127, 0, 0, 1]);
        let listener = TcpListener::bind((own, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut tcp = Tcp::accept(&listener).unwrap();
            tcp.ping_pong(Side::Server, 100_000, 10).unwrap();
        });
        let mut tcp = Tcp::connect(to, own).unwrap();
        assert!(tcp.ping_pong(Side::Driver, 100_000, 10).unwrap() > 0.0);
        server.join().unwrap();
    }

    #[test]
    fn a_connection_from_elsewhere_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        assert!(Tcp::connect(to, IpAddr::from([127, 0, 0, 2])).is_err());
    }
}
