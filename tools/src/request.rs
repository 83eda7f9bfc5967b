//! What a client may ask a server for, with every number in bounds.
//!
//! A server over a network serves tests and nothing else: a [`Request`] names no process, no address of this
//! side, no device and no socket. What a process asks of one that it has started is in `machine` and `cable`.

#![forbid(unsafe_code)]

use std::ops::RangeInclusive;

use serde_json::{Value, json};
use vipl_client::Attributes;

use crate::endpoint::{Layout, ViSpec};
use crate::region::Span;
use crate::{Error, Result};

/// Messages or turns of one run at most.
pub const TURNS_MAX: u64 = 10_000_000_000;
/// Channels of one client at most.
pub const CHANNELS_MAX: u64 = 1 << 30;
/// Threads that serve one client at most.
pub const THREADS_MAX: u64 = 32;
/// Default of the registered memory that a server grants a client.
pub const MEMORY: u64 = 256 << 20;

/// Limits that a server enforces.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bits of the levels that the device has.
    pub levels: u16,
    /// MaxTransferSize of the device.
    pub transfer_max: u64,
    /// Descriptors of a queue.
    pub queue_max: u64,
    /// VIs of the device.
    pub vi_max: u64,
    /// Bytes of memory, for each test.
    pub memory: u64,
}

impl Bounds {
    /// Those of a device.
    #[must_use]
    pub fn of(nic: &Attributes, memory: u64) -> Self {
        Self {
            levels: nic.reliability.bits(),
            transfer_max: nic.transfer_max,
            queue_max: nic.descriptors_per_queue_max,
            vi_max: nic.vi_max,
            memory,
        }
    }
}

/// Descriptors of each queue.
pub(crate) const DEPTH: usize = 8;
/// Buffers that small RDMA messages are written to, in turn.
const PLACES: usize = 64;
/// Largest message for which there are so many.
const PLACES_BYTES: usize = 512;

/// A ping-pong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The VI.
    pub vi: ViSpec,
    /// Bytes of a message.
    pub bytes: usize,
    /// Sleep in VipRecvWait instead of polling.
    pub wait: bool,
    /// Fill and check every byte.
    pub check: bool,
    /// RDMA Write instead of send.
    pub rdma: bool,
}

impl Spec {
    /// As the client asks for it.
    #[must_use]
    pub fn to_json(self, channel: u32) -> Value {
        json!({
            "op": "pingpong", "channel": channel, "level": self.vi.level,
            "transfer_max": self.vi.transfer_max, "bytes": self.bytes, "wait": self.wait,
            "check": self.check, "rdma": self.rdma,
        })
    }

    /// Whether each message has a buffer of its own, for the latency of a cache line depends on its address.
    fn is_spread(&self) -> bool {
        self.rdma && self.bytes <= PLACES_BYTES
    }

    /// Memory of either side.
    #[must_use]
    pub fn layout(&self) -> Layout {
        let depth = if self.is_spread() { PLACES } else { DEPTH };
        Layout {
            sends: depth,
            receives: depth,
            bytes: self.bytes,
            separate: self.check || self.is_spread(),
        }
    }
}

/// What flows in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Messages.
    Send,
    /// RDMA Writes.
    Write,
    /// RDMA Reads.
    Read,
}

/// A stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// What flows.
    pub kind: Kind,
    /// The VIs.
    pub vi: ViSpec,
    /// Bytes of a message.
    pub bytes: usize,
    /// Operations under way at most.
    pub window: u64,
    /// The server waits for completions instead of polling.
    pub wait: bool,
}

/// Descriptors for small messages that both sides of a stream have beside the stream's own.
pub const SMALL: usize = 16;

impl StreamSpec {
    /// Memory of the side that sends, or of the one that receives.
    #[must_use]
    pub fn layout(&self, is_sender: bool) -> Layout {
        let window = self.window as usize;
        let (sends, receives) = match (self.kind, is_sender) {
            (Kind::Send, true) => (window, SMALL),
            (Kind::Send, false) => (SMALL, 2 * window),
            (_, true) => (window + 1, SMALL),
            (_, false) => (SMALL, SMALL),
        };
        Layout {
            sends,
            receives,
            bytes: self.bytes,
            separate: false,
        }
    }
}

/// Tests with many VIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// Polling a CQ.
    Cq,
    /// Messages on a random one.
    CqRandom,
    /// Connecting.
    Connect,
    /// Memory of idle pairs.
    Memory,
}

/// Bytes of the descriptors and buffers of one of many VIs.
pub const CROWD_SLOT: usize = 192;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// The first request of a client over a network.
    Hello,
    /// To play ping-pong on this channel.
    PingPong(Spec, u32),
    /// To receive a stream on this channel.
    Stream(StreamSpec, u32),
    /// To receive a stream of messages on this channel, and to send one on the next.
    Duplex(StreamSpec, u32),
    /// To receive that many streams of messages, each by a thread of its own, on this channel and those that follow.
    Threads(StreamSpec, usize, u32),
    /// To connect that many VIs, on this channel and those that follow.
    Crowd(Crowd, ViSpec, usize, u32),
    /// The client's memory for RDMA.
    Target(Span),
    /// So many messages or turns of what is open.
    Go(u64),
    /// The end of what is open.
    End,
    /// The end of the session.
    Quit,
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// It is none, or a number is out of bounds.
    pub fn read(question: &Value, bounds: &Bounds) -> Result<Self> {
        let flag = |name: &str| question[name].as_bool().unwrap_or(false);
        let number = |name, range| number(question, name, range);
        let channel =
            |count: u64| Ok::<_, Error>(number("channel", 0..=CHANNELS_MAX - count)? as u32);
        let op = question["op"].as_str().unwrap_or_default();
        let request = match op {
            "hello" => Self::Hello,
            "pingpong" => {
                let (vi, bytes) = message(question, bounds)?;
                let (wait, check, rdma) = (flag("wait"), flag("check"), flag("rdma"));
                let spec = Spec {
                    vi,
                    bytes,
                    wait,
                    check,
                    rdma,
                };
                if rdma && bytes == 0 {
                    return Err(refused("an RDMA ping-pong needs at least one byte"));
                }
                fits(spec.layout().total(), bounds)?;
                Self::PingPong(spec, channel(1)?)
            }
            "stream" => {
                let spec = stream(question, bounds)?;
                fits(spec.layout(false).total(), bounds)?;
                Self::Stream(spec, channel(1)?)
            }
            "duplex" => {
                let spec = messages(question, bounds)?;
                let both = [true, false].map(|sends| spec.layout(sends).total());
                let total = both[0].zip(both[1]).and_then(|(a, b)| a.checked_add(b));
                fits(total, bounds)?;
                Self::Duplex(spec, channel(2)?)
            }
            "threads" => {
                let spec = messages(question, bounds)?;
                let count = number("threads", 1..=THREADS_MAX.min(bounds.vi_max))?;
                let one = spec.layout(false).total();
                fits(
                    one.and_then(|bytes| bytes.checked_mul(count as usize)),
                    bounds,
                )?;
                Self::Threads(spec, count as usize, channel(count)?)
            }
            "cq" | "cq-random" | "connect" | "memory" => {
                let crowd = match op {
                    "cq" => Crowd::Cq,
                    "cq-random" => Crowd::CqRandom,
                    "connect" => Crowd::Connect,
                    _ => Crowd::Memory,
                };
                let vi = vi_spec(question, bounds)?;
                let count = number("vis", 1..=bounds.vi_max.min(CHANNELS_MAX))?;
                fits((count as usize).checked_mul(CROWD_SLOT), bounds)?;
                Self::Crowd(crowd, vi, count as usize, channel(count)?)
            }
            "target" => Self::Target(Span {
                address: number("address", 0..=u64::MAX)?,
                handle: number("handle", 0..=u64::from(u32::MAX))? as u32,
                length: number("length", 0..=u64::from(u32::MAX))? as u32,
            }),
            "go" => Self::Go(number("n", 0..=TURNS_MAX)?),
            "end" => Self::End,
            "quit" => Self::Quit,
            other => return Err(unknown(other)),
        };
        Ok(request)
    }
}

/// The refusal of a request that this side does not know, or does not serve here.
#[must_use]
pub fn unknown(op: &str) -> Error {
    let op: String = op.chars().take(40).collect();
    refused(&format!(
        "unknown request {op:?}; a server serves tests only, and both processes need the same version"
    ))
}

fn refused(why: &str) -> Error {
    Error::Refused(why.to_owned())
}

/// A number of a request.
///
/// # Errors
/// It is none, or out of bounds.
pub fn number(question: &Value, name: &str, range: RangeInclusive<u64>) -> Result<u64> {
    let given = question[name].as_u64();
    given
        .filter(|number| range.contains(number))
        .ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            let given: String = question[name].to_string().chars().take(40).collect();
            refused(&format!(
                "{name} is {given}; this server accepts {least} to {most}"
            ))
        })
}

fn vi_spec(question: &Value, bounds: &Bounds) -> Result<ViSpec> {
    let level = number(question, "level", 1..=u64::from(u16::MAX))? as u16;
    if !level.is_power_of_two() || bounds.levels & level == 0 {
        let has = crate::nic::level_names(bounds.levels);
        return Err(refused(&format!(
            "level is {level}; this server's device has {has}"
        )));
    }
    Ok(ViSpec {
        level,
        transfer_max: number(question, "transfer_max", 0..=bounds.transfer_max)?,
    })
}

/// A VI, and the bytes of its messages.
fn message(question: &Value, bounds: &Bounds) -> Result<(ViSpec, usize)> {
    let vi = vi_spec(question, bounds)?;
    let most = vi.transfer_max.min(bounds.memory).min(u64::from(u32::MAX));
    Ok((vi, number(question, "bytes", 0..=most)? as usize))
}

fn stream(question: &Value, bounds: &Bounds) -> Result<StreamSpec> {
    let (vi, bytes) = message(question, bounds)?;
    let kind = match number(question, "kind", 0..=2)? {
        0 => Kind::Send,
        1 => Kind::Write,
        _ => Kind::Read,
    };
    Ok(StreamSpec {
        kind,
        vi,
        bytes,
        window: number(question, "window", 1..=(bounds.queue_max / 2).max(1))?,
        wait: question["wait"].as_bool().unwrap_or(false),
    })
}

/// A stream of messages.
fn messages(question: &Value, bounds: &Bounds) -> Result<StreamSpec> {
    let spec = stream(question, bounds)?;
    match spec.kind {
        Kind::Send => Ok(spec),
        _ => Err(refused("kind is not 0; this test has messages only")),
    }
}

fn fits(total: Option<usize>, bounds: &Bounds) -> Result<()> {
    match total {
        Some(bytes) if bytes as u64 <= bounds.memory => Ok(()),
        _ => Err(refused(&format!(
            "the test needs more than {} bytes of memory, which this server gives a client (--client-memory)",
            bounds.memory
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        levels: 6,
        transfer_max: 1 << 30,
        queue_max: 1024,
        vi_max: 1024,
        memory: MEMORY,
    };

    fn stream(name: &str, value: Value) -> Result<Request> {
        let mut question = json!({"op": "stream", "channel": 7, "kind": 0, "level": 2,
            "transfer_max": 65536, "bytes": 4096, "window": 64, "wait": false});
        question[name] = value;
        Request::read(&question, &BOUNDS)
    }

    #[test]
    fn every_number_has_a_bound_and_the_refusal_names_it() {
        assert!(stream("bytes", json!(65536)).is_ok());
        for (name, value) in [
            ("bytes", json!(65537)),
            ("bytes", json!(-1)),
            ("bytes", json!(null)),
            ("transfer_max", json!((1u64 << 30) + 1)),
            ("window", json!(0)),
            ("window", json!(513)),
            ("kind", json!(3)),
            ("level", json!(3)),
            ("level", json!(1)),
            ("channel", json!(u64::from(u32::MAX))),
        ] {
            let said = stream(name, value.clone()).unwrap_err().to_string();
            assert!(
                said.contains(name) && said.contains(&value.to_string()),
                "{said}"
            );
        }
        for (op, name, value) in [
            ("connect", "vis", json!(1025)),
            ("cq", "vis", json!(0)),
            ("go", "n", json!(TURNS_MAX + 1)),
            ("target", "handle", json!(1u64 << 32)),
        ] {
            let mut question =
                json!({"op": op, "level": 2, "transfer_max": 4096, "channel": 0, "address": 0});
            question[name] = value;
            let said = Request::read(&question, &BOUNDS).unwrap_err().to_string();
            assert!(said.contains(name), "{said}");
        }
    }

    #[test]
    fn streams_of_one_client_are_bounded_together() {
        let read = |op: &str, bytes: u64, threads: u64| {
            let question = json!({"op": op, "channel": 7, "kind": 0, "level": 2, "threads": threads,
                "transfer_max": 1 << 30, "bytes": bytes, "window": 64});
            Request::read(&question, &BOUNDS).map_err(|error| error.to_string())
        };
        assert!(matches!(
            read("threads", 4096, 32),
            Ok(Request::Threads(_, 32, 7))
        ));
        assert!(matches!(read("duplex", 4096, 0), Ok(Request::Duplex(_, 7))));
        // Two buffers each.
        assert!(read("threads", 16 << 20, 4).is_ok());
        for (op, bytes, threads, said) in [
            (
                "threads",
                4096,
                0,
                "threads is 0; this server accepts 1 to 32",
            ),
            ("threads", 4096, 33, "threads is 33"),
            ("threads", 16 << 20, 16, "bytes of memory"),
            ("duplex", 64 << 20, 1, "bytes of memory"),
        ] {
            let refusal = read(op, bytes, threads).unwrap_err();
            assert!(refusal.contains(said), "{refusal}");
        }
        let writes = json!({"op": "duplex", "channel": 1, "kind": 1, "level": 2,
            "transfer_max": 4096, "bytes": 8, "window": 4});
        assert!(Request::read(&writes, &BOUNDS).is_err());
    }

    #[test]
    fn a_spec_survives_the_control_channel() {
        let vi = ViSpec {
            level: 4,
            transfer_max: 1 << 30,
        };
        let spec = Spec {
            vi,
            bytes: 4096,
            wait: true,
            check: false,
            rdma: true,
        };
        let read = Request::read(&spec.to_json(3), &BOUNDS).unwrap();
        assert_eq!(read, Request::PingPong(spec, 3));
    }

    #[test]
    fn memory_is_bounded_in_total() {
        let question = |bytes: u64, check| {
            json!({"op": "pingpong", "channel": 1, "level": 4, "transfer_max": 1 << 30,
                "bytes": bytes, "check": check})
        };
        let said = |bytes, check| {
            Request::read(&question(bytes, check), &BOUNDS).map_err(|e| e.to_string())
        };
        assert!(said(64 << 20, false).is_ok());
        let refusal = said(64 << 20, true).unwrap_err();
        assert!(refusal.contains("268435456 bytes of memory"), "{refusal}");
    }

    #[test]
    fn what_is_for_processes_of_one_session_is_no_request() {
        for op in [
            "limit-turns",
            "limit-stream",
            "limit-buffers",
            "limit-writes",
            "limit-halves",
            "cable-open",
            "cable-tcp",
            "cable-udp",
            "cable-turns",
            "cable-stream",
            "usage",
            "touch",
            "",
        ] {
            let said = Request::read(&json!({"op": op}), &BOUNDS)
                .unwrap_err()
                .to_string();
            assert!(said.contains("a server serves tests only"), "{said}");
        }
    }
}
