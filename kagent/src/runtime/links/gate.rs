//! The gate between a UDP socket and the logic: authentication and rate limits for datagrams.
//!
//! - A frame passes only with a *cookie*, which proves that its sender receives datagrams at its address. No
//!   state is kept for a sender before that. Cookies are keyed hashes, so none is stored here.
//! - With a *secret*, every datagram carries a seal, which requires the secret, and passes only once: the
//!   numbers of a sender increase. A sender that restarts with lower numbers needs a newer cookie than all
//!   before.
//! - Each source of frames, an IPv4 address or an IPv6 subnet, is rate-limited.
//!
//! It uses no socket or clock, so that a test can drive it.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use kagent_proto::setup::{Datagram, SEAL};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;
/// How long a cookie is valid.
const VALID: u64 = 60 * SECOND;
/// Bits of a cookie that are its hash. The others are milliseconds, which wrap around later than cookies
/// expire.
const HASH_BITS: u32 = 44;
/// Maximum hosts whose cookies and numbers are kept.
const PEERS_MAX: usize = 4096;
/// Number of rate limiters, shared by all sources.
const RATES: usize = 1024;
/// Frames of a source in a burst, and per second after that. Setting up a connection takes three.
const BURST: u64 = 8192;

/// A key of keyed hashes.
pub(crate) type Key = [u8; 32];

/// The result of examining a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrived<'a> {
    /// A frame for the logic.
    Frame(&'a [u8]),
    /// A datagram to send back.
    Answer(Vec<u8>),
    /// Nothing to do.
    Nothing,
}

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It is not a datagram of an agent, or has another version.
    Malformed,
    /// It has no seal, and this agent requires one.
    NotSealed,
    /// It has a seal, and this agent has no secret.
    Sealed,
    /// The seal is wrong: the sender has another secret.
    OtherSecret,
    /// It was received before.
    Replayed,
    /// Its cookie is not valid.
    Forged,
    /// Its source exceeds the rate limit.
    TooMany,
    /// Too many hosts are known.
    Full,
    /// It comes from a local socket that does not belong to this user or root; the user, if known.
    OtherUser(Option<u32>),
    /// A call from a host outside the networks that may call.
    OtherNetwork,
}

impl fmt::Display for Dropped {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Dropped::Malformed => "no datagram of an agent",
            Dropped::NotSealed => "its agent has no secret, this one has",
            Dropped::Sealed => "its agent has a secret, this one has none",
            Dropped::OtherSecret => "its agent has another secret",
            Dropped::Replayed => "a datagram that has been here before",
            Dropped::Forged => "a cookie that is not valid",
            Dropped::TooMany => "too many frames",
            Dropped::Full => "too many hosts",
            Dropped::OtherUser(Some(user)) => {
                return write!(
                    to,
                    "it belongs to user {user} of this host; without a secret only agents of one user connect there"
                );
            }
            Dropped::OtherUser(None) => "it comes from this host, and from no agent",
            Dropped::OtherNetwork => {
                "a call from outside of this host's subnets; VIPL_UDP_FROM, or vipkad --udp-from, opens it to others"
            }
        };
        to.write_str(text)
    }
}

/// A host to which this agent sends.
#[derive(Debug, Default)]
struct Peer {
    /// The cookie that it issued to us; 0: none yet.
    cookie: u64,
    /// The last frame, until it is known to have carried a valid cookie.
    pending: Option<Vec<u8>>,
    /// It has answered.
    answered: bool,
    /// The user who called it last.
    caller: u32,
    /// Its numbers received so far, with a secret.
    seen: Seen,
    /// Time of its last use.
    used: u64,
}

/// Replay window: the highest number, a bit mask of the 64 below it, and the time of the newest cookie
/// received with one.
#[derive(Debug, Default)]
struct Seen {
    highest: u64,
    below: u64,
    cookie: u64,
}

impl Seen {
    /// Records a number received with a valid cookie. Returns false if it was or may have been received
    /// before. With a cookie newer than all before, it cannot have been: the numbers may restart there.
    fn note(&mut self, number: u64, cookie: u64) -> bool {
        let newer = cookie > self.cookie;
        // After a restart of the sender, its last number may be higher.
        let fresh = (newer || cookie == self.cookie || number <= self.highest) && self.pass(number);
        if newer && !fresh {
            self.highest = number;
            self.below = u64::MAX;
        }
        self.cookie = self.cookie.max(cookie);
        fresh || newer
    }

    fn pass(&mut self, number: u64) -> bool {
        if number > self.highest {
            let steps = number - self.highest;
            self.below = match steps {
                1..64 => self.below << steps | 1 << (steps - 1),
                64 => 1 << 63,
                _ => 0,
            };
            self.highest = number;
            return true;
        }
        let bit = match self.highest - number {
            distance @ 1..=64 => 1 << (distance - 1),
            _ => return false,
        };
        let fresh = self.below & bit == 0;
        self.below |= bit;
        fresh
    }
}

/// The token bucket of some sources.
#[derive(Clone, Copy, Debug)]
struct Rate {
    left: u64,
    /// Time at which `left` was computed.
    at: u64,
}

/// The gate of one socket.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Key of the cookies that this agent issues.
    cookies: Key,
    /// Key of seals, with a secret.
    seals: Option<Key>,
    /// The number of the last datagram sent.
    number: u64,
    peers: HashMap<SocketAddr, Peer>,
    rates: Box<[Rate]>,
}

/// The key of seals derived from a secret.
pub(crate) fn key_of_seals(secret: &[u8]) -> Key {
    blake3::derive_key("VIPL 2026 datagrams between Kernel Agents", secret)
}

/// The key from which those of connections are derived, for data frames.
pub(crate) fn key_of_data(secret: &[u8]) -> Key {
    blake3::derive_key("VIPL 2026 frames of data between VIs", secret)
}

impl Gate {
    /// A gate with a random key for its cookies. `clock_us` is the time of day, so that numbers increase
    /// across restarts.
    pub(crate) fn new(cookies: Key, seals: Option<Key>, clock_us: u64) -> Gate {
        let rate = Rate { left: BURST, at: 0 };
        Gate {
            cookies,
            seals,
            number: clock_us,
            peers: HashMap::new(),
            rates: vec![rate; RATES].into(),
        }
    }

    /// The datagram for a frame to another host, called by user `caller`. `None` if the table of hosts is
    /// full.
    pub(crate) fn wrap(
        &mut self,
        now: u64,
        to: SocketAddr,
        frame: &[u8],
        caller: u32,
    ) -> Option<Vec<u8>> {
        let peer = self.peer(now, to)?;
        peer.pending = Some(frame.to_vec());
        peer.caller = caller;
        let cookie = peer.cookie;
        Some(self.seal(now, to, cookie, Some(frame)))
    }

    /// Examines a datagram.
    pub(crate) fn examine<'a>(
        &mut self,
        now: u64,
        from: SocketAddr,
        bytes: &'a [u8],
    ) -> Result<Arrived<'a>, Dropped> {
        let opened = Datagram::open(bytes).ok_or(Dropped::Malformed)?;
        match (&self.seals, opened.seal) {
            (None, None) => {}
            (None, Some(_)) => return Err(Dropped::Sealed),
            (Some(_), None) => return Err(Dropped::NotSealed),
            (Some(key), Some(seal)) => {
                // The comparison takes constant time.
                if blake3::keyed_hash(key, opened.sealed) != *seal {
                    return Err(Dropped::OtherSecret);
                }
            }
        }
        let Datagram {
            number,
            cookie,
            offer,
            frame,
        } = opened.datagram;
        let made = self.made(now, from, cookie);
        let Some(frame) = frame else {
            // Only the answer to a datagram of this agent carries a valid one.
            return match made {
                Some(_) => Ok(self.take_cookie(now, from, offer)),
                None => Err(Dropped::Forged),
            };
        };
        let Some(made) = made else {
            return Ok(Arrived::Answer(self.seal(now, from, offer, None)));
        };
        if !self.admit(now, from) {
            return Err(Dropped::TooMany);
        }
        let sealed = self.seals.is_some();
        let peer = self.peer(now, from).ok_or(Dropped::Full)?;
        if sealed && !peer.seen.note(number, made) {
            return Err(Dropped::Replayed);
        }
        peer.answered = true;
        peer.cookie = offer;
        peer.pending = None;
        Ok(Arrived::Frame(frame))
    }

    /// Another host requires a cookie: the last frame is sent again, once.
    fn take_cookie(&mut self, now: u64, from: SocketAddr, offer: u64) -> Arrived<'static> {
        let Some(peer) = self.peers.get_mut(&from) else {
            return Arrived::Nothing;
        };
        peer.cookie = offer;
        peer.used = now;
        peer.answered = true;
        match peer.pending.take() {
            Some(frame) => Arrived::Answer(self.seal(now, from, offer, Some(&frame))),
            None => Arrived::Nothing,
        }
    }

    /// The record of a host, which is made if needed.
    fn peer(&mut self, now: u64, host: SocketAddr) -> Option<&mut Peer> {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&host) {
            let gone = self.dispensable(now)?;
            self.peers.remove(&gone);
        }
        let peer = self.peers.entry(host).or_default();
        peer.used = now;
        Some(peer)
    }

    /// The host to evict: of those that have never answered, the least recently used one called by the user
    /// who called most of them; otherwise the least recently used one.
    fn dispensable(&self, now: u64) -> Option<SocketAddr> {
        let silent = || self.peers.iter().filter(|(_, peer)| !peer.answered);
        let mut callers: HashMap<u32, usize> = HashMap::new();
        for (_, peer) in silent() {
            *callers.entry(peer.caller).or_default() += 1;
        }
        let most = callers.into_iter().max_by_key(|(_, count)| *count);
        if let Some((most, _)) = most {
            let owned = silent().filter(|(_, peer)| peer.caller == most);
            return owned
                .min_by_key(|(_, peer)| peer.used)
                .map(|(host, _)| *host);
        }
        let (host, peer) = self.peers.iter().min_by_key(|(_, peer)| peer.used)?;
        // Its numbers must be kept as long as its cookies are valid.
        let remembered = self.seals.is_some() && now.saturating_sub(peer.used) < VALID;
        (!remembered).then_some(*host)
    }

    fn seal(&mut self, now: u64, to: SocketAddr, cookie: u64, frame: Option<&[u8]>) -> Vec<u8> {
        self.number += 1;
        let datagram = Datagram {
            number: self.number,
            cookie,
            offer: self.cookie(to, now / MILLISECOND),
            frame,
        };
        let mut bytes = datagram.emit(self.seals.is_some());
        if let Some(key) = &self.seals {
            let seal: [u8; SEAL] = blake3::keyed_hash(key, &bytes).into();
            bytes.extend(seal);
        }
        bytes
    }

    /// The cookie of a host in a millisecond; never 0.
    fn cookie(&self, host: SocketAddr, ms: u64) -> u64 {
        let (ip, scope) = match host.ip() {
            IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 0),
            IpAddr::V6(ip) => (ip, 1),
        };
        let mut hash = blake3::Hasher::new_keyed(&self.cookies);
        hash.update(&ip.octets()).update(&[scope]);
        hash.update(&host.port().to_be_bytes());
        hash.update(&ms.to_be_bytes());
        let mut word = [0; 8];
        hash.finalize_xof().fill(&mut word);
        let hash = u64::from_be_bytes(word) >> (u64::BITS - HASH_BITS);
        ms << HASH_BITS | hash.max(1)
    }

    /// The millisecond in which a host's cookie was issued. `None` if it is not valid, or has expired.
    fn made(&self, now: u64, host: SocketAddr, cookie: u64) -> Option<u64> {
        let now_ms = now / MILLISECOND;
        let low = cookie >> HASH_BITS;
        let age = now_ms.wrapping_sub(low) & (u64::MAX >> HASH_BITS);
        let made = now_ms.checked_sub(age)?;
        let valid = age < VALID / MILLISECOND && cookie == self.cookie(host, made);
        valid.then_some(made)
    }

    /// Whether the source of a frame is within its rate limit. A keyed hash spreads sources over the
    /// limiters: few sources share one with a flooding source, and an attacker cannot choose them.
    fn admit(&mut self, now: u64, from: SocketAddr) -> bool {
        let source = match from.ip() {
            IpAddr::V4(ip) => u64::from(u32::from(ip)),
            IpAddr::V6(ip) => (u128::from(ip) >> 64) as u64,
        };
        let mut hash = blake3::Hasher::new_keyed(&self.cookies);
        hash.update(b"rate").update(&source.to_be_bytes());
        let place = usize::from(hash.finalize().as_bytes()[0])
            | usize::from(hash.finalize().as_bytes()[1]) << 8;
        let rate = &mut self.rates[place % RATES];
        let more = now.saturating_sub(rate.at).saturating_mul(BURST) / SECOND;
        if more > 0 {
            *rate = Rate {
                left: (rate.left + more).min(BURST),
                at: now,
            };
        }
        let admitted = rate.left > 0;
        rate.left = rate.left.saturating_sub(1);
        admitted
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
