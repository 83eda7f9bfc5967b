//! What an interface can carry without any protocol: raw Ethernet frames between two processes that both
//! look into their receive rings (AF_PACKET, TPACKET_V2) and send with plain system calls.
//!
//! ```text
//!   | to | from | 88B7 | round | number | arrived | message ...
//! ```
//!
//! A frame of another round than the present one is a straggler and passed over. In a stream the receiver
//! reports now and then up to which number it has frames and how many have arrived, and the sender never has
//! more than `WINDOW` under way: so the ring does not overflow, and what is measured has arrived. The
//! receiver reads the numbers and leaves the payload where it is.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use vipl_tools::patience::Patience;
use vipl_tools::rendezvous::Side;
use vipl_tools::{Error, Result, sys};

use crate::link::Link;
use vipl_tools::blocks::median_turn;

/// The type of these frames; for local experiments (IEEE 802), and not that of VIPL's own frames.
const ETHERTYPE: u16 = 0x88B7;
const HEADER: usize = 14;
/// Header and numbers.
const LEAST: usize = HEADER + 20;
/// Ethernet has no smaller frames.
const FRAME_MIN: usize = 60;
/// Frames of the receive ring.
const RING: usize = 512;
/// Frames of a stream that are under way.
const WINDOW: u64 = 256;
/// Frames between two reports of the receiver.
const STEP: u64 = WINDOW / 4;
/// Frames of one system call.
const BURST: usize = 32;
/// A stream that stands still this long has lost frames.
const STILL: Duration = Duration::from_millis(20);

/// One end.
pub(crate) struct Frames {
    socket: File,
    ring: NonNull<u8>,
    frame_bytes: usize,
    next: usize,
    /// Frames to be sent.
    out: Vec<Vec<u8>>,
    addresses: [u8; 12],
}

/// The numbers of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Numbers {
    round: u32,
    number: u64,
    arrived: u64,
}

impl Numbers {
    fn write(self, frame: &mut [u8]) {
        frame[HEADER..HEADER + 4].copy_from_slice(&self.round.to_ne_bytes());
        frame[HEADER + 4..HEADER + 12].copy_from_slice(&self.number.to_ne_bytes());
        frame[HEADER + 12..LEAST].copy_from_slice(&self.arrived.to_ne_bytes());
    }

    fn read(frame: &[u8; LEAST]) -> Self {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&frame[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        Self {
            round: word(HEADER) as u32,
            number: word(HEADER + 4),
            arrived: word(HEADER + 12),
        }
    }
}

impl Frames {
    /// Opens a socket and its ring on an interface. Needs root.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn open(link: &Link) -> Result<Self> {
        let failed = |what: &str| {
            let what = format!("{what} on {}", link.name);
            Error::io(what, std::io::Error::last_os_error())
        };
        // SAFETY: a new socket. Without a protocol it receives nothing yet.
        let socket = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        if socket < 0 {
            return Err(failed("AF_PACKET socket"));
        }
        // SAFETY: just opened, owned by nothing else.
        let socket = unsafe { File::from_raw_fd(socket) };
        let frame_bytes = (link.mtu + 128).next_power_of_two().max(2048);
        let block = frame_bytes.max(64 << 10);
        let request = libc::tpacket_req {
            tp_block_size: block as u32,
            tp_block_nr: (RING * frame_bytes / block) as u32,
            tp_frame_size: frame_bytes as u32,
            tp_frame_nr: RING as u32,
        };
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        // Older kernels hand us our own frames; those have wrong numbers and addresses.
        let _ = option(&socket, libc::PACKET_IGNORE_OUTGOING, &1i32);
        if !option(&socket, libc::PACKET_VERSION, &version)
            || !option(&socket, libc::PACKET_RX_RING, &request)
        {
            return Err(failed("receive ring"));
        }
        let ring = sys::map(RING * frame_bytes, Some(&socket))?;
        // SAFETY: all zero is a valid address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ETHERTYPE.to_be();
        address.sll_ifindex = link.index as i32;
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: an address of this size.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) } != 0 {
            return Err(failed("AF_PACKET socket"));
        }
        let mut addresses = [0; 12];
        addresses[6..].copy_from_slice(&link.address);
        Ok(Self {
            socket,
            ring,
            frame_bytes,
            next: 0,
            out: vec![Vec::new(); BURST],
            addresses,
        })
    }

    /// Sets the destination of frames.
    pub(crate) fn aim(&mut self, peer: [u8; 6]) {
        self.addresses[..6].copy_from_slice(&peer);
    }

    /// Takes this many turns with messages of `size` bytes. The driver gets the median one-way time in ns.
    ///
    /// # Errors
    /// The other side does not answer, or a frame cannot be sent.
    pub(crate) fn ping_pong(
        &mut self,
        side: Side,
        round: u32,
        size: usize,
        turns: u64,
    ) -> Result<f64> {
        self.prepare(HEADER + size);
        median_turn(turns, |number| match side {
            Side::Driver => {
                self.give(round, number)?;
                self.take(round, number)
            }
            Side::Server => {
                self.take(round, number)?;
                self.give(round, number)
            }
        })
    }

    /// Makes `count` frames of `bytes` arrive at the peer, which calls `receive`; frames per second.
    ///
    /// # Errors
    /// The other side does not answer, or a frame cannot be sent.
    pub(crate) fn send(&mut self, round: u32, bytes: usize, count: u64) -> Result<f64> {
        self.prepare(bytes);
        let (mut sent, mut reported) = (0, Numbers::default());
        let mut patience = Patience::new("streaming frames");
        let mut moved = Instant::now();
        let start = Instant::now();
        while reported.number < count {
            let room = WINDOW.saturating_sub(sent - reported.number);
            let mut burst = room.min(BURST as u64).min(count.saturating_sub(sent)) as usize;
            if burst == 0 && moved.elapsed() > STILL {
                // What the receiver waits for has been lost; one more makes it look again.
                burst = 1;
                moved = Instant::now();
            }
            let before = (sent, reported.number);
            sent += self.burst(round, sent, burst)?;
            while let Some(numbers) = self.look(round) {
                reported = numbers;
            }
            if before == (sent, reported.number) {
                patience.spend()?;
            } else {
                moved = Instant::now();
                patience = Patience::new("streaming frames");
            }
        }
        Ok(reported.arrived as f64 / start.elapsed().as_secs_f64())
    }

    /// Receives what `send` sends.
    ///
    /// # Errors
    /// Nothing comes, or a frame cannot be sent.
    pub(crate) fn receive(&mut self, round: u32, count: u64) -> Result<()> {
        self.prepare(FRAME_MIN);
        let (mut seen, mut reported) = (Numbers::default(), 0);
        let mut patience = Patience::new("waiting for frames");
        while seen.number < count {
            let Some(numbers) = self.look(round) else {
                patience.spend()?;
                continue;
            };
            patience = Patience::new("waiting for frames");
            seen = Numbers {
                arrived: seen.arrived + 1,
                ..numbers
            };
            if seen.number - reported >= STEP || seen.number >= count {
                reported = seen.number;
                seen.write(&mut self.out[0]);
                while !self.give_one()? {
                    patience.spend()?;
                }
            }
        }
        Ok(())
    }

    fn prepare(&mut self, bytes: usize) {
        for frame in &mut self.out {
            frame.clear();
            frame.extend_from_slice(&self.addresses);
            frame.extend_from_slice(&ETHERTYPE.to_be_bytes());
            frame.resize(bytes.max(FRAME_MIN), 0);
        }
    }

    fn give(&mut self, round: u32, number: u64) -> Result<()> {
        let numbers = Numbers {
            round,
            number,
            arrived: 0,
        };
        numbers.write(&mut self.out[0]);
        let mut patience = Patience::new("sending a frame");
        while !self.give_one()? {
            patience.spend()?;
        }
        Ok(())
    }

    /// Whether the first frame was taken.
    fn give_one(&self) -> Result<bool> {
        let frame = &self.out[0];
        let socket = self.socket.as_raw_fd();
        // SAFETY: the frame is valid.
        let sent = unsafe { libc::send(socket, frame.as_ptr().cast(), frame.len(), 0) };
        if sent >= 0 {
            Ok(true)
        } else {
            refused().map(|_| false)
        }
    }

    fn burst(&mut self, round: u32, before: u64, count: usize) -> Result<u64> {
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: all zero is a valid value of both.
        let mut parts: [libc::iovec; BURST] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        for (place, frame) in self.out[..count].iter_mut().enumerate() {
            let number = before + place as u64 + 1;
            let numbers = Numbers {
                round,
                number,
                arrived: 0,
            };
            numbers.write(frame);
            parts[place] = libc::iovec {
                iov_base: frame.as_mut_ptr().cast(),
                iov_len: frame.len(),
            };
            messages[place].msg_hdr.msg_iov = &raw mut parts[place];
            messages[place].msg_hdr.msg_iovlen = 1;
        }
        let (socket, messages) = (self.socket.as_raw_fd(), messages.as_mut_ptr());
        // SAFETY: as many messages as that, each with one valid part.
        let sent = unsafe { libc::sendmmsg(socket, messages, count as u32, 0) };
        u64::try_from(sent).or_else(|_| refused().map(|()| 0))
    }

    fn take(&mut self, round: u32, number: u64) -> Result<()> {
        let mut patience = Patience::new("waiting for a frame of the peer");
        loop {
            match self.look(round) {
                Some(numbers) if numbers.number == number => return Ok(()),
                Some(_) => {}
                None => patience.spend()?,
            }
        }
    }

    /// The numbers of the next frame of this round, if there is one.
    #[inline(always)]
    fn look(&mut self, round: u32) -> Option<Numbers> {
        loop {
            let place = self
                .ring
                .as_ptr()
                .wrapping_add(self.next * self.frame_bytes);
            let header = place.cast::<libc::tpacket2_hdr>();
            // SAFETY: inside the ring; the kernel writes the word, so it is an atomic one.
            let status = unsafe { AtomicU32::from_ptr(&raw mut (*header).tp_status) };
            // Acquire: what the kernel wrote before is seen.
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                return None;
            }
            // SAFETY: the kernel keeps frames inside their places, which are larger than this.
            let numbers = unsafe {
                let start = usize::from((*header).tp_mac);
                let long = (*header).tp_snaplen as usize >= LEAST;
                long.then(|| Numbers::read(&*place.add(start).cast::<[u8; LEAST]>()))
            };
            // Release: the kernel may use the place again.
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % RING;
            if let Some(numbers) = numbers
                && numbers.round == round
            {
                return Some(numbers);
            }
        }
    }
}

/// Whether a frame that was not taken may be sent again.
fn refused() -> Result<()> {
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(()),
        _ => Err(Error::io("sending a frame", error)),
    }
}

fn option<T>(socket: &File, name: i32, value: &T) -> bool {
    // SAFETY: the option's value is valid for its size.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        ) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_a_frame() {
        let numbers = Numbers {
            round: 7,
            number: u64::MAX - 1,
            arrived: 1 << 40,
        };
        let mut frame = [0; LEAST];
        numbers.write(&mut frame);
        assert_eq!(Numbers::read(&frame), numbers);
    }
}
