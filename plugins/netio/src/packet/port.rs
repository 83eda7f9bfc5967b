//! Queries about interfaces and addresses, by netlink.
//!
//! A bridge, a bond or a team takes the frames of its ports before a packet socket of one ethertype sees them: a port
//! sends, and never receives.

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use vipl_sys::fd::{Kept, made};
use vipl_sys::uncancelled;

use super::bound_to;

const IFLA_INFO_SLAVE_KIND: u16 = 4;
/// A port of this kind receives its frames: the master only groups routes.
const VRF: &[u8] = b"vrf";
/// Room for the description of one interface: some kilobytes.
const ANSWER: usize = 16 << 10;
/// Bytes of `struct nlmsghdr`, `struct ifinfomsg` and `struct rtmsg`.
const HEAD: usize = size_of::<libc::nlmsghdr>();
const LINK: usize = 16;
const ROUTE: usize = 12;

/// A socket for queries. It stays open, since a new one could get a number that the application expects for a file of its
/// own.
pub struct Asker(Kept);

impl Asker {
    /// Opens a socket in this process's network namespace.
    ///
    /// # Errors
    /// The system has no socket.
    pub fn open() -> io::Result<Asker> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: a system call; the descriptor is new.
        let socket = unsafe { made(libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE)) };
        socket.map(|socket| Asker(Kept::new(socket)))
    }

    /// The master of an interface, which takes all its frames. `None`: there is none, or the kernel does not answer.
    pub fn master(&self, index: u32) -> Option<String> {
        let answer = self.link(index)?;
        let attributes = answer.get(HEAD + LINK..)?;
        let master = attribute(attributes, libc::IFLA_MASTER)?;
        let master = u32::from_ne_bytes(master.try_into().ok()?);
        let about = attribute(attributes, libc::IFLA_LINKINFO).unwrap_or_default();
        let kind = attribute(about, IFLA_INFO_SLAVE_KIND).unwrap_or_default();
        if text(kind) == VRF {
            return None;
        }
        let of_master = self.link(master);
        let attributes = of_master.as_deref().and_then(|all| all.get(HEAD + LINK..));
        let name = attributes.and_then(|attributes| attribute(attributes, libc::IFLA_IFNAME));
        Some(match name {
            Some(name) => String::from_utf8_lossy(text(name)).into_owned(),
            None => format!("interface {master}"),
        })
    }

    /// Whether an address is one of this host's. `None`: the kernel does not answer.
    pub fn is_local(&self, ip: IpAddr) -> Option<bool> {
        let (family, bytes) = match ip {
            IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
            IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
        };
        let mut route = vec![0; ROUTE];
        route[0] = family as u8;
        route[1] = 8 * bytes.len() as u8;
        route.extend((4 + bytes.len() as u16).to_ne_bytes());
        route.extend(libc::RTA_DST.to_ne_bytes());
        route.extend(&bytes);
        let answer = self.ask(libc::RTM_GETROUTE, &route)?;
        match kind(&answer)? {
            libc::RTM_NEWROUTE => Some(*answer.get(HEAD + 7)? == libc::RTN_LOCAL),
            // There is no route.
            _ => Some(false),
        }
    }

    fn link(&self, index: u32) -> Option<Vec<u8>> {
        let mut link = [0; LINK];
        link[4..8].copy_from_slice(&index.to_ne_bytes());
        let answer = self.ask(libc::RTM_GETLINK, &link)?;
        (kind(&answer)? == libc::RTM_NEWLINK).then_some(answer)
    }

    fn ask(&self, about: u16, body: &[u8]) -> Option<Vec<u8>> {
        let socket = self.0.fd().ok()?;
        // `struct nlmsghdr`: length, type, flags, sequence number, port.
        let mut question = ((HEAD + body.len()) as u32).to_ne_bytes().to_vec();
        question.extend(about.to_ne_bytes());
        question.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        question.extend([0; 8]);
        question.extend(body);
        let mut answer = vec![0; ANSWER];
        // SAFETY: both buffers are as large as stated. The kernel answers each query once, during the call that sends it.
        let got = unsafe {
            let (data, bytes) = (question.as_ptr().cast(), question.len());
            let sent =
                uncancelled::sendto(socket, data, bytes, libc::MSG_NOSIGNAL, std::ptr::null(), 0);
            if sent < 0 {
                return None;
            }
            let (into, flags) = (answer.as_mut_ptr().cast(), libc::MSG_DONTWAIT);
            uncancelled::recvfrom(
                socket,
                into,
                ANSWER,
                flags,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        answer.truncate(usize::try_from(got).ok()?);
        Some(answer)
    }
}

/// Why a data socket no longer receives, if it does not. With an asker this also checks whether the interface is a port;
/// do that rarely, since the answer may wait for a lock of the kernel that others hold for long.
pub fn lost(socket: RawFd, asker: Option<&Asker>) -> Option<Lost> {
    match bound_to(socket) {
        None => Some(Lost::Removed),
        Some(address) => asker?.master(address.sll_ifindex as u32).map(Lost::Port),
    }
}

/// Why an interface receives no frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It has been removed.
    Removed,
    /// It is a port of this interface.
    Port(String),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Removed => write!(to, "the interface has been removed"),
            Lost::Port(master) => write!(
                to,
                "the interface has become a port of {master}, which takes its frames"
            ),
        }
    }
}

/// The type of a message of the kernel.
fn kind(message: &[u8]) -> Option<u16> {
    let kind = message.get(4..6)?;
    Some(u16::from_ne_bytes([kind[0], kind[1]]))
}

/// A name without the NUL that ends it.
fn text(name: &[u8]) -> &[u8] {
    name.strip_suffix(&[0]).unwrap_or(name)
}

/// The value of the first attribute of this kind.
fn attribute(mut list: &[u8], wanted: u16) -> Option<&[u8]> {
    while let [low, high, kind_low, kind_high, ..] = *list {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        // The upper bits are flags for nesting and byte order.
        let kind = u16::from_ne_bytes([kind_low, kind_high]) & 0x3FFF;
        let value = list.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        list = list.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_and_wrong_lengths_end_the_list() {
        let list = [5, 0, 1, 0, 9, 0, 0, 0, 8, 0, 10, 0x80, 1, 2, 3, 4];
        assert_eq!(attribute(&list, 1), Some(&[9][..]));
        assert_eq!(attribute(&list, 10), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&list, 7), None);
        for length in 0..4 {
            assert_eq!(attribute(&[length, 0, 1, 0], 2), None);
        }
        assert_eq!(attribute(&[200, 0, 1, 0, 9], 1), None);
    }

    #[test]
    fn the_loopback_interface_is_no_port() {
        // SAFETY: a NUL-terminated name.
        let index = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        let asker = Asker::open().expect("a socket");
        assert!(asker.link(index).is_some_and(|answer| answer.len() > 32));
        assert_eq!(asker.master(index), None);
        assert_eq!(asker.master(u32::MAX >> 1), None);
    }

    #[test]
    fn own_addresses_are_known() {
        let asker = Asker::open().expect("a socket");
        let is_local = |ip: &str| asker.is_local(ip.parse().expect("an address"));
        assert_eq!(is_local("127.0.0.1"), Some(true));
        assert_eq!(is_local("192.0.2.77"), Some(false));
        assert_eq!(is_local("2001:db8::77"), Some(false));
    }
}
