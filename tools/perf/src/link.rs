//! The Ethernet interface that a device is on: its address, its MTU, and whether its limits may be
//! measured, which fills it with frames.

use std::ffi::{CStr, CString, c_char, c_void};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::socket::SockaddrStorage;
use vipl_tools::{Error, Result, sys};

/// Asks drivers about themselves; `libc` does not have it.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// The question for the driver's name, and the size of its answer.
const ETHTOOL_GDRVINFO: u32 = 3;
const DRIVER_INFO_BYTES: usize = 196;
/// The first two fields of the answer before the name: the command, and the name's room.
const DRIVER_NAME: std::ops::Range<usize> = 4..36;

/// An interface of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The interface's name.
    pub(crate) name: String,
    /// Its number in this namespace.
    pub(crate) index: u32,
    /// Its Ethernet address.
    pub(crate) address: [u8; 6],
    /// The largest payload of a frame in bytes.
    pub(crate) mtu: usize,
    is_veth: bool,
}

impl Link {
    /// The interface that a device with this name and host address is on; None for a device on none.
    #[must_use]
    pub(crate) fn of(device: &str, address: &[u8]) -> Option<Self> {
        let mut found: Vec<Self> = names()
            .iter()
            .filter_map(|name| Self::read(name))
            .filter(|link| link.address == *address || link.has_ip(address))
            .collect();
        // A bridge and its port share an address; the device is named after its interface.
        found.sort_by_key(|link| !device.ends_with(&link.name));
        found.into_iter().next()
    }

    /// Whether this is the host address of a device over UDP: an IP address of the interface, and a port.
    fn has_ip(&self, address: &[u8]) -> bool {
        let bytes = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let ip = address.split_last_chunk::<2>().map(|(ip, _port)| ip);
        ip.is_some_and(|ip| self.ip_addresses().into_iter().any(|own| bytes(own) == ip))
    }

    fn read(name: &str) -> Option<Self> {
        let control = control()?;
        let mut request = request(name)?;
        let mut get = |what| {
            // SAFETY: each of these requests fills an ifreq.
            unsafe { libc::ioctl(control.as_raw_fd(), what, &raw mut request) == 0 }
                .then_some(request.ifr_ifru)
        };
        // SAFETY: the field that each request fills.
        unsafe {
            let flags = i32::from(get(libc::SIOCGIFFLAGS)?.ifru_flags);
            let hardware = get(libc::SIOCGIFHWADDR)?.ifru_hwaddr;
            if flags & libc::IFF_LOOPBACK != 0 || hardware.sa_family != libc::ARPHRD_ETHER {
                return None;
            }
            let mut address = [0; 6];
            for (to, from) in address.iter_mut().zip(hardware.sa_data) {
                *to = from as u8;
            }
            Some(Self {
                name: name.to_owned(),
                index: u32::try_from(get(libc::SIOCGIFINDEX)?.ifru_ifindex).ok()?,
                address,
                mtu: usize::try_from(get(libc::SIOCGIFMTU)?.ifru_mtu).ok()?,
                is_veth: driver(&control, name) == "veth",
            })
        }
    }

    /// Whether as many frames may be sent on it as it takes: it is one end of a veth pair, in a network
    /// namespace that `ip netns` made.
    ///
    /// # Errors
    /// It may not: that might be a real network.
    pub(crate) fn may_be_filled(&self) -> Result<()> {
        let why = match (self.is_veth, in_a_network_of_its_own()) {
            (true, true) => return Ok(()),
            (false, _) => "it is not a veth",
            (true, false) => "it is not in a network namespace made by `ip netns`",
        };
        Err(Error::Usage(format!(
            "the limits of {} are not measured: {why}, and the test would saturate a real network \
             (--any-interface overrides this)",
            self.name
        )))
    }

    /// Its IP addresses.
    #[must_use]
    pub(crate) fn ip_addresses(&self) -> Vec<IpAddr> {
        let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
        all.filter(|one| one.interface_name == self.name)
            .filter_map(|one| ip_address(&one.address?))
            .collect()
    }
}

fn ip_address(address: &SockaddrStorage) -> Option<IpAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(four), _) => Some(four.ip().into()),
        (_, Some(six)) => Some(six.ip().into()),
        _ => None,
    }
}

/// Whether this process's network namespace is one that `ip netns` made, and not that of the first process
/// (which not everybody may ask for).
fn in_a_network_of_its_own() -> bool {
    let id = |path: &Path| {
        let data = std::fs::metadata(path).ok()?;
        Some((data.dev(), data.ino()))
    };
    let Some(own) = id(Path::new("/proc/self/ns/net")) else {
        return false;
    };
    let named = std::fs::read_dir(sys::NETWORKS).into_iter().flatten();
    let mut named = named.filter_map(|entry| id(&entry.ok()?.path()));
    named.any(|id| id == own) && id(Path::new("/proc/1/ns/net")) != Some(own)
}

fn control() -> Option<OwnedFd> {
    // SAFETY: a new socket, owned by nothing else.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        (socket >= 0).then(|| OwnedFd::from_raw_fd(socket))
    }
}

fn request(name: &str) -> Option<libc::ifreq> {
    // SAFETY: all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = CString::new(name).ok()?;
    let name = name.as_bytes_with_nul();
    if name.len() > request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as c_char;
    }
    Some(request)
}

fn driver(control: &OwnedFd, name: &str) -> String {
    let Some(mut request) = request(name) else {
        return String::new();
    };
    let mut info = [0u32; DRIVER_INFO_BYTES / 4];
    info[0] = ETHTOOL_GDRVINFO;
    request.ifr_ifru.ifru_data = info.as_mut_ptr().cast::<c_void>().cast();
    // SAFETY: the request points to as many bytes as its answer has.
    if unsafe { libc::ioctl(control.as_raw_fd(), SIOCETHTOOL, &raw mut request) } != 0 {
        return String::new();
    }
    let bytes = info.map(u32::to_ne_bytes).concat();
    let text = CStr::from_bytes_until_nul(&bytes[DRIVER_NAME]);
    text.map_or(String::new(), |text| text.to_string_lossy().into_owned())
}

fn names() -> Vec<String> {
    let mut names = Vec::new();
    // SAFETY: the list ends with an entry without a name, and is freed once.
    unsafe {
        let list = libc::if_nameindex();
        if list.is_null() {
            return names;
        }
        let mut entry = list;
        while !(*entry).if_name.is_null() {
            let name = CStr::from_ptr((*entry).if_name);
            names.push(name.to_string_lossy().into_owned());
            entry = entry.add(1);
        }
        libc::if_freenameindex(list);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(is_veth: bool) -> Link {
        Link {
            name: "eth0".to_owned(),
            index: 2,
            address: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            is_veth,
        }
    }

    #[test]
    fn a_real_interface_is_not_filled() {
        let refusal = link(false).may_be_filled().unwrap_err().to_string();
        assert!(
            refusal.contains("not a veth") && refusal.contains("--any-interface"),
            "{refusal}"
        );
    }

    #[test]
    fn the_usual_network_is_not_filled() {
        let refused = link(true).may_be_filled().is_err();
        assert_eq!(refused, !in_a_network_of_its_own());
    }

    #[test]
    fn the_systems_own_loopback_is_no_link() {
        assert_eq!(Link::read("lo"), None);
        assert_eq!(Link::read("vipl-no-such-interface"), None);
        assert_eq!(Link::of("/dev/via_lo", &[0; 6]), None);
    }
}
