//! Queries to the kernel: whether an address is local, and which user owns the socket there.
//!
//! Both are asked for datagrams from local addresses. The answers cannot be forged: the kernel records the
//! user who made a socket, and looks the socket up as it does for a datagram.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

/// `NETLINK_SOCK_DIAG`: about sockets.
const SOCKETS: libc::c_int = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
/// Type of a route to this host itself.
const RTN_LOCAL: u8 = 2;
/// The loopback interface always has this number. Packets from this host to itself pass it.
const LOOPBACK: u32 = 1;
/// Any socket, not one with a known cookie.
const NO_COOKIE: u32 = u32::MAX;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Where `struct rtmsg` has its type.
const ROUTE_TYPE: usize = 7;
/// Where `struct inet_diag_msg` has the socket's port, and its user.
const DIAG_PORT: usize = 4;
const DIAG_USER: usize = 64;

/// Sends one request; returns type and body of the answer.
fn ask(protocol: libc::c_int, kind: u16, body: &[u8]) -> Result<(u16, Vec<u8>), Errno> {
    let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes three integers.
    let fd = Errno::result(unsafe { libc::socket(libc::AF_NETLINK, flags, protocol) })?;
    // SAFETY: the kernel has just returned this descriptor, which has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut question = Vec::with_capacity(HEADER + body.len());
    question.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    question.extend(kind.to_ne_bytes());
    question.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    question.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    question.extend(body);
    let mut answer = vec![0; 4096];
    // SAFETY: both buffers are as large as stated. The kernel queues the answer before `send` returns.
    let got = unsafe {
        Errno::result(libc::send(
            fd,
            question.as_ptr().cast(),
            question.len(),
            libc::MSG_DONTWAIT,
        ))?;
        Errno::result(libc::recv(
            socket.as_raw_fd(),
            answer.as_mut_ptr().cast(),
            answer.len(),
            libc::MSG_DONTWAIT,
        ))?
    };
    answer.truncate(got as usize);
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok());
    let kind = kind.map(u16::from_ne_bytes).ok_or(Errno::EBADMSG)?;
    let body = answer.split_off(HEADER.min(answer.len()));
    if i32::from(kind) == libc::NLMSG_ERROR {
        let code = body.first_chunk().copied().map_or(0, i32::from_ne_bytes);
        return Err(Errno::from_raw(-code));
    }
    Ok((kind, body))
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn family(ip: IpAddr) -> u8 {
    let family = if ip.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    family as u8
}

/// Whether an address is local, according to the kernel's routes.
///
/// # Errors
/// The error number of the request, or `EBADMSG` for an unexpected answer.
pub(super) fn is_own(ip: IpAddr) -> Result<bool, Errno> {
    let address = octets(ip);
    // `struct rtmsg`, then one attribute.
    let mut body = vec![family(ip), address.len() as u8 * 8];
    body.extend([0; 10]);
    body.extend(((4 + address.len()) as u16).to_ne_bytes());
    body.extend(RTA_DST.to_ne_bytes());
    body.extend(address);
    match ask(libc::NETLINK_ROUTE, RTM_GETROUTE, &body) {
        Ok((RTM_NEWROUTE, route)) => Ok(route.get(ROUTE_TYPE) == Some(&RTN_LOCAL)),
        Ok(_) => Err(Errno::EBADMSG),
        // No route leads there, so it is not local.
        Err(Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EACCES | Errno::EINVAL) => Ok(false),
        Err(cause) => Err(cause),
    }
}

/// The user of the socket that receives datagrams from one local address to another one. `None` if there is
/// no socket, or the kernel does not report it.
pub(super) fn receiver(from: SocketAddr, to: SocketAddr) -> Option<u32> {
    match by_diag(from, to) {
        Ok(user) => Some(user),
        // Also if the kernel lacks socket diagnostics.
        Err(_) => {
            let users = holders(to.port(), Some(to.ip())).ok()?;
            let (first, others) = users.split_first()?;
            others.iter().all(|other| other == first).then_some(*first)
        }
    }
}

fn by_diag(from: SocketAddr, to: SocketAddr) -> Result<u32, Errno> {
    let address = |ip: IpAddr| {
        let mut bytes = octets(ip);
        bytes.resize(16, 0);
        bytes
    };
    // `struct inet_diag_req_v2`. For UDP, its source is the remote end.
    let mut body = vec![family(to.ip()), libc::IPPROTO_UDP as u8, 0, 0];
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(from.port().to_be_bytes());
    body.extend(to.port().to_be_bytes());
    body.extend(address(from.ip()));
    body.extend(address(to.ip()));
    body.extend(LOOPBACK.to_ne_bytes());
    body.extend([NO_COOKIE.to_ne_bytes(), NO_COOKIE.to_ne_bytes()].concat());
    let (kind, answer) = ask(SOCKETS, SOCK_DIAG_BY_FAMILY, &body)?;
    let port = answer.get(DIAG_PORT..DIAG_PORT + 2);
    if kind != SOCK_DIAG_BY_FAMILY || port != Some(&to.port().to_be_bytes()) {
        return Err(Errno::EBADMSG);
    }
    let user = answer.get(DIAG_USER..DIAG_USER + 4);
    let user = user.and_then(|bytes| bytes.try_into().ok());
    user.map(u32::from_ne_bytes).ok_or(Errno::EBADMSG)
}

/// The users of all sockets bound to a UDP port, at this address or at all addresses.
///
/// # Errors
/// The error of reading the kernel's table.
pub(super) fn holders(port: u16, at: Option<IpAddr>) -> io::Result<Vec<u32>> {
    let mut users = Vec::new();
    for name in ["udp", "udp6"] {
        let table = std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let table = match table {
            Err(cause) if name == "udp6" && cause.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        for line in table.lines().skip(1) {
            let mut words = line.split_ascii_whitespace().skip(1);
            let local = words.next().and_then(local);
            let user = words.nth(5).and_then(|word| word.parse().ok());
            let (Some((ip, its)), Some(user)) = (local, user) else {
                continue;
            };
            let ip = ip.to_canonical();
            if its == port && at.is_none_or(|at| ip.is_unspecified() || ip == at.to_canonical()) {
                users.push(user);
            }
        }
    }
    Ok(users)
}

/// Parses an address of the kernel's table: words of 32 bits in host byte order, and a port.
fn local(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        let word = u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            IpAddr::from(<[u8; 16]>::try_from(words).ok()?)
        }
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use nix::unistd::geteuid;

    use super::*;

    #[test]
    fn the_kernel_reports_own_addresses_and_the_owners_of_sockets() {
        for ip in ["127.0.0.1", "127.9.9.9"] {
            assert_eq!(is_own(ip.parse().unwrap()), Ok(true), "{ip}");
        }
        // An address reserved for documentation.
        assert_eq!(is_own("192.0.2.1".parse().unwrap()), Ok(false));
        let one = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = UdpSocket::bind("0.0.0.0:0").unwrap();
        let user = geteuid().as_raw();
        let from = one.local_addr().unwrap();
        let port = other.local_addr().unwrap().port();
        let to = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
        assert_eq!(by_diag(from, to), Ok(user));
        assert_eq!(receiver(from, to), Some(user));
        assert_eq!(receiver(to, from), Some(user));
        assert_eq!(holders(port, None).unwrap(), [user]);
        assert_eq!(holders(port, Some(to.ip())).unwrap(), [user]);
        let elsewhere = Some("192.0.2.1".parse().unwrap());
        assert_eq!(holders(from.port(), elsewhere).unwrap(), []);
        drop(other);
        assert_eq!(receiver(from, to), None);
    }

    #[test]
    fn addresses_of_the_kernels_table() {
        let one = u32::from_ne_bytes([127, 0, 0, 1]);
        let v4 = format!("{one:08X}:0035");
        assert_eq!(local(&v4), Some(([127, 0, 0, 1].into(), 53)));
        let last = u32::from_ne_bytes([0, 0, 0, 1]);
        let v6 = format!("{:024X}{last:08X}:88B6", 0);
        assert_eq!(local(&v6), Some(("::1".parse().unwrap(), 34_998)));
        for wrong in ["", "7F000001", "7F00000:1", "zzzzzzzz:0001"] {
            assert_eq!(local(wrong), None, "{wrong}");
        }
    }
}
