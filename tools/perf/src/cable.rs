//! The limits of the cable between two hosts, which the two processes of a session measure together on the
//! very interface that their device is on: frames without a protocol, UDP and TCP.
//!
//! ```text
//!   driver                                server
//!     cable-open  ───────────────────────▶  both look whether it is allowed, and open a raw socket
//!     cable-tcp   ───────────────────────▶  listens, and accepts one connection
//!     cable-udp   ───────────────────────▶  binds a socket, and connects it with that of the driver
//!     cable-turns, cable-stream  ────────▶  serves its side
//! ```

#![forbid(unsafe_code)]

use std::net::{IpAddr, TcpListener};

use serde_json::{Value, json};
use vipl_tools::control::{Control, SocketControl};
use vipl_tools::nic::Nic;
use vipl_tools::rendezvous::Side;
use vipl_tools::request::{TURNS_MAX, number, unknown};
use vipl_tools::session::{Local, Session, bytes_of};
use vipl_tools::{Error, Result};

use crate::frames::Frames;
use crate::link::Link;
use crate::tcp::{self, Tcp};
use crate::udp::Udp;

/// One end of the cable.
pub(crate) struct Cable {
    link: Link,
    frames: Frames,
    tcp: Option<Tcp>,
    udp: Option<Udp>,
    /// The smaller of both sides' MTUs.
    mtu: usize,
    rounds: u32,
}

/// What has a cable when one is measured.
pub(crate) trait Cables: Local {
    /// Its place.
    fn cable(&mut self) -> &mut Option<Cable>;
}

/// What takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turns {
    /// Raw frames.
    Frames,
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

impl Turns {
    fn name(self) -> &'static str {
        match self {
            Turns::Frames => "frames",
            Turns::Udp => "udp",
            Turns::Tcp => "tcp",
        }
    }
}

/// Bytes of a frame that an Ethernet header takes.
const HEADER: usize = 14;

/// Turns that take some ten milliseconds: a turn makes four system calls or so.
fn turns_for(size: usize) -> u64 {
    if size <= 4096 { 2000 } else { 500 }
}

/// Frames of a stream that take some ten milliseconds.
fn frames_for(bytes: usize) -> u64 {
    if bytes <= 256 { 40_000 } else { 10_000 }
}

impl Cable {
    fn new(device: &str, address: &[u8], any: bool) -> Result<Self> {
        let link = Link::of(device, address).ok_or_else(|| {
            Error::Usage(format!(
                "{device} has no network interface whose limits could be measured"
            ))
        })?;
        if !any {
            link.may_be_filled()?;
        }
        Ok(Self {
            frames: Frames::open(&link)?,
            tcp: None,
            udp: None,
            mtu: link.mtu,
            link,
            rounds: 0,
        })
    }

    /// Opens both ends. `any`: also on an interface that may lead to a real network. Returns the reason, too,
    /// if there is no TCP.
    ///
    /// # Errors
    /// It is not allowed, or the system refuses.
    pub(crate) fn open<L: Cables>(
        session: &mut Session<L>,
        device: &str,
        any: bool,
    ) -> Result<(Self, Option<String>)> {
        let mut cable = Self::new(device, &session.nic.attributes().address, any)?;
        let answer = session.ask(&json!({"op": "cable-open", "device": device, "any": any,
            "partner": cable.described()}))?;
        cable.aim(&answer)?;
        let theirs = answer["ip"].as_array().into_iter().flatten();
        let theirs: Vec<IpAddr> = theirs.filter_map(|ip| ip.as_str()?.parse().ok()).collect();
        let why = match same_family(&cable.link.ip_addresses(), &theirs) {
            Some((own, peer)) => match cable.connect(session, own, peer) {
                Ok(()) => None,
                Err(error) => Some(error.to_string()),
            },
            None => Some(format!(
                "the two {} have no IP addresses of the same family",
                cable.link.name
            )),
        };
        Ok((cable, why))
    }

    fn connect<L: Cables>(
        &mut self,
        session: &mut Session<L>,
        own: IpAddr,
        peer: IpAddr,
    ) -> Result<()> {
        let question = json!({"op": "cable-tcp", "ip": peer.to_string()});
        let port = session.ask(&question)?["port"].as_u64().unwrap_or(0) as u16;
        let to = tcp::endpoint(peer, port, self.link.index);
        self.tcp = Some(Tcp::connect(to, own)?);
        let udp = Udp::bind(tcp::endpoint(own, 0, self.link.index))?;
        let question = json!({"op": "cable-udp", "ip": peer.to_string(),
            "driver": own.to_string(), "port": udp.port()?});
        let port = session.ask(&question)?["port"].as_u64().unwrap_or(0) as u16;
        udp.connect(tcp::endpoint(peer, port, self.link.index))?;
        self.udp = Some(udp);
        Ok(())
    }

    fn aim(&mut self, peer: &Value) -> Result<()> {
        let address = <[u8; 6]>::try_from(bytes_of(&peer["address"]));
        let address = address.map_err(|_| Error::Peer("has no Ethernet address".to_owned()))?;
        self.frames.aim(address);
        let mtu = peer["mtu"].as_u64().unwrap_or(0) as usize;
        self.mtu = self.mtu.min(mtu);
        Ok(())
    }

    fn described(&self) -> Value {
        let ip = self.link.ip_addresses();
        let ip: Vec<String> = ip.iter().map(IpAddr::to_string).collect();
        json!({"address": self.link.address, "mtu": self.mtu, "ip": ip})
    }
}

/// The first pair of addresses that can speak to each other.
fn same_family(own: &[IpAddr], theirs: &[IpAddr]) -> Option<(IpAddr, IpAddr)> {
    [true, false].into_iter().find_map(|v4| {
        let first = |all: &[IpAddr]| all.iter().copied().find(|ip| ip.is_ipv4() == v4);
        Some((first(own)?, first(theirs)?))
    })
}

fn of(cable: &mut Option<Cable>) -> Result<&mut Cable> {
    let missing = || Error::Usage("the link has not been opened".to_owned());
    cable.as_mut().ok_or_else(missing)
}

/// One way of a message of `size` bytes in ns, in `most` turns at most; None if it does not fit into a frame, or there
/// is no TCP.
///
/// # Errors
/// The peer does not answer.
pub(crate) fn one_way<L: Cables>(
    session: &mut Session<L>,
    what: Turns,
    size: usize,
    most: Option<u64>,
) -> Result<Option<f64>> {
    let turns = turns_for(size).min(most.unwrap_or(u64::MAX));
    let cable = of(session.own()?.cable())?;
    cable.rounds += 1;
    let (round, fits) = (cable.rounds, size <= cable.mtu);
    let possible = match what {
        Turns::Frames => fits,
        // Larger datagrams would be sent in fragments.
        Turns::Udp => fits && cable.udp.is_some(),
        Turns::Tcp => cable.tcp.is_some(),
    };
    if !possible {
        return Ok(None);
    }
    let question = json!({"op": "cable-turns", "what": what.name(), "size": size,
        "turns": turns, "round": round});
    session.ask(&question)?;
    of(session.own()?.cable())?
        .play(Side::Driver, what, round, size, turns)
        .map(Some)
}

/// Frames per second that arrive at the peer: of `bytes` with their header, or as large as they can be.
/// Returns their payload in bytes, too. `most` frames at most are sent.
///
/// # Errors
/// The peer does not answer.
pub(crate) fn stream<L: Cables>(
    session: &mut Session<L>,
    bytes: Option<usize>,
    most: Option<u64>,
) -> Result<(f64, usize)> {
    let cable = of(session.own()?.cable())?;
    cable.rounds += 1;
    let (round, bytes) = (cable.rounds, bytes.unwrap_or(HEADER + cable.mtu));
    let count = frames_for(bytes).min(most.unwrap_or(u64::MAX));
    session.ask(&json!({"op": "cable-stream", "count": count, "round": round}))?;
    let rate = of(session.own()?.cable())?
        .frames
        .send(round, bytes, count)?;
    Ok((rate, bytes - HEADER))
}

/// Trains of a stream over UDP; some hundred milliseconds.
const TRAINS: u64 = 8_000;

/// A stream of UDP trains to the peer in GB/s; None without UDP.
///
/// # Errors
/// The peer does not answer.
pub(crate) fn trains<L: Cables>(
    session: &mut Session<L>,
    most: Option<u64>,
) -> Result<Option<f64>> {
    let cable = of(session.own()?.cable())?;
    let (mtu, trains) = (cable.mtu, TRAINS.min(most.unwrap_or(u64::MAX)));
    if cable.udp.is_none() {
        return Ok(None);
    }
    session.ask(&json!({"op": "cable-trains", "mtu": mtu, "count": trains}))?;
    let cable = of(session.own()?.cable())?;
    let udp = cable.udp.as_mut();
    udp.map(|udp| udp.stream(Side::Driver, mtu, trains))
        .transpose()
}

impl Cable {
    fn play(
        &mut self,
        side: Side,
        what: Turns,
        round: u32,
        size: usize,
        turns: u64,
    ) -> Result<f64> {
        let missing = || Error::Peer(format!("has no {}", what.name()));
        match what {
            Turns::Tcp => self
                .tcp
                .as_mut()
                .ok_or_else(missing)?
                .ping_pong(side, size, turns),
            Turns::Udp => self
                .udp
                .as_mut()
                .ok_or_else(missing)?
                .ping_pong(side, size, turns),
            Turns::Frames => self.frames.ping_pong(side, round, size, turns),
        }
    }
}

/// The server's side of one question, answered here. Only a process that this one has started, or that has
/// started it, can ask.
///
/// # Errors
/// The driver has exited, or does not do what it asked for.
pub(crate) fn serve(
    control: &mut SocketControl,
    own: &mut Option<Cable>,
    nic: &Nic,
    question: &Value,
) -> Result<()> {
    let count = |name| number(question, name, 0..=TURNS_MAX);
    let round = || number(question, "round", 0..=u64::from(u32::MAX)).map(|round| round as u32);
    match question["op"].as_str().unwrap_or_default() {
        "cable-open" => {
            let device = question["device"].as_str().unwrap_or_default();
            let any = question["any"].as_bool().unwrap_or(false);
            let opened = Cable::new(device, &nic.attributes().address, any);
            let aimed = opened.and_then(|mut cable| {
                cable.aim(&question["partner"])?;
                Ok(cable)
            });
            match aimed {
                Ok(cable) => {
                    control.send(&cable.described())?;
                    *own = Some(cable);
                    Ok(())
                }
                Err(error) => control.send(&json!({"error": error.to_string()})),
            }
        }
        "cable-tcp" => {
            let index = of(own)?.link.index;
            let ip = question["ip"].as_str().and_then(|ip| ip.parse().ok());
            let listen = || {
                let ip = ip.ok_or(std::io::ErrorKind::InvalidInput)?;
                let listener = TcpListener::bind(tcp::endpoint(ip, 0, index))?;
                let port = listener.local_addr()?.port();
                Ok::<_, std::io::Error>((listener, port))
            };
            match listen() {
                Ok((listener, port)) => {
                    control.send(&json!({"port": port}))?;
                    // Without a connection the driver leaves TCP out.
                    of(own)?.tcp = Tcp::accept(&listener).ok();
                    Ok(())
                }
                Err(error) => control.send(&json!({"error": error.to_string()})),
            }
        }
        "cable-udp" => {
            let index = of(own)?.link.index;
            let ip = |name: &str| question[name].as_str().and_then(|ip| ip.parse().ok());
            let (here, driver): (Option<IpAddr>, Option<IpAddr>) = (ip("ip"), ip("driver"));
            let open = || {
                let missing = || Error::Peer("has no address".to_owned());
                let udp = Udp::bind(tcp::endpoint(here.ok_or_else(missing)?, 0, index))?;
                let port = number(question, "port", 1..=u64::from(u16::MAX))? as u16;
                udp.connect(tcp::endpoint(driver.ok_or_else(missing)?, port, index))?;
                Ok::<_, Error>((udp.port()?, udp))
            };
            match open() {
                Ok((port, udp)) => {
                    of(own)?.udp = Some(udp);
                    control.send(&json!({"port": port}))
                }
                Err(error) => control.send(&json!({"error": error.to_string()})),
            }
        }
        "cable-turns" => {
            let named = |what: &Turns| question["what"].as_str() == Some(what.name());
            let what = [Turns::Udp, Turns::Tcp].into_iter().find(named);
            let what = what.unwrap_or(Turns::Frames);
            let size = number(question, "size", 0..=SIZE_MAX)? as usize;
            let (round, turns) = (round()?, count("turns")?);
            control.send(&json!({}))?;
            let played = of(own)?.play(Side::Server, what, round, size, turns);
            played.map(drop)
        }
        "cable-stream" => {
            let (round, frames) = (round()?, count("count")?);
            control.send(&json!({}))?;
            of(own)?.frames.receive(round, frames)
        }
        "cable-trains" => {
            let mtu = number(question, "mtu", 0..=SIZE_MAX)? as usize;
            let trains = count("count")?;
            control.send(&json!({}))?;
            let udp = of(own)?.udp.as_mut();
            let missing = || Error::Peer("has no UDP".to_owned());
            let stream = udp.ok_or_else(missing)?.stream(Side::Server, mtu, trains);
            stream.map(drop)
        }
        other => Err(unknown(other)),
    }
}

/// Bytes of a message over the cable at most.
const SIZE_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_kind_are_found_and_ipv4_comes_first() {
        let ips =
            |all: &[&str]| -> Vec<IpAddr> { all.iter().map(|ip| ip.parse().unwrap()).collect() };
        let both = ips(&["fe80::1", "10.0.0.1"]);
        let other = ips(&["fe80::2", "10.0.0.2"]);
        assert_eq!(same_family(&both, &other), Some((both[1], other[1])));
        assert_eq!(same_family(&both, &other[..1]), Some((both[0], other[0])));
        assert_eq!(same_family(&both[1..], &other[..1]), None);
    }

    #[test]
    fn a_device_on_no_interface_has_no_cable() {
        let refusal = Cable::new("/dev/via_lo", &[0; 6], true).err().unwrap();
        assert!(refusal.to_string().contains("no network interface"));
    }
}
