//! The ping-pong: one message there, one back, as two processes of a program would do it.
//!
//! Each side keeps `DEPTH` receives posted and posts each one again before it answers, so that no
//! message ever meets an empty receive queue. Completed sends are taken while the answer is under way.
//! With RDMA the message is written straight into the peer's memory, which is polled. Small RDMA
//! messages go to one buffer after the other: the latency of a cache line depends on its address.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::blocks::Blocks;
use crate::descriptor::Descriptor;
use crate::endpoint::Endpoint;
use crate::error::PATIENCE_S;
use crate::patience::Patience;
use crate::region::Span;
use crate::request::{DEPTH, Request};
use crate::session::{Local, Session};
use crate::stats::{Histogram, median, percentile};
use crate::{Error, Result};

pub use crate::request::Spec;

/// Looks at memory between two at the VI.
const LOOKS: u32 = 4096;

/// What came out.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Median one-way time in ns, of short blocks of round trips.
    pub median_ns: f64,
    /// Median one-way time in ns, of single round trips.
    pub p50_ns: f64,
    /// 99th percentile of the one-way time in ns, of single round trips.
    pub p99_ns: f64,
    /// The longest one-way time of a single round trip in ns.
    pub worst_ns: f64,
    /// Single round trips, of which the percentiles are.
    pub singles: usize,
    /// Round trips.
    pub turns: u64,
    /// Time of all of them in ns, the clock included.
    pub total_ns: f64,
}

/// Fewer times than these have no 99th percentile: it would be the longest of them.
const TAIL: usize = 100;

impl Outcome {
    /// `p99_ns`, or NaN if there were too few single round trips to know it.
    #[must_use]
    pub fn known_p99_ns(&self) -> f64 {
        match self.singles {
            ..TAIL => f64::NAN,
            _ => self.p99_ns,
        }
    }

    /// Mean one-way time in ns, with all that interrupts it.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.total_ns / (2 * self.turns) as f64
    }
}

/// The client's side of an open ping-pong.
pub struct Driver {
    player: Player,
    times: Histogram,
}

impl Driver {
    /// Connects with the server.
    ///
    /// # Errors
    /// The device cannot do it, or the server does not come.
    pub fn open<L: Local>(session: &mut Session<L>, spec: Spec) -> Result<Self> {
        if spec.rdma && spec.bytes == 0 {
            return Err(Error::Usage(
                "an RDMA ping-pong needs at least one byte".to_owned(),
            ));
        }
        let channel = session.new_channel();
        let mut player = Player::new(session, spec)?;
        let answer = session.ask(&spec.to_json(channel))?;
        player.aim(span_of(&answer));
        session.join(&player.endpoint.vi, channel)?;
        let own = player.endpoint.target();
        session.ask(
            &json!({"op": "target", "address": own.address, "handle": own.handle,
            "length": own.length}),
        )?;
        let times = Histogram::default();
        Ok(Self { player, times })
    }

    /// Takes the one-way times of single messages since the last call, in ns.
    pub fn take_times(&mut self) -> Histogram {
        std::mem::take(&mut self.times)
    }

    /// Plays `turns` round trips: most in blocks, for the median, and one between two blocks alone, for the tail.
    ///
    /// # Errors
    /// The connection broke or data is wrong.
    pub fn play<L: Local>(&mut self, session: &mut Session<L>, turns: u64) -> Result<Outcome> {
        self.play_blocks(session, turns, true)
    }

    /// Plays `turns` round trips one by one, for all of the tail.
    ///
    /// # Errors
    /// As `play`.
    pub fn play_singly<L: Local>(
        &mut self,
        session: &mut Session<L>,
        turns: u64,
    ) -> Result<Outcome> {
        self.play_blocks(session, turns, false)
    }

    fn play_blocks<L: Local>(
        &mut self,
        session: &mut Session<L>,
        turns: u64,
        in_blocks: bool,
    ) -> Result<Outcome> {
        session.go(turns)?;
        let mut blocks = Blocks::new(turns);
        let mut singles = Vec::with_capacity(if in_blocks { 1 << 12 } else { turns as usize });
        let begin = Instant::now();
        let mut left = turns;
        while left > 0 {
            // Each round has a single one, the last one, too.
            if in_blocks && left > 1 {
                left -= blocks.take(left - 1, || self.player.there_and_back())?;
            }
            let start = Instant::now();
            self.player.there_and_back()?;
            singles.push(nanoseconds(start.elapsed()) / 2.0);
            left -= 1;
        }
        let total_ns = nanoseconds(begin.elapsed());
        self.player.settle()?;
        self.times.add(&singles);
        let (p50_ns, p99_ns) = (median(&singles), percentile(&mut singles, 0.99));
        Ok(Outcome {
            median_ns: if in_blocks && turns > 1 {
                blocks.median() / 2.0
            } else {
                p50_ns
            },
            p50_ns,
            p99_ns,
            worst_ns: singles.last().copied().unwrap_or(0.0),
            singles: singles.len(),
            turns,
            total_ns,
        })
    }

    /// Warms up, and finds how many turns take `time`.
    ///
    /// # Errors
    /// As `play`.
    pub fn turns_for<L: Local>(&mut self, session: &mut Session<L>, time: Duration) -> Result<u64> {
        let first = self.play(session, 200)?;
        let guess = 0.02 * 1e9 / (2.0 * first.median_ns).max(1.0);
        let warm = self.play(session, (guess as u64).clamp(200, 100_000))?;
        let turns = nanoseconds(time) / (warm.total_ns / warm.turns as f64);
        Ok((turns as u64).clamp(100, 5_000_000))
    }

    /// Ends it on both sides.
    ///
    /// # Errors
    /// The server has exited.
    pub fn close<L: Local>(self, session: &mut Session<L>) -> Result<()> {
        drop(self);
        session.end()
    }
}

/// The server's side, from the question that opened it to its end.
///
/// # Errors
/// The connection broke or data is wrong.
pub fn serve<L: Local>(session: &mut Session<L>, spec: Spec, channel: u32) -> Result<()> {
    let mut player = Player::new(session, spec)?;
    session.reply(&span_json(player.endpoint.target()))?;
    session.join(&player.endpoint.vi, channel)?;
    let Some(Request::Target(target)) = session.next_request()? else {
        return Err(Error::Refused(
            "the request after a ping-pong is its target".to_owned(),
        ));
    };
    player.aim(target);
    session.reply(&json!({}))?;
    while let Some(turns) = session.next_go()? {
        for _ in 0..turns {
            player.back()?;
        }
        player.settle()?;
    }
    drop(player);
    session.ended()
}

/// A span for the peer.
#[must_use]
pub fn span_json(span: Span) -> Value {
    json!({"address": span.address, "handle": span.handle, "length": span.length})
}

/// The peer's span.
#[must_use]
pub fn span_of(value: &Value) -> Span {
    let number = |name: &str| value[name].as_u64().unwrap_or(0);
    let (handle, length) = (number("handle") as u32, number("length") as u32);
    Span {
        address: number("address"),
        handle,
        length,
    }
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}

struct Player {
    endpoint: Endpoint,
    spec: Spec,
    sent: u64,
    taken: u64,
    received: u64,
    /// The next send, if it is prepared.
    next: Option<Descriptor>,
    scratch: Vec<u8>,
}

impl Player {
    fn new<L: Local>(session: &Session<L>, spec: Spec) -> Result<Self> {
        let endpoint = Endpoint::new(&session.nic, spec.vi, spec.layout(), None)?;
        if spec.rdma {
            // The memory may have been another ping-pong's, with its numbers.
            let clean = vec![0; spec.bytes];
            for offset in &endpoint.receive_offsets {
                endpoint.region.write(*offset, &clean);
            }
        }
        let scratch = if spec.check {
            vec![0; spec.bytes]
        } else {
            Vec::new()
        };
        Ok(Self {
            endpoint,
            spec,
            sent: 0,
            taken: 0,
            received: 0,
            next: None,
            scratch,
        })
    }

    /// Stores the address of the peer's first buffer. Its other buffers have the same layout as those of this side.
    fn aim(&mut self, target: Span) {
        if !self.spec.rdma {
            return;
        }
        let endpoint = &self.endpoint;
        for (index, descriptor) in endpoint.sends.iter().enumerate() {
            let local = endpoint
                .region
                .span(endpoint.send_offsets[index], endpoint.bytes);
            let further = self.place(index) - endpoint.receive_offsets[0];
            let place = Span {
                address: target.address.wrapping_add(further as u64),
                ..target
            };
            descriptor.set_write(local, place);
        }
    }

    /// Offset of the buffer that RDMA message number `message` is written to.
    #[inline(always)]
    fn place(&self, message: usize) -> usize {
        let offsets = &self.endpoint.receive_offsets;
        // Without separate buffers all of them are the first one.
        offsets[turn(message, offsets.len())]
    }

    #[inline(always)]
    fn there_and_back(&mut self) -> Result<()> {
        self.send()?;
        self.receive()
    }

    #[inline(always)]
    fn back(&mut self) -> Result<()> {
        self.receive()?;
        self.send()
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        let descriptor = match self.next {
            Some(descriptor) => descriptor,
            None => self.prepare()?,
        };
        self.sent += 1;
        self.endpoint.vi.post_send(descriptor)?;
        // While the message travels: take what is complete, without waiting for it, and prepare the next one.
        if self.endpoint.vi.send_done()?.is_some() {
            self.taken += 1;
        }
        if self.sent - self.taken >= DEPTH as u64 / 2 {
            self.settle()?;
        }
        let is_free = !self.spec.rdma || self.taken == self.sent;
        self.next = if is_free { Some(self.prepare()?) } else { None };
        Ok(())
    }

    /// Takes every send that is still out.
    #[inline(never)]
    fn settle(&mut self) -> Result<()> {
        let mut patience = Patience::new("waiting for a send to complete");
        while self.taken < self.sent {
            match self.endpoint.vi.send_done()? {
                Some(_) => self.taken += 1,
                None if self.spec.wait => {
                    let done = self.endpoint.vi.send_wait(PATIENCE_S * 1000)?;
                    done.ok_or(Error::Silence("waiting for a send to complete"))?;
                    self.taken += 1;
                }
                None => patience.spend()?,
            }
        }
        Ok(())
    }

    /// Chooses the next descriptor and fills its buffer: with a pattern when bytes are checked, and with the number of
    /// the message at its end when the peer polls for it.
    #[inline(always)]
    fn prepare(&mut self) -> Result<Descriptor> {
        let index = turn(self.sent as usize, self.endpoint.sends.len());
        // One buffer may still be under way.
        if self.spec.rdma && self.taken < self.sent {
            self.settle()?;
        }
        let (offset, bytes, number) = (
            self.endpoint.send_offsets[index],
            self.spec.bytes,
            self.sent + 1,
        );
        if self.spec.check {
            self.fill(offset, number);
        }
        if self.spec.rdma {
            let region = &self.endpoint.region;
            match bytes {
                8.. => region.store_u64(offset + bytes - 8, number),
                _ => region.write(offset + bytes - 1, &[number as u8]),
            }
        }
        Ok(self.endpoint.sends[index])
    }

    #[inline(never)]
    fn fill(&mut self, offset: usize, number: u64) {
        pattern(&mut self.scratch, number);
        self.endpoint.region.write(offset, &self.scratch);
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.received += 1;
        if self.spec.rdma {
            return self.poll_memory();
        }
        let descriptor = self.next_message()?;
        if self.spec.check {
            self.verify(descriptor)?;
        }
        // Before the answer: the peer may then send again without asking.
        self.endpoint.vi.post_receive(descriptor)
    }

    #[inline(always)]
    fn next_message(&mut self) -> Result<Descriptor> {
        let mut patience = Patience::new("waiting for a message");
        loop {
            if let Some(descriptor) = self.endpoint.vi.receive_done()? {
                return Ok(descriptor);
            }
            if self.spec.wait {
                let waited = self.endpoint.vi.receive_wait(PATIENCE_S * 1000)?;
                return waited.ok_or(Error::Silence("waiting for a message"));
            }
            patience.spend()?;
        }
    }

    #[inline(never)]
    fn verify(&mut self, descriptor: Descriptor) -> Result<()> {
        let bytes = self.spec.bytes;
        if descriptor.length() as usize != bytes {
            let got = descriptor.length();
            return Err(Error::Corrupt(format!(
                "a message of {bytes} bytes arrived with {got} bytes"
            )));
        }
        let index = turn((self.received - 1) as usize, self.endpoint.receives.len());
        self.compare(self.endpoint.receive_offsets[index], bytes)
    }

    fn compare(&mut self, offset: usize, bytes: usize) -> Result<()> {
        let mut got = vec![0; bytes];
        self.endpoint.region.read(offset, &mut got);
        pattern(&mut self.scratch, self.received);
        match got
            .iter()
            .zip(&self.scratch)
            .position(|(got, expected)| got != expected)
        {
            None => Ok(()),
            Some(at) => Err(Error::Corrupt(format!(
                "message {} of {} bytes is wrong at byte {at}: received {:#04x}, sent {:#04x}",
                self.received, self.spec.bytes, got[at], self.scratch[at]
            ))),
        }
    }

    /// Waits for the number of the message in the last bytes of the buffer.
    #[inline(always)]
    fn poll_memory(&mut self) -> Result<()> {
        let offset = self.place((self.received - 1) as usize);
        let bytes = self.spec.bytes;
        let region = &self.endpoint.region;
        let mut patience = Patience::new("waiting for RDMA data");
        loop {
            let here = if bytes >= 8 {
                region.becomes_u64(offset + bytes - 8, self.received, LOOKS)
            } else {
                region.becomes_u8(offset + bytes - 1, self.received as u8, LOOKS)
            };
            if here {
                break;
            }
            // Lets a provider that needs it make progress, and notices a broken connection.
            self.endpoint.vi.receive_done()?;
            patience.look()?;
        }
        if self.spec.check && bytes > 8 {
            self.compare(offset, bytes - 8)?;
        }
        Ok(())
    }
}

/// `message` modulo `count`, a power of two: no division between two messages.
#[inline(always)]
fn turn(message: usize, count: usize) -> usize {
    debug_assert!(count.is_power_of_two());
    message & (count - 1)
}

/// Bytes that depend on the message and on the place.
fn pattern(bytes: &mut [u8], message: u64) {
    let mut state = message.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes.chunks_mut(8) {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(message | 1);
        let word = (state ^ (state >> 29)).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_survives_the_control_channel() {
        let span = Span {
            address: u64::MAX - 1,
            handle: 7,
            length: 9,
        };
        assert_eq!(span_of(&span_json(span)), span);
    }

    #[test]
    fn patterns_differ_by_message_and_place() {
        let make = |message| {
            let mut bytes = vec![0; 37];
            pattern(&mut bytes, message);
            bytes
        };
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        assert_ne!(make(1)[..8], make(1)[8..16]);
        assert_ne!(make(1)[32..], [0; 5]);
    }
}
