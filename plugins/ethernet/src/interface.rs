//! Network interfaces of this host. They come and go, so nothing is cached.
//!
//! All queries use a socket of this process, and so refer to its own network namespace; `/sys` shows the namespace in
//! which it was mounted.

use std::ffi::{CStr, c_char, c_void};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use vipl_plugin_sdk::shm::made;
use vipl_plugin_sdk::thread::with_stack;

/// `SIOCGIWNAME`: only wireless interfaces answer.
const SIOCGIWNAME: libc::Ioctl = 0x8B01;
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;
const ARPHRD_ETHER: u16 = 1;
const SPEED_UNKNOWN: u32 = u32::MAX;

/// An Ethernet interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Name of its driver; empty if unknown.
    pub driver: String,
    /// Speed in Mbit/s, if known.
    pub speed_mbit: Option<u32>,
    /// The interface is up.
    pub up: bool,
}

impl Interface {
    /// Whether this is hardware like the Tulip: its driver, or 10 or 100 Mbit/s.
    pub fn is_tulip_like(&self) -> bool {
        self.driver == "tulip" || self.speed_mbit.is_some_and(|speed| speed <= 100)
    }
}

/// The head of `struct ethtool_drvinfo`; 196 bytes in all.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [c_char; 32],
    rest: [u8; 160],
}

/// The head of `struct ethtool_link_settings`, with room for the masks behind it.
#[repr(C)]
struct LinkSettings {
    command: u32,
    speed: u32,
    bytes: [u8; 7],
    mask_words: i8,
    rest: [u8; 32],
    masks: [u32; 3 * 127],
}

fn control() -> Option<OwnedFd> {
    // SAFETY: a system call; the descriptor is new.
    unsafe {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        made(libc::socket(libc::AF_INET, kind, 0)).ok()
    }
}

fn request(name: &str) -> Option<libc::ifreq> {
    // SAFETY: all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    Some(request)
}

fn ask(control: &OwnedFd, what: libc::Ioctl, request: &mut libc::ifreq) -> bool {
    // SAFETY: every request used here takes an ifreq, whose data pointer, if any, is valid.
    unsafe { libc::ioctl(control.as_raw_fd(), what, std::ptr::from_mut(request)) == 0 }
}

/// # Safety
/// `value` begins with an ethtool command, and has the room that the command needs.
unsafe fn ethtool<T>(control: &OwnedFd, name: &str, value: &mut T) -> bool {
    request(name).is_some_and(|mut request| {
        request.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast::<c_void>().cast();
        ask(control, SIOCETHTOOL, &mut request)
    })
}

fn driver(control: &OwnedFd, name: &str) -> String {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: the structure is as large as the kernel's.
    if !unsafe { ethtool(control, name, &mut info) } {
        return String::new();
    }
    let bytes = info.driver.map(|c| c as u8);
    CStr::from_bytes_until_nul(&bytes)
        .map_or(String::new(), |text| text.to_string_lossy().into_owned())
}

fn speed(control: &OwnedFd, name: &str) -> Option<u32> {
    let mut settings = LinkSettings {
        command: ETHTOOL_GLINKSETTINGS,
        speed: 0,
        bytes: [0; 7],
        mask_words: 0,
        rest: [0; 32],
        masks: [0; 381],
    };
    // The first call returns the number of words of the masks, as a negative number.
    // SAFETY: room for masks of every size that fits an i8.
    if !unsafe { ethtool(control, name, &mut settings) } || settings.mask_words >= 0 {
        return None;
    }
    settings.mask_words = settings.mask_words.checked_neg()?;
    settings.command = ETHTOOL_GLINKSETTINGS;
    // SAFETY: as above.
    let known = unsafe { ethtool(control, name, &mut settings) };
    (known && settings.speed != 0 && settings.speed != SPEED_UNKNOWN).then_some(settings.speed)
}

/// The master of an interface, which takes its frames: a bridge, a bond.
pub(crate) fn master(name: &str) -> Option<String> {
    let control = control()?;
    let mut request = request(name)?;
    if !ask(&control, libc::SIOCGIFINDEX, &mut request) {
        return None;
    }
    // SAFETY: the kernel filled this field.
    let index = unsafe { request.ifr_ifru.ifru_ifindex };
    vipl_netio::packet::Asker::open().ok()?.master(index as u32)
}

/// The message for an interface that is a port.
pub(crate) fn is_port(name: &str, master: &str) -> String {
    format!("{name} is a port of {master}, which takes its frames: use {master}")
}

/// The wired Ethernet interface of this name that receives frames.
pub fn find(name: &str) -> Option<Interface> {
    let control = control()?;
    let mut flags = request(name)?;
    if !ask(&control, libc::SIOCGIFFLAGS, &mut flags) {
        return None;
    }
    // SAFETY: the kernel filled this field.
    let flags = i32::from(unsafe { flags.ifr_ifru.ifru_flags });
    let mut address = request(name)?;
    let mut wireless = request(name)?;
    // SAFETY: the kernel filled this field.
    let is_ethernet = ask(&control, libc::SIOCGIFHWADDR, &mut address)
        && unsafe { address.ifr_ifru.ifru_hwaddr.sa_family } == ARPHRD_ETHER;
    if flags & libc::IFF_LOOPBACK != 0 || !is_ethernet || ask(&control, SIOCGIWNAME, &mut wireless)
    {
        return None;
    }
    if master(name).is_some() {
        return None;
    }
    Some(Interface {
        name: name.to_owned(),
        driver: driver(&control, name),
        speed_mbit: speed(&control, name),
        up: flags & libc::IFF_UP != 0,
    })
}

/// All wired Ethernet interfaces, in the kernel's order.
pub fn all() -> Vec<Interface> {
    let mut names = Vec::new();
    // SAFETY: the list ends with an entry without a name, and is freed once.
    unsafe {
        let list = libc::if_nameindex();
        if list.is_null() {
            return Vec::new();
        }
        let mut entry = list;
        while !(*entry).if_name.is_null() {
            names.push(
                CStr::from_ptr((*entry).if_name)
                    .to_string_lossy()
                    .into_owned(),
            );
            entry = entry.add(1);
        }
        libc::if_freenameindex(list);
    }
    names.iter().filter_map(|name| find(name)).collect()
}

/// Calls `each` with every address of every interface of this host.
fn each_address(mut each: impl FnMut(&libc::ifaddrs)) {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the list ends with NULL, and is freed once.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return;
        }
        let mut next = list;
        while let Some(one) = next.as_ref() {
            next = one.ifa_next;
            each(one);
        }
        libc::freeifaddrs(list);
    }
}

/// Names of the interfaces of every kind that are up and have an IP address by which other hosts can reach this one.
pub fn addressed() -> Vec<String> {
    with_stack(find_addressed)
}

fn find_addressed() -> Vec<String> {
    let mut names = Vec::new();
    each_address(|one| {
        let flags = one.ifa_flags as i32;
        let up = flags & libc::IFF_UP != 0 && flags & libc::IFF_LOOPBACK == 0;
        // SAFETY: NULL, or an address of the size of its family.
        let address = unsafe { ip(one.ifa_addr) };
        // SAFETY: a NUL-terminated name.
        let name = unsafe { CStr::from_ptr(one.ifa_name) }.to_string_lossy();
        if up && address.is_some_and(is_global) && !names.iter().any(|known| *known == name) {
            names.push(name.into_owned());
        }
    });
    names
}

/// The network of one of this host's addresses: which addresses are on the same link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    address: Ipv6Addr,
    mask: u128,
}

impl Subnet {
    fn new(address: IpAddr, mask: IpAddr) -> Subnet {
        let mask = match mask {
            IpAddr::V4(mask) => u128::from(u32::from(mask)) | !u128::from(u32::MAX),
            IpAddr::V6(mask) => u128::from(mask),
        };
        Subnet {
            address: as_v6(address),
            mask,
        }
    }

    /// Whether an address is on this link, and is reached without a router.
    pub fn has(&self, other: IpAddr) -> bool {
        let differ = u128::from(self.address) ^ u128::from(as_v6(other));
        differ & self.mask == 0
    }
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The network of an address of this host. If it is unknown, every other address is behind a router.
pub fn subnet(own: IpAddr) -> Subnet {
    with_stack(|| find_subnet(own))
}

fn find_subnet(own: IpAddr) -> Subnet {
    let mut found = Subnet {
        address: as_v6(own),
        mask: u128::MAX,
    };
    each_address(|one| {
        // SAFETY: NULL, or addresses of the size of their family.
        let (address, mask) = unsafe { (ip(one.ifa_addr), ip(one.ifa_netmask)) };
        if let (Some(address), Some(mask)) = (address, mask)
            && address == own
        {
            found = Subnet::new(address, mask);
        }
    });
    found
}

/// An IP address as the kernel writes it.
///
/// # Safety
/// NULL, or an address of the size of its family.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as asked of the caller.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::from(v6.sin6_addr.s6_addr))
            }
            _ => None,
        }
    }
}

/// Whether an address is valid beyond its link.
fn is_global(address: IpAddr) -> bool {
    !matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_unknown_names_are_no_ethernet() {
        assert_eq!(find("lo"), None);
        assert_eq!(find(""), None);
        assert_eq!(find("no-such-interface-at-all"), None);
        assert!(all().iter().all(|found| found.name != "lo"));
        assert!(addressed().iter().all(|name| name != "lo"));
    }

    #[test]
    fn the_tulip_is_known_by_driver_or_speed() {
        let interface = |driver: &str, speed_mbit| Interface {
            name: "eth0".into(),
            driver: driver.into(),
            speed_mbit,
            up: true,
        };
        assert!(interface("tulip", Some(1000)).is_tulip_like());
        assert!(interface("8139too", Some(100)).is_tulip_like());
        assert!(!interface("e1000e", Some(1000)).is_tulip_like());
        assert!(!interface("virtio_net", None).is_tulip_like());
    }

    #[test]
    fn a_subnet_has_what_its_mask_leaves_open() {
        let on = |own: &str, mask: &str, other: &str| {
            let [own, mask, other] = [own, mask, other].map(|text| text.parse().unwrap());
            Subnet::new(own, mask).has(other)
        };
        assert!(on("192.0.2.1", "255.255.255.0", "192.0.2.200"));
        assert!(!on("192.0.2.1", "255.255.255.0", "192.0.3.1"));
        assert!(!on("192.0.2.1", "255.255.255.0", "2001:db8::1"));
        assert!(on("2001:db8::1", "ffff:ffff::", "2001:db8:1::9"));
        assert!(!on("2001:db8::1", "ffff:ffff:ffff:ffff::", "2001:db8:1::9"));
        let own = subnet([127, 0, 0, 1].into());
        assert!(own.has([127, 9, 9, 9].into()) && !own.has([10, 0, 0, 1].into()));
        let none = subnet([192, 0, 2, 77].into());
        assert!(none.has([192, 0, 2, 77].into()) && !none.has([192, 0, 2, 78].into()));
    }
}
