//! The tests by name, at both sides.

use vipl_tools::request::{Crowd, Kind, Request};
use vipl_tools::server::{self, Served};
use vipl_tools::{Error, Result, pingpong, size};

use crate::bench::{Bench, Params};
use crate::cq::{self, CqCost};
use crate::duplex::{self, Duplex};
use crate::idle::Idle;
use crate::latency::{InCompany, Latency};
use crate::machine::Session;
use crate::memory::{self, IdleMemory};
use crate::overlap::Overlap;
use crate::peers::Peer;
use crate::profiled::Profiled;
use crate::random::{self, CqRandom};
use crate::reference::Reference;
use crate::setup::{self, Connect};
use crate::stream::{self, Stream};
use crate::threads::{self, Threads};

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Latency,
    Bandwidth,
    Bidirectional,
    Threads,
    Rate,
    Write,
    WriteLatency,
    Read,
    Library,
    Company,
    Profiled,
    Idle,
    Cq,
    IdleMemory,
    Register,
    Post,
    Calls,
    Within,
    Overlap,
    CqRandom,
    Connect,
    Open,
    Pinned,
    Scale,
}

/// All of them, in the order in which `all` runs them; what `write` measures is two.
const ALL: [(Test, &str); 24] = [
    (Test::Latency, "latency"),
    (Test::Bandwidth, "bandwidth"),
    (Test::Bidirectional, "bidirectional"),
    (Test::Threads, "threads"),
    (Test::Rate, "rate"),
    (Test::WriteLatency, "write-latency"),
    (Test::Write, "write-bandwidth"),
    (Test::Read, "read"),
    (Test::Library, "library"),
    (Test::Company, "company"),
    (Test::Profiled, "profiled"),
    (Test::Idle, "idle"),
    (Test::Cq, "cq"),
    (Test::IdleMemory, "idle-memory"),
    (Test::Register, "register"),
    (Test::Post, "post"),
    (Test::Calls, "calls"),
    (Test::Within, "within"),
    (Test::Overlap, "overlap"),
    (Test::CqRandom, "cq-random"),
    (Test::Connect, "connect"),
    (Test::Open, "open"),
    (Test::Pinned, "pinned"),
    (Test::Scale, "scale"),
];

/// Bytes from which it pays that both processors copy.
const HALVES_MIN: usize = 64 << 10;

impl Test {
    /// The tests that a word of the command line stands for; None if it is no test.
    pub(crate) fn named(word: &str) -> Option<Vec<Self>> {
        match word {
            "all" => Some(ALL.map(|(test, _)| test).to_vec()),
            "write" => Some(vec![Self::WriteLatency, Self::Write]),
            _ => {
                let found = ALL.iter().find(|(_, name)| *name == word);
                found.map(|(test, _)| vec![*test])
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        ALL.iter()
            .find(|(test, _)| *test == self)
            .map_or("", |(_, name)| name)
    }

    /// Whether it needs no peer, or starts its peers itself.
    pub(crate) fn is_alone(self) -> bool {
        use Test::{Calls, Library, Open, Pinned, Post, Register, Scale, Within};
        matches!(
            self,
            Register | Post | Calls | Within | Open | Pinned | Scale | Library
        )
    }

    /// Whether a user need not start a peer for it.
    pub(crate) fn starts_peers(self) -> bool {
        self.is_alone() || self == Self::Idle
    }

    /// The sizes that are measured when none are asked for.
    pub(crate) fn sizes(self) -> Vec<usize> {
        match self {
            Self::Latency | Self::WriteLatency => vec![8, 64, 512, 4096, 16384, 65536],
            Self::Bandwidth | Self::Bidirectional | Self::Threads | Self::Write | Self::Read => {
                size::powers(4096, 65536)
            }
            Self::Register => vec![4096, 65536, 1 << 20, 16 << 20],
            Self::Overlap => vec![65_472],
            _ => vec![8],
        }
    }

    /// Whether the size means nothing to it.
    pub(crate) fn is_sizeless(self) -> bool {
        use Test::{Connect, Cq, CqRandom, Idle, IdleMemory, Library, Open, Post};
        matches!(
            self,
            Cq | CqRandom | Idle | IdleMemory | Library | Post | Connect | Open
        )
    }

    /// The limits that it is compared with beside the cache line.
    pub(crate) fn limits(self, bytes: usize) -> &'static [Reference] {
        use Reference::{BothHalves, FutexTurns, Memcpy, ProcessWrite, ProcessWriteTurns};
        match self {
            Self::Latency if bytes <= 8 => &[],
            Self::WriteLatency if bytes <= 8 => &[ProcessWriteTurns],
            Self::Latency | Self::WriteLatency => &[Reference::RawPingPong],
            Self::Bandwidth | Self::Write if bytes >= HALVES_MIN => {
                &[Memcpy, ProcessWrite, BothHalves]
            }
            Self::Bandwidth | Self::Write | Self::Read => &[Memcpy, ProcessWrite],
            Self::Rate => &[Reference::RawRing],
            Self::Company => &[FutexTurns],
            _ => &[],
        }
    }

    /// The other libraries that it is compared with.
    pub(crate) fn peers(self, bytes: usize) -> &'static [Peer] {
        match self {
            Self::Latency => &[Peer::UcxAm, Peer::UcxTag, Peer::Libfabric],
            Self::WriteLatency if bytes <= 8 => &[Peer::UcxPut],
            Self::Bandwidth => &[Peer::UcxTagStream],
            Self::Write => &[Peer::UcxPutStream],
            Self::Rate => &[Peer::UcxTagRate],
            Self::Company => &[Peer::UcxAmMean],
            _ => &[],
        }
    }

    /// The limits of the interface that it is compared with when the two processes are on two hosts.
    pub(crate) fn cable_limits(self) -> &'static [Reference] {
        match self {
            Self::Latency | Self::WriteLatency => &[
                Reference::FrameTurns,
                Reference::UdpTurns,
                Reference::TcpTurns,
            ],
            Self::Bandwidth | Self::Write | Self::Read => {
                &[Reference::FrameStream, Reference::UdpTrains]
            }
            Self::Rate => &[Reference::FrameRate],
            _ => &[],
        }
    }

    /// Connects a test that needs a peer; `cpus` get company.
    pub(crate) fn open(
        self,
        session: &mut Session,
        params: Params,
        cpus: &[usize],
    ) -> Result<Box<dyn Bench>> {
        Ok(match self {
            Self::Latency => Box::new(Latency::open(session, params, false)?),
            Self::WriteLatency => Box::new(Latency::open(session, params, true)?),
            Self::Bandwidth => Box::new(Stream::open(session, params, Kind::Send, false)?),
            Self::Bidirectional => Box::new(Duplex::open(session, params)?),
            Self::Threads => Box::new(Threads::open(session, params)?),
            Self::Rate => Box::new(Stream::open(session, params, Kind::Send, true)?),
            Self::Write => Box::new(Stream::open(session, params, Kind::Write, false)?),
            Self::Read => Box::new(Stream::open(session, params, Kind::Read, false)?),
            Self::Company => Box::new(InCompany::open(params, cpus)),
            Self::Profiled => Box::new(Profiled::open(session, params)?),
            Self::Idle => Box::new(Idle::open(params)),
            Self::Cq => Box::new(CqCost::open(params)),
            Self::IdleMemory => Box::new(IdleMemory::open(session, params)?),
            Self::Overlap => Box::new(Overlap::open(session, params)?),
            Self::CqRandom => Box::new(CqRandom::open(params)),
            Self::Connect => Box::new(Connect::open(params)),
            _ => return Err(Error::Usage(format!("{} needs no peer", self.name()))),
        })
    }
}

/// The server's loop: serves whatever the client asks for.
pub(crate) fn serve(session: &mut Session) -> Result<Served> {
    server::each(session, |session, request| match request {
        Request::PingPong(spec, channel) => pingpong::serve(session, spec, channel),
        Request::Stream(spec, channel) => stream::serve(session, spec, channel),
        Request::Duplex(spec, channel) => duplex::serve(session, spec, channel),
        Request::Threads(spec, count, first) => threads::serve(session, spec, count, first),
        Request::Crowd(crowd, vi, count, first) => {
            let serve = match crowd {
                Crowd::Cq => cq::serve,
                Crowd::CqRandom => random::serve,
                Crowd::Connect => setup::serve,
                Crowd::Memory => memory::serve,
            };
            serve(session, vi, count, first)
        }
        _ => Err(Error::Refused("no test is open".to_owned())),
    })
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn every_test_is_found_by_its_name() {
        for (test, name) in ALL {
            assert_eq!(Test::named(name), Some(vec![test]));
            assert_eq!(test.name(), name);
        }
        assert_eq!(
            Test::named("write"),
            Some(vec![Test::WriteLatency, Test::Write])
        );
        assert_eq!(Test::named("localhost"), None);
        assert_eq!(Test::named("all").map(|tests| tests.len()), Some(ALL.len()));
    }
}
