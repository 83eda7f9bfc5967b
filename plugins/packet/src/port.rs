//! Interfaces that are ports of others. A bridge, a bond or a team takes the frames of its ports before a packet socket of one
//! ethertype sees them: such an interface sends, and never receives.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::bound_to;

const IFLA_INFO_SLAVE_KIND: u16 = 4;
/// A port of this kind keeps its frames: its master is for routes only.
const VRF: &[u8] = b"vrf";
/// Bytes that describe one interface: some kilobytes.
const ANSWER: usize = 16 << 10;

/// The question of what an interface is, as the kernel reads it.
#[repr(C)]
struct Question {
    head: libc::nlmsghdr,
    /// `struct ifinfomsg`.
    family: u8,
    pad: u8,
    kind: u16,
    index: i32,
    flags: u32,
    change: u32,
}

/// Why a data socket receives nothing any more, if it does not. `ports`: whether the interface is a port is asked, too. Ask
/// that now and then only: the answer may wait for a lock of the kernel that others hold for long.
pub fn lost(socket: RawFd, ports: bool) -> Option<Lost> {
    match bound_to(socket) {
        None => Some(Lost::Removed),
        Some(address) if ports => master(address.sll_ifindex as u32).map(Lost::Port),
        Some(_) => None,
    }
}

/// What has become of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It is not there.
    Removed,
    /// It is a port of this one.
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

/// The interface that takes all frames of this one. `None`: there is none, or the kernel does not tell.
pub fn master(index: u32) -> Option<String> {
    let answer = ask(index)?;
    let head = size_of::<libc::nlmsghdr>();
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind != libc::RTM_NEWLINK {
        return None;
    }
    let attributes = answer.get(head + 16..)?;
    let master = attribute(attributes, libc::IFLA_MASTER)?;
    let master = u32::from_ne_bytes(master.try_into().ok()?);
    let about = attribute(attributes, libc::IFLA_LINKINFO).unwrap_or_default();
    let kind = attribute(about, IFLA_INFO_SLAVE_KIND).unwrap_or_default();
    if kind.strip_suffix(&[0]).unwrap_or(kind) == VRF {
        return None;
    }
    let mut name = [0; libc::IFNAMSIZ];
    // SAFETY: room for a name.
    let found = unsafe { libc::if_indextoname(master, name.as_mut_ptr()) };
    if found.is_null() {
        return Some(format!("interface {master}"));
    }
    // SAFETY: the kernel has written a name, which ends with NUL.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Some(name.to_string_lossy().into_owned())
}

/// Asks the kernel, in this process's network namespace.
fn ask(index: u32) -> Option<Vec<u8>> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if socket < 0 {
        return None;
    }
    // SAFETY: it is new, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let question = Question {
        head: libc::nlmsghdr {
            nlmsg_len: size_of::<Question>() as u32,
            nlmsg_type: libc::RTM_GETLINK,
            nlmsg_flags: libc::NLM_F_REQUEST as u16,
            nlmsg_seq: 1,
            nlmsg_pid: 0,
        },
        family: libc::AF_UNSPEC as u8,
        pad: 0,
        kind: 0,
        index: index as i32,
        flags: 0,
        change: 0,
    };
    let mut answer = vec![0; ANSWER];
    // SAFETY: both are as large as stated. The kernel answers during the call that asks.
    let got = unsafe {
        let fd = socket.as_raw_fd();
        let bytes = size_of::<Question>();
        let sent = libc::send(fd, (&raw const question).cast(), bytes, libc::MSG_NOSIGNAL);
        if sent < 0 {
            return None;
        }
        libc::recv(fd, answer.as_mut_ptr().cast(), ANSWER, libc::MSG_DONTWAIT)
    };
    answer.truncate(usize::try_from(got).ok()?);
    Some(answer)
}

/// The value of the first attribute of this kind.
fn attribute(mut list: &[u8], wanted: u16) -> Option<&[u8]> {
    while let [low, high, kind_low, kind_high, ..] = *list {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        // The upper bits tell of nesting and order.
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
        assert!(ask(index).is_some_and(|answer| answer.len() > 32));
        assert_eq!(master(index), None);
        assert_eq!(master(u32::MAX >> 1), None);
    }
}
