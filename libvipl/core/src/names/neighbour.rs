//! Host names that are not in the table, on Ethernet: the IPv4 address is taken from the system's resolver,
//! the Ethernet address from the kernel's neighbour table.
//!
//! The table is only read. The kernel fills it when two hosts exchange IP packets; nothing is sent here to
//! cause that.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

use vipl_sys::thread::with_stack;

/// The kernel's neighbour table of the calling thread's network.
const TABLE: &str = "/proc/thread-self/net/arp";
/// `ARPHRD_ETHER`.
const ETHERNET: u32 = 1;
/// `ATF_COM`: the address is known.
const COMPLETE: u32 = 2;

/// Why a name has no address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Unknown {
    #[error("the system's resolver does not know the host {0:?}")]
    Host(String),
    #[error("the host {0:?} has no IPv4 address")]
    Family(String),
    #[error(
        "{address} is not in the neighbour table of {interface}; exchange IP packets with it first (ping), or add it to the table of hosts"
    )]
    Neighbour {
        address: Ipv4Addr,
        interface: String,
    },
}

/// Address of a host, reached over an interface whose own address is `own`.
pub(crate) fn find(name: &str, interface: &str, own: &[u8]) -> Result<Vec<u8>, Unknown> {
    let found = with_stack(|| (name, 0u16).to_socket_addrs())
        .map_err(|_| Unknown::Host(name.to_owned()))?;
    let mut addresses = found.filter_map(|found| match found.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    let first = addresses
        .next()
        .ok_or_else(|| Unknown::Family(name.to_owned()))?;
    let here = own_addresses(interface);
    let table = std::fs::read_to_string(TABLE).unwrap_or_default();
    std::iter::once(first)
        .chain(addresses)
        .find_map(|address| {
            // Many systems resolve the host's own name to 127.0.1.1.
            if address.is_loopback() || here.contains(&address) {
                return Some(own.to_vec());
            }
            look_up(&table, address, interface)
        })
        .ok_or_else(|| Unknown::Neighbour {
            address: first,
            interface: interface.to_owned(),
        })
}

/// `IP address, HW type, Flags, HW address, Mask, Device`, below a line of headings.
fn look_up(table: &str, address: Ipv4Addr, interface: &str) -> Option<Vec<u8>> {
    let number = |word: &str| u32::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[ip, kind, flags, hardware, _, device] = words.as_slice() else {
            return None;
        };
        let fits = ip.parse() == Ok(address)
            && number(kind) == Some(ETHERNET)
            && number(flags)? & COMPLETE != 0
            && device == interface;
        fits.then(|| crate::connect::address::parse_host(hardware))?
    })
}

/// IPv4 addresses of an interface of this host.
fn own_addresses(interface: &str) -> Vec<Ipv4Addr> {
    with_stack(|| find_own_addresses(interface))
}

fn find_own_addresses(interface: &str) -> Vec<Ipv4Addr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    all.filter(|one| one.interface_name == interface)
        .filter_map(|one| Some(one.address?.as_sockaddr_in()?.ip()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARP: &str = "\
IP address       HW type     Flags       HW address            Mask     Device
192.0.2.7        0x1         0x2         02:00:00:00:00:07     *        eth0
192.0.2.8        0x1         0x0         00:00:00:00:00:00     *        eth0
192.0.2.9        0x20        0x2         02:00:00:00:00:09     *        ib0
192.0.2.7        0x1         0x2         02:00:00:00:01:07     *        eth1
";

    #[test]
    fn only_complete_neighbours_on_the_interface_count() {
        let find = |last, interface| look_up(ARP, Ipv4Addr::new(192, 0, 2, last), interface);
        assert_eq!(find(7, "eth0"), Some(vec![2, 0, 0, 0, 0, 7]));
        assert_eq!(find(7, "eth1"), Some(vec![2, 0, 0, 0, 1, 7]));
        assert_eq!(find(7, "eth2"), None);
        assert_eq!(find(8, "eth0"), None, "not complete");
        assert_eq!(find(9, "ib0"), None, "no Ethernet");
        assert_eq!(find(10, "eth0"), None);
    }

    #[test]
    fn a_host_of_this_interface_has_its_address() {
        // Every Linux has this interface and this name; neither requires a network query.
        let own = [2, 0, 0, 0, 0, 1];
        assert_eq!(find("127.0.0.1", "lo", &own), Ok(own.to_vec()));
        assert_eq!(find("127.0.1.1", "eth0", &own), Ok(own.to_vec()));
        assert!(matches!(
            find("192.0.2.1", "lo", &own),
            Err(Unknown::Neighbour { .. })
        ));
    }
}
