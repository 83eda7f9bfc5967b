//! What figures are compared with: limits of the machine, limits of an interface, and other libraries.

use vipl_tools::Result;
use vipl_tools::report;

use crate::cable::{self, Turns};
use crate::limits;
use crate::machine;
use crate::machine::Session;
use crate::peers::Peer;

/// What a figure is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A cache line back and forth, one way: the mean over many lines.
    CacheLine,
    /// Messages back and forth, copied in and copied out, one way.
    RawPingPong,
    /// A stream of cache lines with eight bytes each.
    RawRing,
    /// Copies in one process.
    Memcpy,
    /// Copies into the other process, made by the kernel.
    ProcessWrite,
    /// Eight bytes back and forth, written by the kernel into memory that is polled, one way.
    ProcessWriteTurns,
    /// Copies from process to process, made by the kernel, one half by each of the two processors.
    BothHalves,
    /// Two processes that sleep and wake each other by a futex, one way.
    FutexTurns,
    /// Raw frames back and forth on the interface, one way.
    FrameTurns,
    /// UDP back and forth on the interface, one way.
    UdpTurns,
    /// TCP back and forth on the interface, one way.
    TcpTurns,
    /// A stream of raw frames, each as large as the interface lets it be.
    FrameStream,
    /// A stream of datagrams that the kernel cuts and puts together.
    UdpTrains,
    /// A stream of raw frames of 64 bytes.
    FrameRate,
    /// Another library.
    Peer(Peer),
}

impl Reference {
    /// Its name in tables, and its unit.
    fn about(self) -> (&'static str, &'static str) {
        match self {
            Self::CacheLine => ("mean line", "ns"),
            Self::RawPingPong => ("raw ping-pong", "ns"),
            Self::RawRing => ("raw ring", "M/s"),
            Self::Memcpy => ("memcpy", "GB/s"),
            Self::ProcessWrite => ("process_vm_writev", "GB/s"),
            Self::ProcessWriteTurns => ("polled process_vm_writev", "ns"),
            Self::BothHalves => ("both halves", "GB/s"),
            Self::FutexTurns => ("futex", "ns"),
            Self::FrameTurns => ("raw frames", "ns"),
            Self::UdpTurns => ("UDP", "ns"),
            Self::TcpTurns => ("TCP", "ns"),
            Self::FrameStream => ("raw stream", "GB/s"),
            Self::UdpTrains => ("UDP trains", "GB/s"),
            Self::FrameRate => ("64 B raw frames", "M/s"),
            Self::Peer(peer) => (peer.name(), peer.unit()),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.about().0
    }

    pub(crate) fn unit(self) -> &'static str {
        self.about().1
    }

    /// Both processes poll meanwhile.
    pub(crate) fn takes_two_cpus(self) -> bool {
        !matches!(
            self,
            Self::Memcpy | Self::ProcessWrite | Self::FrameStream | Self::FrameRate
        )
    }

    /// Whether it is another way to do the same, which is measured after each run that counts, and not a limit that
    /// must be the same before and after it.
    pub(crate) fn is_peer(self) -> bool {
        matches!(self, Self::Peer(_) | Self::FutexTurns)
    }

    /// Measures it now; None where the machine has no such thing.
    pub(crate) fn measure(
        self,
        session: &mut Session,
        bytes: usize,
        most: Option<u64>,
    ) -> Result<Option<f64>> {
        match self {
            Self::CacheLine => machine::one_way(session, 0),
            Self::RawPingPong => machine::one_way(session, bytes),
            Self::RawRing => machine::ring_rate(session).map(|rate| Some(rate / 1e6)),
            Self::Memcpy => limits::memcpy_rate(&mut session.own()?.buffers, bytes).map(Some),
            Self::ProcessWrite => machine::write_rate(session, bytes),
            Self::ProcessWriteTurns => machine::write_turns(session),
            Self::BothHalves => machine::halves_rate(session, bytes),
            Self::FutexTurns => machine::futex_turns(session).map(Some),
            Self::FrameTurns => cable::one_way(session, Turns::Frames, bytes, most),
            Self::UdpTurns => cable::one_way(session, Turns::Udp, bytes, most),
            Self::TcpTurns => cable::one_way(session, Turns::Tcp, bytes, most),
            Self::FrameStream => {
                let (rate, payload) = cable::stream(session, None, most)?;
                Ok(Some(rate * payload as f64 / 1e9))
            }
            Self::UdpTrains => cable::trains(session, most),
            Self::FrameRate => {
                let (rate, _) = cable::stream(session, Some(RATE_FRAME), most)?;
                Ok(Some(rate / 1e6))
            }
            // A tool that fails costs its own figure; ours go on.
            Self::Peer(peer) => Ok(session.local().and_then(|own| {
                let peers = own.peers.as_ref()?;
                let measured = peers.measure(peer, bytes);
                let note = |error| {
                    report::note(&format!("vip_perf: {} is left out: {error}", peer.name()));
                };
                measured.map_err(note).ok().flatten()
            })),
        }
    }
}

/// Bytes of the smallest frames that Ethernet has.
const RATE_FRAME: usize = 64;
