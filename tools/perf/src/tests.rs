//! The tests by name, at both sides.

use vipl_tools::nic::Nic;
use vipl_tools::request::{Crowd, Kind, Request};
use vipl_tools::server::{self, Served};
use vipl_tools::stats::median;
use vipl_tools::{Error, Result, pingpong, size};

use crate::alone::{Alone, What};
use crate::bench::{Bench, Figure, Measured, Params, Plan, repeat};
use crate::cq::{self, CqCost};
use crate::fresh::Fresh;
use crate::latency::Latency;
use crate::machine::Session;
use crate::memory::{self, IdleMemory};
use crate::overlap::Overlap;
use crate::peers::Peer;
use crate::random::{self, CqRandom};
use crate::reference::Reference;
use crate::setup::{self, Connect};
use crate::stream::{self, Stream};

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Latency,
    Bandwidth,
    Rate,
    Write,
    WriteLatency,
    Read,
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
const ALL: [Test; 18] = [
    Test::Latency,
    Test::Bandwidth,
    Test::Rate,
    Test::WriteLatency,
    Test::Write,
    Test::Read,
    Test::Cq,
    Test::IdleMemory,
    Test::Register,
    Test::Post,
    Test::Calls,
    Test::Within,
    Test::Overlap,
    Test::CqRandom,
    Test::Connect,
    Test::Open,
    Test::Pinned,
    Test::Scale,
];

/// Bytes from which it pays that both processors copy.
const HALVES_MIN: usize = 64 << 10;

impl Test {
    /// The tests that a word of the command line stands for; None if it is no test.
    pub(crate) fn named(word: &str) -> Option<Vec<Self>> {
        match word {
            "all" => Some(ALL.to_vec()),
            "write" => Some(vec![Self::WriteLatency, Self::Write]),
            _ => {
                let found = ALL.iter().find(|test| test.name() == word);
                found.map(|test| vec![*test])
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::Rate => "rate",
            Self::Write => "write-bandwidth",
            Self::WriteLatency => "write-latency",
            Self::Read => "read",
            Self::Cq => "cq",
            Self::IdleMemory => "idle-memory",
            Self::Register => "register",
            Self::Post => "post",
            Self::Calls => "calls",
            Self::Within => "within",
            Self::Overlap => "overlap",
            Self::CqRandom => "cq-random",
            Self::Connect => "connect",
            Self::Open => "open",
            Self::Pinned => "pinned",
            Self::Scale => "scale",
        }
    }

    /// Whether it needs no peer, or starts its peers itself.
    pub(crate) fn is_alone(self) -> bool {
        matches!(
            self,
            Self::Register | Self::Post | Self::Calls | Self::Within
        ) || self.is_apart()
    }

    /// Whether it is measured in processes that are started for it.
    pub(crate) fn is_apart(self) -> bool {
        matches!(self, Self::Open | Self::Pinned | Self::Scale)
    }

    /// The sizes that are measured when none are asked for.
    pub(crate) fn sizes(self) -> Vec<usize> {
        match self {
            Self::Latency | Self::WriteLatency => vec![8, 64, 512, 4096, 16384, 65536],
            Self::Bandwidth | Self::Write | Self::Read => size::powers(4096, 65536),
            Self::Rate | Self::Post | Self::Calls | Self::Within | Self::Pinned | Self::Scale => {
                vec![8]
            }
            Self::Register => vec![4096, 65536, 1 << 20, 16 << 20],
            Self::Cq | Self::CqRandom | Self::IdleMemory | Self::Connect | Self::Open => vec![8],
            Self::Overlap => vec![65_472],
        }
    }

    /// Whether the size means nothing to it.
    fn is_sizeless(self) -> bool {
        matches!(
            self,
            Self::Cq | Self::CqRandom | Self::IdleMemory | Self::Post | Self::Connect | Self::Open
        )
    }

    /// The limits that it is compared with; the cache line also shows how far apart the two CPUs are.
    pub(crate) fn limits(self, bytes: usize) -> &'static [Reference] {
        match self {
            Self::Latency if bytes <= 8 => &[Reference::CacheLine],
            Self::WriteLatency if bytes <= 8 => {
                &[Reference::CacheLine, Reference::ProcessWriteTurns]
            }
            Self::Latency | Self::WriteLatency => &[Reference::CacheLine, Reference::RawPingPong],
            Self::Bandwidth | Self::Write if bytes >= HALVES_MIN => &[
                Reference::CacheLine,
                Reference::Memcpy,
                Reference::ProcessWrite,
                Reference::BothHalves,
            ],
            Self::Bandwidth | Self::Write | Self::Read => &[
                Reference::CacheLine,
                Reference::Memcpy,
                Reference::ProcessWrite,
            ],
            Self::Rate => &[Reference::CacheLine, Reference::RawRing],
            Self::Cq | Self::CqRandom => &[Reference::CacheLine],
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
            Self::Bandwidth | Self::Write | Self::Read => &[Reference::FrameStream],
            Self::Rate => &[Reference::FrameRate],
            _ => &[],
        }
    }

    fn open(self, session: &mut Session, params: Params) -> Result<Box<dyn Bench>> {
        Ok(match self {
            Self::Latency => Box::new(Latency::open(session, params, false)?),
            Self::WriteLatency => Box::new(Latency::open(session, params, true)?),
            Self::Bandwidth => Box::new(Stream::open(session, params, Kind::Send, false)?),
            Self::Rate => Box::new(Stream::open(session, params, Kind::Send, true)?),
            Self::Write => Box::new(Stream::open(session, params, Kind::Write, false)?),
            Self::Read => Box::new(Stream::open(session, params, Kind::Read, false)?),
            Self::Cq => Box::new(CqCost::open(params)),
            Self::IdleMemory => Box::new(IdleMemory::open(session, params)?),
            Self::Register => Box::new(Alone::open(&session.nic, params, What::Register)?),
            Self::Post => Box::new(Alone::open(&session.nic, params, What::Post)?),
            Self::Calls => Box::new(Alone::open(&session.nic, params, What::Calls)?),
            Self::Within => Box::new(Alone::open(&session.nic, params, What::Within)?),
            Self::Overlap => Box::new(Overlap::open(session, params)?),
            Self::CqRandom => Box::new(CqRandom::open(params)),
            Self::Connect => Box::new(Connect::open(params)),
            Self::Open | Self::Pinned | Self::Scale => {
                return Err(Error::Usage(format!("{} is measured apart", self.name())));
            }
        })
    }
}

/// Measures one test at one size.
pub(crate) fn measure(
    test: Test,
    session: &mut Session,
    params: Params,
    plan: Plan<'_>,
) -> Result<Measured> {
    let mut bench = test.open(session, params)?;
    let bytes = (!test.is_sizeless()).then_some(params.bytes);
    let plan = if test == Test::IdleMemory {
        Plan { runs: 1, ..plan }
    } else {
        plan
    };
    let measured = repeat(test.name(), bytes, bench.as_mut(), session, plan)?;
    bench.close(session)?;
    Ok(measured)
}

/// Measures a test that needs no peer.
pub(crate) fn measure_alone(
    test: Test,
    nic: &Nic,
    params: Params,
    runs: usize,
) -> Result<Measured> {
    let what = match test {
        Test::Post => What::Post,
        Test::Calls => What::Calls,
        Test::Within => What::Within,
        _ => What::Register,
    };
    let alone = Alone::open(nic, params, what)?;
    let all = (0..runs)
        .map(|_| alone.run_once())
        .collect::<Result<Vec<_>>>()?;
    let bytes = (!test.is_sizeless()).then_some(params.bytes);
    Ok(of_runs(test.name(), bytes, &all, median))
}

/// Measures memory: the most that any of the runs took, each in fresh processes.
pub(crate) fn measure_memory(
    fresh: &Fresh,
    vis: usize,
    unset: Option<&str>,
    runs: usize,
) -> Result<Measured> {
    let all = (0..runs).map(|_| memory::in_fresh_processes(fresh, vis, unset));
    let all = all.collect::<Result<Vec<_>>>()?;
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Ok(of_runs(Test::IdleMemory.name(), None, &all, most))
}

/// Measures a test in processes that are started for it.
pub(crate) fn measure_apart(
    test: Test,
    params: Params,
    runs: usize,
    once: impl Fn() -> Result<Vec<Figure>>,
) -> Result<Measured> {
    let all = (0..runs).map(|_| once()).collect::<Result<Vec<_>>>()?;
    let bytes = (!test.is_sizeless()).then_some(params.bytes);
    Ok(of_runs(test.name(), bytes, &all, median))
}

fn of_runs(
    test: &'static str,
    bytes: Option<usize>,
    runs: &[Vec<Figure>],
    pick: impl Fn(&[f64]) -> f64,
) -> Measured {
    let first = runs.first().cloned().unwrap_or_default();
    let figures = first.into_iter().enumerate().map(|(index, figure)| {
        let values: Vec<f64> = runs.iter().map(|run| run[index].value).collect();
        Figure {
            value: pick(&values),
            ..figure
        }
    });
    let figures = figures.collect();
    Measured {
        test,
        bytes,
        figures,
        bounds: Vec::new(),
        runs: runs.len(),
        discarded: 0,
        unsteady: false,
    }
}

/// The server's loop: serves whatever the client asks for.
pub(crate) fn serve(session: &mut Session) -> Result<Served> {
    server::each(session, |session, request| match request {
        Request::PingPong(spec, channel) => pingpong::serve(session, spec, channel),
        Request::Stream(spec, channel) => stream::serve(session, spec, channel),
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
    use crate::bench::figure;

    #[test]
    fn every_test_is_found_by_its_name() {
        for test in ALL {
            assert_eq!(Test::named(test.name()), Some(vec![test]));
        }
        assert_eq!(
            Test::named("write"),
            Some(vec![Test::WriteLatency, Test::Write])
        );
        assert_eq!(Test::named("localhost"), None);
        assert_eq!(Test::named("all").map(|tests| tests.len()), Some(ALL.len()));
    }

    #[test]
    fn memory_takes_the_worst_run() {
        let runs = [
            vec![figure("per pair", 9.0, "KiB")],
            vec![figure("per pair", 12.0, "KiB")],
        ];
        let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(
            of_runs("idle-memory", None, &runs, most).figures[0].value,
            12.0
        );
        assert_eq!(of_runs("x", None, &runs, median).figures[0].value, 10.5);
    }
}
