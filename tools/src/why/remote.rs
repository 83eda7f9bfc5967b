//! The way to another host: its name, its agent, and how long packets may be.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use vipl_client::{Code, Error as VipError, Reliability, Vi, ViOptions, parse_host};

use super::log::Log;
use super::network::{self, Link};
use super::{Finding, Kind};
use crate::nic::{Nic, host_text};
use crate::sys;

/// How long a connection request waits for the other host: longer than the library lets it wait for a server.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long a host may take to refuse a datagram. Linux refuses one a second when it has refused several.
const REFUSAL: Duration = Duration::from_millis(1100);
/// The port of the service `discard`, on which nothing listens: a host says so, whatever the size of the datagram.
const DISCARD: u16 = 9;
/// A discriminator that no server waits on.
const NAME: &[u8] = b"vipinfo --why";

/// `nic` is of a device of `ip` if `is_ip`.
pub(super) fn check(
    nic: &Nic,
    is_ip: bool,
    host: &str,
    link: Option<&Link>,
    log: &Log,
) -> Vec<Finding> {
    let address = match parse_host(host) {
        Some(address) => Ok(address),
        None => nic.host_by_name(host),
    };
    let address = match address {
        Ok(address) => address,
        Err(error) => {
            let why = log.why().unwrap_or_else(|| error.to_string());
            let mend = "a line `ADDRESS NAME` in /etc/vip_hosts, or on Ethernet: ping it, so that its address is known";
            return vec![Kind::UnknownHost.found(why).mended_by(mend)];
        }
    };
    let shown = host_text(nic.attributes(), &address);
    let mut found = vec![Finding::fine("host", format!("{host} is {shown}"))];
    // Before the request, whose refusals would count as well.
    if let (Some(link), Some(ip)) = (link, network::ip_of(host, Some(&address), is_ip)) {
        found.extend(path(ip, link));
    }
    found.push(ask(nic, host, &address, log));
    found
}

/// Requests a connection that no server there waits for. Which answer comes shows whether the agent there is reached.
fn ask(nic: &Nic, host: &str, address: &[u8], log: &Log) -> Finding {
    let attributes = nic.attributes();
    let levels = attributes.reliability.bits();
    let reliability = Reliability::from_bits(levels & levels.wrapping_neg());
    let options = ViOptions {
        reliability,
        transfer_max: attributes.transfer_max,
        rdma_write: false,
        rdma_read: false,
    };
    let name = &NAME[..NAME.len().min(attributes.discriminator_max as usize)];
    let vi = match Vi::new(nic.ptag(), options, None, None) {
        Ok(vi) => vi,
        Err(error) => return Finding::unknown("agent of the host", error.to_string()),
    };
    let remote = vipl_client::Address::new(address, name);
    let answer = vi.connect(&nic.address(name), &remote, Some(PATIENCE));
    let error = answer
        .map(|vi| drop(vi.disconnect()))
        .map_err(|returned| returned.error);
    judge(host, error, log.why())
}

fn judge(host: &str, answer: Result<(), VipError>, said: Option<String>) -> Finding {
    let Err(error) = answer else {
        return Finding::fine("agent of the host", "a server there accepts");
    };
    let said = said.unwrap_or_else(|| error.to_string());
    let answers = said.contains("Kernel Agent of that host answers")
        || matches!(error.code(), Some(Code::NoMatch | Code::Reject));
    let is_version = said.contains("another version");
    if answers && !is_version {
        return Finding::fine(
            "agent of the host",
            format!("{host} answers; no server of this test waits there"),
        );
    }
    let mend = if said.contains("nothing listens") {
        format!("on {host}: start the server, or vipkad, with the same VIPL_UDP_PORT")
    } else if said.contains("no route") {
        format!("ip route get {host}; its firewall: nft list ruleset")
    } else if is_version {
        format!("install the same release here and on {host}")
    } else {
        format!(
            "on {host}: vipinfo --why with the same device; both sides need the same plug-in and the same secret"
        )
    };
    Kind::Unreached.found(said).mended_by(mend)
}

/// Whether packets as long as those of the interface get to a host.
fn path(ip: IpAddr, link: &Link) -> Vec<Finding> {
    let headers = if ip.is_ipv4() { 28 } else { 48 };
    let name = "path";
    let short = match refused(ip, 8) {
        Ok(Answer::Refused) => Answer::Refused,
        Ok(Answer::Silence) => {
            let why = format!(
                "{ip} does not answer datagrams to UDP port {DISCARD}, so the size of packets is not tried"
            );
            return vec![Finding::unknown(name, why)];
        }
        Ok(other) => other,
        Err(error) => return vec![Finding::unknown(name, format!("{ip}: {error}"))],
    };
    let long = match short {
        Answer::TooLong(mtu) => Ok(Answer::TooLong(mtu)),
        _ => refused(ip, link.mtu().saturating_sub(headers).min(65_507)),
    };
    vec![verdict(ip, link, long)]
}

fn verdict(ip: IpAddr, link: &Link, long: io::Result<Answer>) -> Finding {
    let (mtu, interface) = (link.mtu(), &link.name);
    match long {
        Ok(Answer::Refused) => Finding::fine("path", format!("packets of {mtu} bytes get to {ip}")),
        Ok(Answer::TooLong(Some(path))) if path < mtu => Kind::SmallPath
            .found(format!("packets of {path} bytes get to {ip}, {interface} has {mtu}"))
            .mended_by(format!("within one subnet: ip link set {interface} mtu {path} on all hosts; across routers nothing")),
        Ok(Answer::TooLong(_) | Answer::Silence) => Kind::BlackHole
            .found(format!("{ip} answers packets of 36 bytes, not of {mtu}"))
            .mended_by(format!("the same MTU on all hosts: ip link show {interface} there; ip link set {interface} mtu N")),
        Err(error) => Finding::unknown("path", format!("{ip}: {error}")),
    }
}

/// What came back for a datagram.
enum Answer {
    /// The host refused it, so it has arrived.
    Refused,
    /// It is longer than the way is wide, in bytes, if that is known.
    TooLong(Option<usize>),
    Silence,
}

/// Sends a datagram of so many bytes, which may not be cut, to a port on which nothing listens; three times at most.
fn refused(ip: IpAddr, bytes: usize) -> io::Result<Answer> {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    sys::never_cut(&socket, ip.is_ipv4())?;
    socket.connect(SocketAddr::new(ip, DISCARD))?;
    socket.set_read_timeout(Some(REFUSAL))?;
    let mut room = [0; 16];
    for _ in 0..3 {
        let sent = socket
            .send(&vec![0; bytes])
            .and_then(|_| socket.recv(&mut room));
        match sent {
            Ok(_) => return Ok(Answer::Refused),
            Err(error) => match error.raw_os_error() {
                Some(libc::ECONNREFUSED) => return Ok(Answer::Refused),
                Some(libc::EMSGSIZE) => {
                    return Ok(Answer::TooLong(sys::path_mtu(&socket, ip.is_ipv4())));
                }
                Some(libc::EAGAIN) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(Answer::Silence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: i32, said: &str) -> Finding {
        judge(
            "node7",
            Err(VipError::call("VipConnectRequest", code)),
            Some(said.to_owned()),
        )
    }

    #[test]
    fn an_agent_that_answers_is_not_taken_for_a_silent_one() {
        let (no_match, timeout) = (14, 4);
        assert_eq!(failed(no_match, "no server").mend(), None);
        let busy = "the Kernel Agent of that host answers, but no program there has accepted";
        assert_eq!(failed(timeout, busy).mend(), None);
        let nothing = failed(
            timeout,
            "nothing listens at UDP port 34998 there: is vipkad running?",
        );
        assert_eq!(nothing.name(), "unreached");
        assert!(
            nothing
                .mend()
                .unwrap()
                .starts_with("on node7: start the server")
        );
        let old = failed(
            timeout,
            "the Kernel Agent of that host speaks another version of the protocol",
        );
        assert!(old.mend().unwrap().contains("same release"));
    }

    #[test]
    fn this_host_refuses_datagrams_of_any_size() {
        let ip = Ipv4Addr::LOCALHOST.into();
        assert!(matches!(refused(ip, 8).unwrap(), Answer::Refused));
        assert!(matches!(refused(ip, 1472).unwrap(), Answer::Refused));
    }
}
