//! Cost of the engine: two connections exchange frames in memory, without a device. Prints nanoseconds per message for
//! both sides together: `cargo run --release -p vipl-wire --example cost`. To count instructions under
//! callgrind, pass the number of rounds of each measurement and a part of the name of one measurement: the difference
//! between two numbers of rounds is the cost of the rounds alone.

use std::time::Instant;

use vipl_wire::*;

/// Memory, queues that are always full of the same descriptor, and frames for reuse.
struct Host {
    memory: Vec<u8>,
    bytes: u32,
    posted: u32,
    sent: u32,
    received: u32,
    free: Vec<Vec<u8>>,
    out: Vec<(Vec<u8>, usize)>,
}

impl Transmit for Host {
    type Frame = Vec<u8>;
    #[inline(always)]
    fn frame(&mut self) -> Option<Vec<u8>> {
        self.free.pop()
    }
    #[inline(always)]
    fn transmit(&mut self, frame: Vec<u8>, bytes: usize) {
        self.out.push((frame, bytes));
    }
}

impl Env for Host {
    type Segments = usize;
    #[inline(always)]
    fn sends_posted(&self) -> u32 {
        self.posted
    }
    #[inline(always)]
    fn sends_completed(&self) -> u32 {
        self.sent
    }
    fn receives_posted(&self) -> u32 {
        self.received.wrapping_add(1000)
    }
    fn receives_completed(&self) -> u32 {
        self.received
    }
    #[inline(always)]
    fn outgoing(&mut self, _number: u32) -> Result<Outgoing<usize>, u32> {
        Ok(Outgoing {
            operation: Operation::Send,
            length: self.bytes,
            immediate: 0,
            flagged: false,
            fenced: false,
            address: 0,
            handle: 0,
            segments: 0,
        })
    }
    #[inline(always)]
    fn incoming(&mut self, _number: u32, _message: Option<u32>) -> Result<Incoming<usize>, u32> {
        Ok(Incoming {
            capacity: 1 << 20,
            segments: 0,
        })
    }
    #[inline(always)]
    fn gather(&mut self, from: &usize, offset: u32, out: &mut [u8]) -> Result<(), MemoryFault> {
        out.copy_from_slice(&self.memory[from + offset as usize..][..out.len()]);
        Ok(())
    }
    #[inline(always)]
    fn scatter(&mut self, to: &usize, offset: u32, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.memory[to + offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn place(&mut self, _: &Remote, _: u32, _: &[u8], _: bool) -> Result<(), MemoryFault> {
        Err(MemoryFault)
    }
    fn fetch(&mut self, _range: &Remote, _offset: u32, _out: &mut [u8]) -> Result<(), MemoryFault> {
        Err(MemoryFault)
    }
    #[inline(always)]
    fn complete_send(&mut self, _status: u32) -> bool {
        self.sent = self.sent.wrapping_add(1);
        true
    }
    #[inline(always)]
    fn complete_receive(&mut self, _status: u32, _length: u32, _immediate: u32) -> bool {
        self.received = self.received.wrapping_add(1);
        true
    }
    fn raise(&mut self, _code: u32, _opcode: u32) {}
    fn fail(&mut self, cause: Cause, _opcode: u32) {
        panic!("the connection broke: {cause:?}");
    }
}

struct Pair {
    hosts: [Host; 2],
    ends: [Connection; 2],
    now: u64,
}

fn pair(level: Level, mtu: u16, bytes: u32, seal: Option<SealKey>) -> Pair {
    let host = || Host {
        memory: vec![1; 1 << 20],
        bytes,
        posted: 0,
        sent: 0,
        received: 0,
        free: (0..600).map(|_| vec![0; usize::from(mtu)]).collect(),
        out: Vec::new(),
    };
    let end = |side: u32| {
        Connection::new(&Config {
            key: 0x1234_5678_9ABC_DEF0,
            side,
            level,
            mtu,
            max_transfer: 1 << 20,
            own_vi: side,
            peer_vi: 1 - side,
            own_endpoint: 1,
            peer_endpoint: 2,
            carry_immediate: false,
            ack_delay_ns: 20_000,
            patience_ns: vipl_wire::PATIENCE_NS,
            now_ns: 0,
            count_from: 0,
            shared_path: false,
            seal,
        })
    };
    Pair {
        hosts: [host(), host()],
        ends: [end(0), end(1)],
        now: 0,
    }
}

impl Pair {
    /// Passes the frames that one side has sent to the other.
    #[inline(always)]
    fn carry(&mut self, from: usize) {
        let (a, b) = self.hosts.split_at_mut(1);
        let (sender, receiver) = if from == 0 {
            (&mut a[0], &mut b[0])
        } else {
            (&mut b[0], &mut a[0])
        };
        for (frame, bytes) in sender.out.drain(..) {
            self.ends[1 - from].received(&frame[..bytes], self.now, receiver);
            sender.free.push(frame);
        }
        self.ends[1 - from].flush(self.now, receiver);
    }

    /// One message each way.
    fn ping(&mut self) {
        for side in 0..2 {
            self.now += 500;
            self.hosts[side].posted = self.hosts[side].posted.wrapping_add(1);
            self.ends[side].posted(self.now, &mut self.hosts[side]);
            self.carry(side);
        }
    }

    /// Messages in one direction, posted at once.
    fn burst(&mut self, messages: u32) {
        self.now += 10_000;
        self.hosts[0].posted = self.hosts[0].posted.wrapping_add(messages);
        self.ends[0].posted(self.now, &mut self.hosts[0]);
        while self.hosts[0].sent != self.hosts[0].posted {
            self.carry(0);
            self.ends[1].flush_acks(self.now, &mut self.hosts[1]);
            self.carry(1);
        }
    }
}

fn measure(name: &str, messages: u32, mut act: impl FnMut()) {
    if std::env::args()
        .nth(2)
        .is_some_and(|part| !name.contains(&part))
    {
        return;
    }
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let rounds: u32 = rounds.unwrap_or(20_000);
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let start = Instant::now();
        for _ in 0..rounds {
            act();
        }
        best =
            best.min(start.elapsed().as_nanos() as f64 / f64::from(rounds) / f64::from(messages));
    }
    println!("{name:40} {best:8.1} ns per message");
}

fn main() {
    for level in [Level::Unreliable, Level::Delivery] {
        for bytes in [8, 1024] {
            let mut there = pair(level, 1500, bytes, None);
            measure(&format!("{level:?}, {bytes} bytes to and fro"), 2, || {
                there.ping()
            });
            if level == Level::Delivery {
                let mut many = pair(level, 1500, bytes, None);
                measure(&format!("{level:?}, {bytes} bytes, 64 at once"), 64, || {
                    many.burst(64)
                });
            }
        }
    }
    for mtu in [1500, 9000] {
        let mut large = pair(Level::Delivery, mtu, 65_536, None);
        measure(&format!("Delivery, 64 KiB in frames of {mtu}"), 1, || {
            large.burst(1)
        });
    }
    let key = Some([7; 32]);
    for bytes in [8, 1024] {
        let mut there = pair(Level::Delivery, 1500, bytes, key);
        measure(&format!("sealed, {bytes} bytes to and fro"), 2, || {
            there.ping()
        });
        let mut many = pair(Level::Delivery, 1500, bytes, key);
        measure(&format!("sealed, {bytes} bytes, 64 at once"), 64, || {
            many.burst(64)
        });
    }
    for mtu in [1500, 9000] {
        let mut large = pair(Level::Delivery, mtu, 65_536, key);
        measure(&format!("sealed, 64 KiB in frames of {mtu}"), 1, || {
            large.burst(1)
        });
    }
}
