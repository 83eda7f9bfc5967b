//! The network interface of a device, and what stands between it and other hosts.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use vipl_client::host_socket;
use vipl_sys::rdma;

use super::firewall::{self, Flow};
use super::library::Device;
use super::{Finding, Kind};
use crate::sys::{self, Interface};

/// The interface of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) name: String,
    state: Interface,
}

impl Link {
    /// Bytes of the largest packet.
    pub(super) fn mtu(&self) -> usize {
        self.state.mtu
    }

    /// None for devices without one.
    pub(super) fn of(of: &Device) -> Option<Self> {
        let ip = own_socket(of).map(|socket| socket.ip());
        let name = match (of.plugin.as_str(), ip.or_else(|| of.argument.parse().ok())) {
            ("ip", Some(ip)) => sys::interface_of(ip)?,
            ("verbs", _) => {
                let devices = rdma::devices();
                let port = devices.iter().find(|device| device.name == of.argument);
                let of_port = port.and_then(|device| {
                    device.ports.iter().find_map(|port| port.interfaces.first())
                });
                of_port.unwrap_or(&of.argument).clone()
            }
            _ => of.argument.clone(),
        };
        let state = sys::interface(&name)?;
        Some(Self { name, state })
    }

    fn finding(&self) -> Finding {
        let (name, state) = (&self.name, self.state);
        if !state.is_up {
            return Kind::Interface
                .found(format!("{name} is down"))
                .mended_by(format!("as root: ip link set {name} up"));
        }
        if !state.has_carrier {
            return Kind::Interface
                .found(format!("{name} is up, without a carrier"))
                .mended_by("check cable, switch, and what is at the other end of a veth: ip link");
        }
        Finding::fine("interface", format!("{name} is up, MTU {}", state.mtu))
    }
}

/// The address and port of a NIC of `ip`.
pub(super) fn own_socket(of: &Device) -> Option<SocketAddr> {
    let nic = of.nic.as_ref().filter(|_| of.plugin == "ip")?;
    host_socket(&nic.attributes().address)
}

/// `host`: the way there is asked for.
pub(super) fn check(of: &Device, link: Option<&Link>, host: Option<&str>) -> Vec<Finding> {
    let mut found: Vec<Finding> = link.map(Link::finding).into_iter().collect();
    match own_socket(of) {
        Some(socket) if socket.ip().is_loopback() && stays_here(&of.argument, host) => {
            let text = format!("{socket}, which processes of this host reach");
            found.push(Finding::fine("address", text));
        }
        Some(socket) if socket.ip().is_loopback() || socket.ip().is_unspecified() => found.push(
            Kind::NoAddress
                .found(format!("the device has the address {socket}"))
                .mended_by("as root: ip addr add ADDRESS/24 dev INTERFACE; then ip:INTERFACE"),
        ),
        Some(socket) => found.extend(firewall(socket, link)),
        None => {}
    }
    found.extend(rdma(of, &rdma::devices()));
    found
}

/// Whether a device with the loopback address is to reach processes of this host only: the host that is asked for is this one,
/// or none is and the device is named so.
fn stays_here(argument: &str, host: Option<&str>) -> bool {
    let is_loopback = |ip: IpAddr| ip.is_loopback();
    match host {
        Some(host) => {
            let address = vipl_client::parse_host(host);
            ip_of(host, address.as_deref(), true).is_some_and(is_loopback)
        }
        None => argument == "lo" || argument.parse().is_ok_and(is_loopback),
    }
}

/// Whether datagrams of others reach the agent's port, and the ports that the kernel chooses for data.
fn firewall(socket: SocketAddr, link: Option<&Link>) -> Vec<Finding> {
    let ports = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ports: Vec<u16> = ports
        .split_whitespace()
        .filter_map(|port| port.parse().ok())
        .collect();
    ports.insert(0, socket.port());
    let rules = match firewall::rules() {
        Ok(rules) => rules,
        Err(why) => return vec![Finding::unknown("firewall", why)],
    };
    let flow = |port| Flow {
        is_v4: socket.is_ipv4(),
        port,
        interface: link.map(|link| link.name.clone()),
    };
    firewall::judge(
        &rules,
        &ports.iter().map(|port| flow(*port)).collect::<Vec<_>>(),
    )
}

/// RDMA devices that could serve, and do not.
fn rdma(of: &Device, devices: &[rdma::Device]) -> Vec<Finding> {
    let is_verbs = of.plugin == "verbs";
    let hardware = devices.iter().filter(|device| !device.is_software());
    let found: Vec<Finding> = hardware
        .filter_map(|device| match device.obstacle() {
            Some(why) => Some(
                Kind::ClosedRdma
                    .found(why)
                    .mended_by("vipinfo -v; rdma link"),
            ),
            None if is_verbs || of.plugin == "loopback" || of.plugin == "clan" => None,
            None => {
                let name = &device.name;
                Some(
                    Kind::UnusedRdma
                        .found(name)
                        .mended_by(format!("open verbs:{name} on both hosts")),
                )
            }
        })
        .collect();
    if !found.is_empty() {
        return found;
    }
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    vec![Finding::fine(
        "RDMA devices",
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        },
    )]
}

/// An address of a host, if its name or address is one of IP.
pub(super) fn ip_of(host: &str, address: Option<&[u8]>, is_ip: bool) -> Option<IpAddr> {
    use std::net::ToSocketAddrs;
    if let (true, Some(socket)) = (is_ip, address.and_then(host_socket)) {
        return Some(socket.ip());
    }
    let mut all = (host, 0).to_socket_addrs().ok()?;
    all.next().map(|socket| socket.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_carries_nothing_is_found() {
        let finding = |is_up, has_carrier| {
            let state = Interface {
                mtu: 1500,
                is_up,
                has_carrier,
            };
            let name = "eth9".to_owned();
            Link { name, state }.finding()
        };
        assert_eq!(
            finding(false, false).mend(),
            Some("as root: ip link set eth9 up")
        );
        assert_eq!(finding(true, false).name(), "interface");
        assert_eq!(finding(true, true).found(), "eth9 is up, MTU 1500");
        assert_eq!(finding(true, true).mend(), None);
    }

    #[test]
    fn the_loopback_address_is_enough_for_this_host() {
        for (argument, host, here) in [
            ("lo", None, true),
            ("127.0.0.1", None, true),
            ("", None, false),
            ("eth0", None, false),
            ("", Some("127.0.0.1"), true),
            ("lo", Some("127.0.0.1"), true),
            ("lo", Some("[::1]:34998"), true),
            ("lo", Some("192.0.2.7"), false),
        ] {
            assert_eq!(stays_here(argument, host), here, "{argument} {host:?}");
        }
    }

    #[test]
    fn a_host_has_the_address_of_its_nic_or_of_its_name() {
        let address = vipl_client::parse_host("192.0.2.7:34998");
        let ip = ip_of("node7", address.as_deref(), true);
        assert_eq!(ip, Some("192.0.2.7".parse().unwrap()));
        assert_eq!(
            ip_of("192.0.2.8", None, false),
            Some("192.0.2.8".parse().unwrap())
        );
    }
}
