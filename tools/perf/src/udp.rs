//! UDP between the two processes, as fast as it goes: one datagram back and forth, and both sides spin.

#![forbid(unsafe_code)]

use std::net::{SocketAddr, UdpSocket};

use vipl_tools::patience::Patience;
use vipl_tools::rendezvous::Side;
use vipl_tools::{Error, Result};

use crate::limits::median_turn;
use crate::tcp::again;

/// One end.
pub(crate) struct Udp {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl Udp {
    /// An end at this address and any port.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn bind(own: SocketAddr) -> Result<Self> {
        let failed = |error| Error::io("UDP socket", error);
        let socket = UdpSocket::bind(own).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            socket,
            buffer: Vec::new(),
        })
    }

    /// Its port.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn port(&self) -> Result<u16> {
        let address = self.socket.local_addr();
        let failed = |error| Error::io("UDP socket", error);
        Ok(address.map_err(failed)?.port())
    }

    /// The other end.
    ///
    /// # Errors
    /// No way leads there.
    pub(crate) fn connect(&self, to: SocketAddr) -> Result<()> {
        let failed = |error| Error::io(format!("UDP to {to}"), error);
        self.socket.connect(to).map_err(failed)
    }

    /// Takes this many turns with datagrams of `size` bytes. The driver gets the median one-way time in ns.
    ///
    /// # Errors
    /// The other side does not answer: one datagram that is lost ends it.
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

    fn give(&self) -> Result<()> {
        until_done(|| self.socket.send(&self.buffer))
    }

    fn take(&mut self) -> Result<()> {
        let (socket, buffer) = (&self.socket, &mut self.buffer);
        until_done(|| socket.recv(buffer))
    }
}

fn until_done(mut call: impl FnMut() -> std::io::Result<usize>) -> Result<()> {
    let mut patience = Patience::new("waiting for the peer over UDP");
    loop {
        match call() {
            Ok(_) => return Ok(()),
            Err(error) if again(&error) => patience.spend()?,
            Err(error) => return Err(Error::io("UDP", error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_take_turns() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let [mut one, mut two] = [(); 2].map(|()| Udp::bind(any).unwrap());
        let at = |udp: &Udp| SocketAddr::from(([127, 0, 0, 1], udp.port().unwrap()));
        one.connect(at(&two)).unwrap();
        two.connect(at(&one)).unwrap();
        let server = std::thread::spawn(move || two.ping_pong(Side::Server, 64, 100).map(drop));
        assert!(one.ping_pong(Side::Driver, 64, 100).unwrap() > 0.0);
        server.join().unwrap().unwrap();
    }
}
