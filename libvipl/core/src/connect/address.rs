//! Network addresses of the application, read and written bytewise at any alignment (spec §2.2).

use std::net::{IpAddr, SocketAddr};

use kagent_proto::{DISCRIMINATOR_BYTES_MAX, HOST_BYTES_MAX, Point};
use vipl_abi::VIP_NET_ADDRESS;

use crate::error::Error;

/// Offset of the host bytes; the discriminator follows them without a gap.
const BYTES_AT: usize = 4;

/// A connection point: host address and discriminator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub(crate) Point);

impl Address {
    /// Reads an address. A host part that is too long for any network is truncated: only its length matters
    /// then, and is refused later.
    ///
    /// # Safety
    /// `address` points to an address whose two lengths describe readable bytes.
    pub unsafe fn read(address: *const VIP_NET_ADDRESS) -> Result<Address, Error> {
        let bytes = address.cast::<u8>();
        // SAFETY: the caller guarantees that the two lengths are readable.
        let (host_len, discriminator_len) = unsafe {
            (
                bytes.cast::<u16>().read_unaligned(),
                bytes.add(2).cast::<u16>().read_unaligned(),
            )
        };
        let length = usize::from(discriminator_len);
        if length > DISCRIMINATOR_BYTES_MAX {
            return Err(Error::InvalidParameter);
        }
        let mut point = Point {
            host_len,
            discriminator_len,
            host: [0; HOST_BYTES_MAX],
            discriminator: [0; DISCRIMINATOR_BYTES_MAX],
        };
        let host_kept = usize::from(host_len).min(HOST_BYTES_MAX);
        // SAFETY: the caller promises `host_len + discriminator_len` readable bytes.
        unsafe {
            let host = bytes.add(BYTES_AT);
            std::ptr::copy_nonoverlapping(host, point.host.as_mut_ptr(), host_kept);
            let discriminator = host.add(usize::from(host_len));
            std::ptr::copy_nonoverlapping(discriminator, point.discriminator.as_mut_ptr(), length);
        }
        Ok(Address(point))
    }

    /// Reads the host part only.
    ///
    /// # Safety
    /// `address` points to an address whose host length describes readable bytes.
    pub unsafe fn read_host(address: *const VIP_NET_ADDRESS) -> Result<Vec<u8>, Error> {
        let bytes = address.cast::<u8>();
        // SAFETY: guaranteed by the caller.
        unsafe {
            let length = usize::from(bytes.cast::<u16>().read_unaligned());
            if length > HOST_BYTES_MAX {
                return Err(Error::InvalidParameter);
            }
            Ok(std::slice::from_raw_parts(bytes.add(BYTES_AT), length).to_vec())
        }
    }

    /// Writes exactly `4 + host length + discriminator length` bytes.
    ///
    /// # Safety
    /// `out` has room for them.
    pub unsafe fn write(&self, out: *mut VIP_NET_ADDRESS) {
        let (host, discriminator) = (self.0.host(), self.0.discriminator());
        let bytes = out.cast::<u8>();
        // SAFETY: guaranteed by the caller.
        unsafe {
            write_host(out, host);
            bytes
                .add(2)
                .cast::<u16>()
                .write_unaligned(self.0.discriminator_len);
            let to = bytes.add(BYTES_AT + host.len());
            std::ptr::copy_nonoverlapping(discriminator.as_ptr(), to, discriminator.len());
        }
    }
}

/// Writes the host length and the host bytes, and nothing else (spec §3.33).
///
/// # Safety
/// `out` has room for `4 + host.len()` bytes.
pub unsafe fn write_host(out: *mut VIP_NET_ADDRESS, host: &[u8]) {
    let bytes = out.cast::<u8>();
    // SAFETY: guaranteed by the caller.
    unsafe {
        bytes.cast::<u16>().write_unaligned(host.len() as u16);
        std::ptr::copy_nonoverlapping(host.as_ptr(), bytes.add(BYTES_AT), host.len());
    }
}

/// An IP address and a port as bytes: 6 or 18, big-endian.
pub(crate) fn socket_bytes(socket: SocketAddr) -> Vec<u8> {
    let port = socket.port().to_be_bytes();
    match socket.ip() {
        IpAddr::V4(ip) => [&ip.octets()[..], &port].concat(),
        IpAddr::V6(ip) => [&ip.octets()[..], &port].concat(),
    }
}

/// Six hexadecimal bytes with `:` or `-` between them.
pub(crate) fn parse_host(word: &str) -> Option<Vec<u8>> {
    let bytes: Option<Vec<u8>> = word
        .split([':', '-'])
        .map(|byte| {
            let fits = (1..=2).contains(&byte.len()) && byte.bytes().all(|b| b.is_ascii_hexdigit());
            fits.then(|| u8::from_str_radix(byte, 16).ok()).flatten()
        })
        .collect();
    bytes.filter(|bytes| bytes.len() == 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_at_odd_places_and_writes_no_byte_more() {
        let mut bytes = [0xEEu8; 20];
        let address = Address(Point::new(&[1, 2, 3, 4, 5, 6], b"abcd").unwrap());
        let at = bytes[1..].as_mut_ptr().cast::<VIP_NET_ADDRESS>();
        // SAFETY: 14 bytes of 19.
        let back = unsafe {
            address.write(at);
            Address::read(at).unwrap()
        };
        assert_eq!(back, address);
        assert_eq!(bytes[0], 0xEE);
        assert_eq!(bytes[15], 0xEE, "4 + 6 + 4 bytes and no more");
        // SAFETY: 10 bytes.
        unsafe { write_host(at, &[9; 6]) };
        assert_eq!(
            &bytes[3..5],
            &4u16.to_ne_bytes(),
            "the discriminator length stays"
        );
    }
}
