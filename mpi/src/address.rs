//! Addresses: `struct sockaddr_in6`, because every program and library can carry and print those.
//!
//! ```text
//!   sin6_addr   fd 'v' 'i' 'p' │ 0 0 │ process 4 │ address of the NIC 6
//!   sin6_port   the listener within the process
//! ```
//!
//! `fd…` is the range of private addresses, so a stray use as IPv6 reaches no host. `process` is a random number: process
//! identifiers repeat between containers of one host. It is 0 for listeners on a port that the program has chosen, which
//! others reach without further information.

use std::ffi::c_void;

use vipl_abi::VIP_NET_ADDRESS;

const PREFIX: [u8; 4] = *b"\xfdvip";
/// First bytes of a discriminator of the provider.
const MARK: [u8; 2] = *b"FI";
/// Bytes of NIC address that fit.
pub(crate) const NIC_BYTES: usize = 6;
/// Bytes of `struct sockaddr_in6`.
pub(crate) const SOCKADDR: usize = size_of::<libc::sockaddr_in6>();

/// Where an endpoint or a listener is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub nic: [u8; NIC_BYTES],
    pub process: u32,
    pub port: u16,
}

impl Address {
    /// Bytes of [`Address::to_bytes`].
    pub(crate) const BYTES: usize = NIC_BYTES + 4 + 2;

    pub(crate) fn new(nic: [u8; NIC_BYTES], process: u32, port: u16) -> Address {
        Address { nic, process, port }
    }

    /// For a packet.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..NIC_BYTES].copy_from_slice(&self.nic);
        bytes[NIC_BYTES..NIC_BYTES + 4].copy_from_slice(&self.process.to_be_bytes());
        bytes[NIC_BYTES + 4..].copy_from_slice(&self.port.to_be_bytes());
        bytes
    }

    /// From a packet.
    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Address {
        let [a, b, c, d, e, f, p, q, r, s, high, low] = *bytes;
        Address {
            nic: [a, b, c, d, e, f],
            process: u32::from_be_bytes([p, q, r, s]),
            port: u16::from_be_bytes([high, low]),
        }
    }

    /// The 16 bytes of an IPv6 address.
    fn to_ipv6(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&PREFIX);
        bytes[6..10].copy_from_slice(&self.process.to_be_bytes());
        bytes[10..].copy_from_slice(&self.nic);
        bytes
    }

    /// As a program prints it.
    pub(crate) fn to_ip(self) -> std::net::SocketAddrV6 {
        std::net::SocketAddrV6::new(self.to_ipv6().into(), self.port, 0, 0)
    }

    /// From an IPv6 address, if it is one of ours.
    pub(crate) fn from_ipv6(bytes: &[u8; 16], port: u16) -> Option<Address> {
        let [p0, p1, p2, p3, 0, 0, rest @ ..] = *bytes else {
            return None;
        };
        let [p, q, r, s, nic @ ..] = rest;
        ([p0, p1, p2, p3] == PREFIX).then(|| Address {
            nic,
            process: u32::from_be_bytes([p, q, r, s]),
            port,
        })
    }

    /// As libfabric carries it.
    pub(crate) fn to_sockaddr(self) -> libc::sockaddr_in6 {
        libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: self.port.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr {
                s6_addr: self.to_ipv6(),
            },
            sin6_scope_id: 0,
        }
    }

    /// From what libfabric carries.
    ///
    /// # Safety
    /// `address` is null or points to `length` readable bytes.
    pub(crate) unsafe fn from_sockaddr(address: *const c_void, length: usize) -> Option<Address> {
        if address.is_null() || length < SOCKADDR {
            return None;
        }
        // SAFETY: the caller's promise; any alignment will do.
        let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
        if i32::from(address.sin6_family) != libc::AF_INET6 {
            return None;
        }
        Address::from_ipv6(&address.sin6_addr.s6_addr, u16::from_be(address.sin6_port))
    }

    /// As VIPL wants it. `nic_bytes` is the length of addresses on this NIC.
    pub(crate) fn to_vip(self, nic_bytes: usize) -> VipAddress {
        let mut vip = VipAddress::room();
        let nic_bytes = nic_bytes.min(NIC_BYTES);
        vip.host_length = nic_bytes as u16;
        vip.discriminator_length = 8;
        let mut discriminator = [0; 8];
        discriminator[..2].copy_from_slice(&MARK);
        discriminator[2..6].copy_from_slice(&self.process.to_be_bytes());
        discriminator[6..].copy_from_slice(&self.port.to_be_bytes());
        vip.bytes[..nic_bytes].copy_from_slice(&self.nic[..nic_bytes]);
        vip.bytes[nic_bytes..nic_bytes + 8].copy_from_slice(&discriminator);
        vip
    }
}

/// `VIP_NET_ADDRESS` with room for the longest one.
#[repr(C, align(8))]
pub(crate) struct VipAddress {
    host_length: u16,
    discriminator_length: u16,
    bytes: [u8; 508],
}

impl VipAddress {
    /// Empty.
    pub(crate) fn room() -> VipAddress {
        VipAddress {
            host_length: 0,
            discriminator_length: 0,
            bytes: [0; 508],
        }
    }

    /// For a call.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut VIP_NET_ADDRESS {
        (&raw mut *self).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        let address = Address::new([1, 2, 3, 4, 5, 6], 0x0102_0304, 0xABCD);
        let socket = address.to_sockaddr();
        // SAFETY: a whole sockaddr_in6.
        let back = unsafe { Address::from_sockaddr((&raw const socket).cast(), SOCKADDR) };
        assert_eq!(back, Some(address));
        // SAFETY: as above, and shorter.
        let short = unsafe { Address::from_sockaddr((&raw const socket).cast(), SOCKADDR - 1) };
        assert_eq!(short, None);
        assert_eq!(Address::from_bytes(&address.to_bytes()), address);
    }

    #[test]
    fn addresses_of_others_are_refused() {
        let mut ipv6 = Address::new([9; 6], 1, 2).to_ipv6();
        assert!(Address::from_ipv6(&ipv6, 2).is_some());
        ipv6[1] = b'V';
        assert_eq!(Address::from_ipv6(&ipv6, 2), None);
        assert_eq!(Address::from_ipv6(&[0; 16], 2), None);
    }

    #[test]
    fn a_discriminator_names_process_and_port() {
        let vip = Address::new([1, 2, 3, 4, 5, 6], 0x0708_090A, 0x0B0C).to_vip(6);
        assert_eq!((vip.host_length, vip.discriminator_length), (6, 8));
        let mut expected = vec![1, 2, 3, 4, 5, 6];
        expected.extend(*b"FI\x07\x08\x09\x0a\x0b\x0c");
        assert_eq!(vip.bytes[..14], expected);
    }
}
