//! What the two ends of a link say to each other.
//!
//! Each side begins with [`TOKENS`] messages, the first of which tells where its memory is, and answers
//! every message with one. The immediate data of a message tell its kind. All bytes depend on a number of
//! the sender, on the message and on their place, so that the receiver can check every one of them.
//!
//! ```text
//!   HELLO, DATA ...  both ways, of 0 to 64 KiB
//!   RDMA Write, then WROTE: the receiver checks its window, and says with its next message that it has
//!   RDMA Read: checked at its completion
//!   BYE (client) ── everything else arrives ── BYE_TOO (server) ── the client disconnects
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use vipl_abi::*;
use vipl_client::ViState;

use crate::dice::{Dice, fill, wrong};
use crate::link::{BYTES, Done, Link, RECEIVES, SENDS, Step, TOKENS};
use crate::report::{COUNTS, count, fault, say};
use crate::stop::stopping;
use vipl_sys::clock::now_ns;

const HELLO: u32 = 0;
const DATA: u32 = 1;
const WROTE: u32 = 2;
const BYE: u32 = 3;
const BYE_TOO: u32 = 4;
/// Low bits of the immediate data; above them the count of RDMA Writes that were checked.
const KIND_BITS: u32 = 3;

/// After so long without any message something hangs.
const STANDSTILL: Duration = Duration::from_secs(60);
/// How long a wait lasts before the end looks whether it shall stop.
const PATIENCE: Duration = Duration::from_millis(50);
/// Tells a side's readable memory from its messages.
const SOURCE_SALT: u64 = 0x5ead;

/// What a HELLO brings.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Greeting {
    nonce: u64,
    window: u64,
    source: u64,
    handle: u64,
}

const GREETING_BYTES: usize = size_of::<Greeting>();

impl Greeting {
    fn bytes(self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        let words = [self.nonce, self.window, self.source, self.handle];
        for (to, from) in bytes.chunks_mut(8).zip(words) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Greeting {
        let word = |at: usize| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().expect("8"));
        Greeting {
            nonce: word(0),
            window: word(1),
            source: word(2),
            handle: word(3),
        }
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Both agreed.
    Parted,
    /// The peer died.
    Lost,
    /// This process shall end.
    Stopped,
}

/// What this run wants besides messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spice {
    /// RDMA Writes and Reads.
    pub(crate) rdma: bool,
    /// A client parts after about so many messages; 0: never.
    pub(crate) parting: u64,
}

/// One connection, seen from one end.
pub(crate) struct Talk<'a> {
    link: &'a Link,
    dice: &'a mut Dice,
    spice: Spice,
    scratch: &'a mut Vec<u8>,
    free: Vec<usize>,
    /// Messages that came while this side waited for a free descriptor.
    came: VecDeque<Done>,
    nonce: u64,
    sent: u64,
    received: u64,
    peer: Option<Greeting>,
    /// RDMA Writes: made here, checked there, checked here.
    writes: u32,
    writes_checked: u32,
    checked: u32,
    /// The RDMA Read under way: offset and length.
    reading: Option<(usize, usize)>,
    quiet: bool,
    parted: bool,
    up: bool,
}

impl<'a> Talk<'a> {
    pub(crate) fn new(
        link: &'a Link,
        dice: &'a mut Dice,
        scratch: &'a mut Vec<u8>,
        spice: Spice,
    ) -> Self {
        let nonce = dice.next();
        scratch.resize(BYTES, 0);
        fill(nonce ^ SOURCE_SALT, 0, scratch);
        link.region.write(link.source(), scratch);
        for index in 0..RECEIVES {
            link.post_receive(index);
        }
        Talk {
            link,
            dice,
            spice,
            scratch,
            free: (0..SENDS).collect(),
            came: VecDeque::new(),
            nonce,
            sent: 0,
            received: 0,
            peer: None,
            writes: 0,
            writes_checked: 0,
            checked: 0,
            reading: None,
            quiet: false,
            parted: false,
            up: false,
        }
    }

    /// Talks until the connection ends. `rounds` counts messages for the supervisor.
    pub(crate) fn run(mut self, rounds: &std::sync::atomic::AtomicU64) -> Ending {
        let hello = Greeting {
            nonce: self.nonce,
            window: self.link.address(self.link.window()),
            source: self.link.address(self.link.source()),
            handle: u64::from(self.link.region.handle()),
        };
        self.message(HELLO, &hello.bytes());
        for _ in 1..TOKENS {
            self.data();
        }
        let mut last = Instant::now();
        loop {
            if stopping() {
                return Ending::Stopped;
            }
            let step = match self.came.pop_front() {
                Some(done) => Step::Done(done),
                None => self.link.step(PATIENCE),
            };
            match step {
                Step::Broken => return self.aftermath(),
                Step::Nothing if last.elapsed() > STANDSTILL => {
                    let (id, state) = (self.link.spec.id, self.link.state());
                    fault(&format!("link {id}: a standstill in state {state:?}"));
                }
                Step::Nothing => {}
                Step::Done(done) => {
                    last = Instant::now();
                    if !done.received {
                        self.was_sent(&done);
                        continue;
                    }
                    self.take(&done);
                    rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if self.parted && !self.link.spec.server {
                        return Ending::Parted;
                    }
                    self.link.post_receive(done.index);
                    if !self.answer(&done) {
                        return self.aftermath();
                    }
                    if !self.up && self.received > 2 * TOKENS as u64 {
                        self.up = true;
                        say(&format!("up {}", self.link.spec.id));
                    }
                }
            }
        }
    }

    /// Checks a message that has come.
    fn take(&mut self, done: &Done) {
        let kind = done.immediate & ((1 << KIND_BITS) - 1);
        self.writes_checked = done.immediate >> KIND_BITS;
        let mut bytes = std::mem::take(self.scratch);
        let place = self.link.receive_buffer(done.index);
        let text = &mut bytes[..done.length];
        self.link.region.read(place, text);
        match kind {
            HELLO if done.length == GREETING_BYTES => self.peer = Some(Greeting::read(text)),
            DATA => self.check("message", self.peer_seed(), 0, text),
            WROTE if done.length == 16 => {
                let word = |at: usize| u64::from_le_bytes(text[at..at + 8].try_into().expect("8"));
                let (length, seed) = (word(0) as usize, word(8));
                let text = &mut bytes[..length.min(BYTES)];
                self.link.region.read(self.link.window(), text);
                self.check("RDMA Write", seed, 0, text);
                self.checked += 1;
            }
            BYE | BYE_TOO => self.parted = true,
            _ => fault(&format!("a message of kind {kind}, {} bytes", done.length)),
        }
        *self.scratch = bytes;
        self.received += 1;
        count(&COUNTS.messages, 1);
        count(&COUNTS.bytes, done.length as u64);
    }

    fn peer_seed(&self) -> u64 {
        let Some(peer) = self.peer else {
            fault("a message before the greeting")
        };
        peer.nonce.wrapping_add(self.received)
    }

    fn check(&self, what: &str, seed: u64, offset: usize, bytes: &[u8]) {
        let bad = wrong(seed, offset, bytes);
        if bad > 0 {
            let id = self.link.spec.id;
            fault(&format!(
                "bytes {bad} of {} of a {what} on link {id}",
                bytes.len()
            ));
        }
    }

    /// Answers a message; false when the connection is over.
    fn answer(&mut self, done: &Done) -> bool {
        let bye = done.immediate & ((1 << KIND_BITS) - 1) == BYE;
        if !self.room(if bye || !self.spice.rdma { 1 } else { 3 }) {
            return false;
        }
        if bye {
            self.message(BYE_TOO, &[]);
            self.quiet = true;
        } else if self.quiet {
            // Nothing follows a goodbye.
        } else if self.leaves() {
            self.message(BYE, &[]);
            self.quiet = true;
        } else if self.spice.rdma {
            self.read_something();
            if !self.write_something() {
                self.data();
            }
        } else {
            self.data();
        }
        true
    }

    fn leaves(&mut self) -> bool {
        !self.link.spec.server && self.spice.parting > 0 && self.dice.roll(self.spice.parting) == 0
    }

    /// Waits until so many send descriptors are free.
    fn room(&mut self, wanted: usize) -> bool {
        let start = Instant::now();
        while self.free.len() < wanted {
            match self.link.step(Duration::ZERO) {
                Step::Broken => return false,
                Step::Done(done) if done.received => self.came.push_back(done),
                Step::Done(done) => self.was_sent(&done),
                Step::Nothing if self.link.state() != ViState::Connected => {
                    return false;
                }
                Step::Nothing if start.elapsed() > STANDSTILL => fault("a send that does not end"),
                Step::Nothing => std::thread::yield_now(),
            }
        }
        true
    }

    fn message(&mut self, kind: u32, bytes: &[u8]) {
        let Some(index) = self.free.pop() else {
            fault("no free descriptor")
        };
        self.link.region.write(self.link.send_buffer(index), bytes);
        let pieces = 1 + self.dice.roll(3) as usize;
        let immediate = self.checked << KIND_BITS | kind;
        self.link.post_send(index, bytes.len(), immediate, pieces);
        self.sent += 1;
    }

    /// A message of random size: small ones, large ones, and the limits.
    fn data(&mut self) {
        let max = self.link.bytes_max() as u64;
        let length = match self.dice.roll(16) {
            0 => 0,
            1 => max,
            2..9 => self.dice.roll(200.min(max)),
            9..13 => self.dice.roll(4096.min(max)),
            _ => self.dice.roll(max + 1),
        } as usize;
        let mut bytes = std::mem::take(self.scratch);
        fill(self.nonce.wrapping_add(self.sent), 0, &mut bytes[..length]);
        self.message(DATA, &bytes[..length]);
        *self.scratch = bytes;
    }

    fn write_something(&mut self) -> bool {
        let Some(peer) = self.peer else {
            return false;
        };
        if self.writes != self.writes_checked || self.dice.roll(4) > 0 {
            return false;
        }
        let Some(index) = self.free.pop() else {
            return false;
        };
        let length = 1 + self.dice.roll(self.link.bytes_max() as u64) as usize;
        let seed = self.dice.next();
        let mut bytes = std::mem::take(self.scratch);
        fill(seed, 0, &mut bytes[..length]);
        let place = self.link.send_buffer(index);
        self.link.region.write(place, &bytes[..length]);
        *self.scratch = bytes;
        let remote = (peer.window, peer.handle as u32);
        self.link
            .post_rdma(index, VIP_CONTROL_OP_RDMAWRITE, (place, length), remote);
        self.writes += 1;
        count(&COUNTS.rdma, 1);
        let announced = [(length as u64).to_le_bytes(), seed.to_le_bytes()].concat();
        self.message(WROTE, &announced);
        true
    }

    fn read_something(&mut self) {
        let able = self.link.node.read_levels & self.link.spec.level != 0;
        let Some(peer) = self.peer.filter(|_| able && self.reading.is_none()) else {
            return;
        };
        if self.dice.roll(5) > 0 {
            return;
        }
        let Some(index) = self.free.pop() else {
            return;
        };
        let max = self.link.bytes_max();
        let offset = self.dice.roll(max as u64 / 8) as usize * 8;
        let length = 1 + self.dice.roll((max - offset) as u64) as usize;
        let remote = (peer.source + offset as u64, peer.handle as u32);
        let place = (self.link.landing(), length);
        self.link
            .post_rdma(index, VIP_CONTROL_OP_RDMAREAD, place, remote);
        self.reading = Some((offset, length));
    }

    /// A send or an RDMA operation has completed.
    fn was_sent(&mut self, done: &Done) {
        self.free.push(done.index);
        if done.status & VIP_STATUS_OP_MASK != VIP_STATUS_OP_RDMA_READ {
            return;
        }
        let (Some((offset, length)), Some(peer)) = (self.reading.take(), self.peer) else {
            fault("an RDMA Read that nobody posted")
        };
        let mut bytes = std::mem::take(self.scratch);
        self.link
            .region
            .read(self.link.landing(), &mut bytes[..length]);
        self.check(
            "RDMA Read",
            peer.nonce ^ SOURCE_SALT,
            offset,
            &bytes[..length],
        );
        *self.scratch = bytes;
        count(&COUNTS.rdma, 1);
    }

    /// The connection is over without this side's doing. What had arrived is taken first.
    fn aftermath(mut self) -> Ending {
        let link = self.link;
        let mut arrived = std::mem::take(&mut self.came);
        link.drain(|done| arrived.push_back(done));
        for done in arrived {
            if done.received {
                self.take(&done);
            } else {
                self.was_sent(&done);
            }
        }
        if self.parted {
            return Ending::Parted;
        }
        let start = Instant::now();
        loop {
            let error = link.state() == ViState::Error;
            if error && link.take_loss() {
                say(&format!("lost {} {}", link.spec.id, now_ns()));
                return Ending::Lost;
            }
            if stopping() {
                return Ending::Stopped;
            }
            if start.elapsed() > STANDSTILL {
                fault(&format!(
                    "link {}: broken, in state {:?}, and not reported",
                    link.spec.id,
                    link.state()
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
