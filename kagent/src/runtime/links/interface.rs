//! Properties of a network interface, by ioctl: `/sys` shows the network namespace in which it was mounted,
//! which need not be that of the agent.

use std::os::fd::{AsRawFd, OwnedFd};

use kagent_proto::{DRIVER_BYTES, INTERFACE_BYTES, LINK_BYTES};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::{Interface, Medium};

const ETHTOOL_GSET: u32 = 1;
const ETHTOOL_GDRVINFO: u32 = 3;
const SPEED_UNKNOWN: u32 = u32::MAX;

/// `struct ethtool_cmd`.
#[repr(C)]
struct Settings {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    modes: [u8; 6],
    packets: [u32; 2],
    speed_high: u16,
    more: [u8; 2],
    rest: [u32; 3],
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; DRIVER_BYTES],
    rest: [u8; 160],
}

/// Describes an interface. `None` if there is none of this name, or it is not Ethernet.
pub(crate) fn describe(name: &[u8; LINK_BYTES]) -> Result<Option<Interface>, Errno> {
    let (name, rest) = name.split_at(INTERFACE_BYTES);
    let name: [u8; INTERFACE_BYTES] = name.try_into().unwrap_or_default();
    if name[INTERFACE_BYTES - 1] != 0 || rest.iter().any(|byte| *byte != 0) {
        return Ok(None);
    }
    match Question::of(name)?.interface() {
        Err(Errno::ENODEV) => Ok(None),
        other => other,
    }
}

/// MTU, speed and driver of any interface.
pub(crate) fn properties(
    name: &[u8; INTERFACE_BYTES],
) -> Result<(u32, u32, [u8; DRIVER_BYTES]), Errno> {
    let ask = Question::of(*name)?;
    Ok((ask.mtu()?, ask.speed(), ask.driver()))
}

struct Question {
    socket: OwnedFd,
    name: [u8; INTERFACE_BYTES],
}

impl Question {
    fn of(name: [u8; INTERFACE_BYTES]) -> Result<Question, Errno> {
        // Any socket will do for these ioctls.
        let socket = socket(
            AddressFamily::Unix,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        Ok(Question { socket, name })
    }

    fn mtu(&self) -> Result<u32, Errno> {
        // SAFETY: SIOCGIFMTU writes the MTU.
        Ok(unsafe { self.ask(libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu } as u32)
    }

    fn interface(&self) -> Result<Option<Interface>, Errno> {
        // SAFETY: SIOCGIFHWADDR writes the address.
        let hardware = unsafe { self.ask(libc::SIOCGIFHWADDR)?.ifr_ifru.ifru_hwaddr };
        // SAFETY: SIOCGIFFLAGS writes the flags.
        let flags = unsafe { self.ask(libc::SIOCGIFFLAGS)?.ifr_ifru.ifru_flags };
        if hardware.sa_family != libc::ARPHRD_ETHER || i32::from(flags) & libc::IFF_LOOPBACK != 0 {
            return Ok(None);
        }
        // SAFETY: SIOCGIFINDEX writes the index.
        let index = unsafe { self.ask(libc::SIOCGIFINDEX)?.ifr_ifru.ifru_ifindex };
        let mut address = [0; 6];
        for (to, from) in address.iter_mut().zip(hardware.sa_data) {
            *to = from as u8;
        }
        Ok(Some(Interface {
            index: index as u32,
            name: self.name,
            medium: Medium::Ethernet,
            address: address.into(),
            mtu: self.mtu()?,
            speed_mbit: self.speed(),
            driver: self.driver(),
            seals: None,
        }))
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: all zero is a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name) {
            *to = from as libc::c_char;
        }
        request
    }

    fn ask(&self, what: libc::Ioctl) -> Result<libc::ifreq, Errno> {
        let mut request = self.request();
        // SAFETY: these calls read and write one ifreq.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), what, &raw mut request) };
        Errno::result(result).map(|_| request)
    }

    /// An ethtool request; false if the driver does not support it.
    fn ethtool<T>(&self, question: &mut T) -> bool {
        let mut request = self.request();
        request.ifr_ifru.ifru_data = std::ptr::from_mut(question).cast();
        // SAFETY: the question is as large as its command says.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
        result >= 0
    }

    fn speed(&self) -> u32 {
        // SAFETY: all zero is a valid question.
        let mut question: Settings = unsafe { std::mem::zeroed() };
        question.cmd = ETHTOOL_GSET;
        if !self.ethtool(&mut question) {
            return 0;
        }
        let speed = u32::from(question.speed) | u32::from(question.speed_high) << 16;
        // Older drivers report 16 bits of "unknown".
        if speed == SPEED_UNKNOWN || speed == u32::from(u16::MAX) {
            0
        } else {
            speed
        }
    }

    fn driver(&self) -> [u8; DRIVER_BYTES] {
        let mut question = DriverInfo {
            cmd: ETHTOOL_GDRVINFO,
            driver: [0; DRIVER_BYTES],
            rest: [0; 160],
        };
        if !self.ethtool(&mut question) {
            return [0; DRIVER_BYTES];
        }
        question.driver[DRIVER_BYTES - 1] = 0;
        question.driver
    }
}

// Sizes that the kernel writes; a smaller structure would be overrun.
const _: () = assert!(size_of::<Settings>() == 44 && size_of::<DriverInfo>() == 196);

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> [u8; LINK_BYTES] {
        let mut name = [0; LINK_BYTES];
        name[..text.len()].copy_from_slice(text.as_bytes());
        name
    }

    #[test]
    fn no_interface_and_no_ethernet() {
        assert_eq!(describe(&name("no-such-if")), Ok(None));
        assert_eq!(describe(&name("lo")), Ok(None));
        assert_eq!(describe(&name("a-name-that-is-too-long")), Ok(None));
        let mut lo = [0; INTERFACE_BYTES];
        lo[..2].copy_from_slice(b"lo");
        assert!(properties(&lo).is_ok_and(|(mtu, ..)| mtu >= 1500));
    }
}
