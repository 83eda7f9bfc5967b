//! Addresses and connection points.
//!
//! An address belongs to a user and a provider: NICs of different users, or of different plug-ins, never
//! connect. Several NICs, of one process or of many, may share one address; they then share its
//! discriminators too (spec §9.1).

#![forbid(unsafe_code)]

use kagent_proto::{DISCRIMINATOR_BYTES_MAX, HOST_BYTES_MAX, PROVIDER_BYTES, Point};

/// A host address in the name space of one user and one provider.
///
/// The field order matters: addresses of one user and provider are adjacent in a sorted table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) uid: u32,
    pub(crate) provider: [u8; PROVIDER_BYTES],
    pub(crate) host_len: usize,
    pub(crate) host: [u8; HOST_BYTES_MAX],
}

impl Address {
    /// Bytes after the end of the provider name or of the host are ignored.
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
pub(crate) struct Discriminator {
    len: usize,
    bytes: [u8; DISCRIMINATOR_BYTES_MAX],
}

impl Discriminator {
    /// Bytes beyond the maximum length are ignored; no valid message has any.
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
pub(crate) struct ConnectionPoint {
    pub(crate) address: Address,
    pub(crate) name: Discriminator,
}

impl ConnectionPoint {
    /// The discriminator of `point` at `address`; the host in `point` does not count.
    pub(crate) fn local(address: Address, point: &Point) -> Self {
        let name = Discriminator::new(point.discriminator());
        Self { address, name }
    }

    /// The connection point that `point` denotes for a NIC at `from`.
    pub(crate) fn remote(from: Address, point: &Point) -> Self {
        Self::local(Address::new(from.uid, &from.provider, point.host()), point)
    }

    /// The form used in messages.
    pub(crate) fn point(&self) -> Point {
        Point {
            host_len: self.address.host_len as u16,
            discriminator_len: self.name.len as u16,
            host: self.address.host,
            discriminator: self.name.bytes,
        }
    }
}
