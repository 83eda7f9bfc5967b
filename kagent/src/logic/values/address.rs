//! Addresses and connection points.
//!
//! An address belongs to a user and a provider: NICs of different users never meet, and neither do NICs of
//! different plug-ins. Several NICs, of one process or of many, may share one address; they then share its
//! discriminators too (spec §9.1).

#![forbid(unsafe_code)]

use kagent_proto::{DISCRIMINATOR_BYTES_MAX, HOST_BYTES_MAX, PROVIDER_BYTES, Point};

/// A host address in the name space of one user and one provider.
///
/// The order of the fields matters: addresses that are one another's neighbours are neighbours in a
/// sorted table as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) uid: u32,
    pub(crate) provider: [u8; PROVIDER_BYTES],
    pub(crate) host_len: usize,
    pub(crate) host: [u8; HOST_BYTES_MAX],
}

impl Address {
    /// Bytes after the end of the name or the host do not count.
    pub(crate) fn new(uid: u32, provider: &[u8; PROVIDER_BYTES], host: &[u8]) -> Self {
        let name_len = provider
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(PROVIDER_BYTES);
        let mut address = Self {
            uid,
            provider: [0; PROVIDER_BYTES],
            host_len: host.len(),
            host: [0; HOST_BYTES_MAX],
        };
        address.provider[..name_len].copy_from_slice(&provider[..name_len]);
        address.host[..host.len()].copy_from_slice(host);
        address
    }

    pub(crate) fn host(&self) -> &[u8] {
        &self.host[..self.host_len]
    }
}

/// A discriminator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    len: usize,
    bytes: [u8; DISCRIMINATOR_BYTES_MAX],
}

impl Name {
    /// Bytes beyond the longest discriminator do not count; nobody sends any.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let len = bytes.len().min(DISCRIMINATOR_BYTES_MAX);
        let mut name = Self {
            len,
            bytes: [0; DISCRIMINATOR_BYTES_MAX],
        };
        name.bytes[..len].copy_from_slice(&bytes[..len]);
        name
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A connection point: an address and a discriminator there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    pub(crate) address: Address,
    pub(crate) name: Name,
}

impl Spot {
    /// The discriminator of `point` at `address`; the host in `point` does not count.
    pub(crate) fn local(address: Address, point: &Point) -> Self {
        let name = Name::new(point.discriminator());
        Self { address, name }
    }

    /// What `point` means to someone at `from`.
    pub(crate) fn remote(from: Address, point: &Point) -> Self {
        Self::local(Address::new(from.uid, &from.provider, point.host()), point)
    }

    /// The form in which partners see it.
    pub(crate) fn point(&self) -> Point {
        Point {
            host_len: self.address.host_len as u16,
            discriminator_len: self.name.len as u16,
            host: self.address.host,
            discriminator: self.name.bytes,
        }
    }
}
