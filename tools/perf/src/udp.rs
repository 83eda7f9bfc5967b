//! UDP between the two processes, as fast as it goes, and both sides spin: one datagram back and forth; and a stream of
//! trains, which the kernel cuts into datagrams and puts together again (UDP_SEGMENT, UDP_GRO).

#![forbid(unsafe_code)]

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use vipl_tools::patience::Patience;
use vipl_tools::rendezvous::Side;
use vipl_tools::{Error, Result};

use crate::tcp::again;
use vipl_tools::blocks::median_turn;

/// Headers of IPv6 and UDP; those of IPv4 are shorter.
const HEADERS: usize = 48;
/// Segments and bytes of a train at most.
const SEGMENTS: usize = 64;
const TRAIN_BYTES: usize = 65_000;
const RECEIVE_BUFFER: usize = 8 << 20;
/// Trains that are under way at most.
const UNDER_WAY_MAX: usize = 24;
/// What a train takes of a receive buffer, with the kernel's own part.
const ROOM: usize = 128 << 10;

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
        // Without the privilege the buffer stays as large as it is, and a kernel without trains gives them in pieces.
        let _ = setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER);
        let _ = setsockopt(&socket, sockopt::UdpGroSegment, &true);
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

    /// Streams so many trains of datagrams that fill the MTU. The driver sends, and gets the rate in GB/s.
    ///
    /// # Errors
    /// The other side does not go on, or the kernel has no trains.
    pub(crate) fn stream(&mut self, side: Side, mtu: usize, trains: u64) -> Result<f64> {
        let segment = mtu.saturating_sub(HEADERS).max(1);
        let train = (TRAIN_BYTES / segment).clamp(1, SEGMENTS) * segment;
        let all = trains * train as u64;
        let failed = |errno: nix::Error| Error::io("UDP trains", errno.into());
        match side {
            Side::Driver => {
                self.buffer.resize(train, 0);
                setsockopt(&self.socket, sockopt::UdpGsoSegment, &(segment as i32))
                    .map_err(failed)?;
                let rate = self.send_trains(all);
                setsockopt(&self.socket, sockopt::UdpGsoSegment, &0).map_err(failed)?;
                rate
            }
            Side::Server => {
                self.buffer.resize(1 << 16, 0);
                self.receive_trains(all, train as u64).map(|()| 0.0)
            }
        }
    }

    /// Trains that are under way at most: what the receiver's buffer, which is as large as this one, holds is not lost.
    fn under_way(&self) -> u64 {
        let room = getsockopt(&self.socket, sockopt::RcvBuf).unwrap_or(0) / ROOM;
        room.clamp(1, UNDER_WAY_MAX) as u64
    }

    fn send_trains(&mut self, all: u64) -> Result<f64> {
        let (socket, train) = (&self.socket, self.buffer.len() as u64);
        let most = self.under_way() * train;
        let (mut sent, mut arrived, start) = (0, 0, Instant::now());
        while arrived < all {
            let mut patience = Patience::new("waiting for the receiver of UDP trains");
            while sent < all && sent - arrived < most {
                until_done(|| socket.send(&self.buffer))?;
                sent += train;
            }
            let mut count = [0; 8];
            while socket.recv(&mut count).is_err() {
                patience.spend()?;
            }
            arrived = u64::from_ne_bytes(count);
        }
        Ok(all as f64 / start.elapsed().as_nanos() as f64)
    }

    /// Reports what has arrived after each few trains.
    fn receive_trains(&mut self, all: u64, train: u64) -> Result<()> {
        let step = (self.under_way() / 4).max(1) * train;
        let (mut arrived, mut reported) = (0, 0);
        while arrived < all {
            let (socket, buffer) = (&self.socket, &mut self.buffer);
            let mut bytes = 0;
            until_done(|| socket.recv(buffer).inspect(|taken| bytes = *taken))?;
            arrived += bytes as u64;
            if arrived - reported >= step || arrived >= all {
                reported = arrived;
                until_done(|| socket.send(&arrived.to_ne_bytes()))?;
            }
        }
        Ok(())
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

    fn both() -> [Udp; 2] {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let [one, two] = [(); 2].map(|()| Udp::bind(any).unwrap());
        let at = |udp: &Udp| SocketAddr::from(([127, 0, 0, 1], udp.port().unwrap()));
        one.connect(at(&two)).unwrap();
        two.connect(at(&one)).unwrap();
        [one, two]
    }

    #[test]
    fn two_sides_take_turns() {
        let [mut one, mut two] = both();
        let server = std::thread::spawn(move || two.ping_pong(Side::Server, 64, 100).map(drop));
        assert!(one.ping_pong(Side::Driver, 64, 100).unwrap() > 0.0);
        server.join().unwrap().unwrap();
    }

    #[test]
    fn a_stream_of_trains_arrives() {
        let [mut one, mut two] = both();
        let server = std::thread::spawn(move || two.stream(Side::Server, 1500, 50).map(drop));
        assert!(one.stream(Side::Driver, 1500, 50).unwrap() > 0.0);
        server.join().unwrap().unwrap();
    }
}
