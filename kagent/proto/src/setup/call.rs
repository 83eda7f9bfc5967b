//! The body of REQUEST and PEER: a VI that requests a connection.

use super::Refused;
use super::reader::{Reader, Writer};

/// Longest discriminator in bytes.
pub const DISCRIMINATOR_MAX: usize = 64;
/// No time limit, in a frame.
const FOREVER: u32 = u32::MAX;
const RDMA_WRITE: u8 = 1;
const RDMA_READ: u8 = 2;

/// A VI that requests a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Endpoint for frames to it.
    pub endpoint: u16,
    /// Number of the VI at that endpoint.
    pub vi: u32,
    /// Milliseconds until the application's call times out; `None`: no limit.
    pub remaining_ms: Option<u32>,
    /// Grace period for a server before NO_MATCH, in milliseconds; not used by peers.
    pub grace_ms: u32,
    /// The VI.
    pub attributes: Attributes,
    /// The initiator's own discriminator.
    pub local: Discriminator,
    /// The discriminator that it requests.
    pub remote: Discriminator,
}

/// Attributes of a VI, as reported to its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Largest message in bytes.
    pub max_transfer_size: u64,
    /// Quality of service.
    pub qos: u64,
    /// One reliability level.
    pub reliability: u16,
    /// The peer may write by RDMA.
    pub rdma_write: bool,
    /// The peer may read by RDMA.
    pub rdma_read: bool,
}

/// A discriminator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discriminator {
    length: u8,
    /// Bytes after the end are 0.
    bytes: [u8; DISCRIMINATOR_MAX],
}

impl Discriminator {
    /// `None`: too long.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut made = Discriminator {
            length: bytes.len().try_into().ok()?,
            bytes: [0; DISCRIMINATOR_MAX],
        };
        made.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(made)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Call {
    /// Bytes without the discriminators.
    const FIXED: usize = 2 + 4 + 4 + 4 + Attributes::BYTES + 2;
    /// Maximum bytes.
    pub(crate) const BYTES_MAX: usize = Call::FIXED + 2 * DISCRIMINATOR_MAX;

    pub(crate) fn emit(&self, out: &mut Writer<'_>) {
        out.u16(self.endpoint);
        out.u32(self.vi);
        out.u32(self.remaining_ms.map_or(FOREVER, |ms| ms.min(FOREVER - 1)));
        out.u32(self.grace_ms);
        self.attributes.emit(out);
        out.u8(self.local.length);
        out.u8(self.remote.length);
        out.copy(self.local.bytes());
        out.copy(self.remote.bytes());
    }

    pub(crate) fn parse(from: &mut Reader<'_>) -> Result<Call, Refused> {
        let endpoint = from.u16()?;
        let vi = from.u32()?;
        let remaining = from.u32()?;
        let grace_ms = from.u32()?;
        let attributes = Attributes::parse(from)?;
        let (local, remote) = (from.u8()?, from.u8()?);
        let mut discriminator =
            |length: u8| Discriminator::new(from.take(usize::from(length))?).ok_or(Refused::Value);
        Ok(Call {
            endpoint,
            vi,
            remaining_ms: (remaining != FOREVER).then_some(remaining),
            grace_ms,
            attributes,
            local: discriminator(local)?,
            remote: discriminator(remote)?,
        })
    }
}

impl Attributes {
    const BYTES: usize = 8 + 8 + 2 + 1;

    pub(crate) fn emit(&self, out: &mut Writer<'_>) {
        out.u64(self.max_transfer_size);
        out.u64(self.qos);
        out.u16(self.reliability);
        out.u8(u8::from(self.rdma_write) * RDMA_WRITE + u8::from(self.rdma_read) * RDMA_READ);
    }

    pub(crate) fn parse(from: &mut Reader<'_>) -> Result<Attributes, Refused> {
        let (max_transfer_size, qos, reliability) = (from.u64()?, from.u64()?, from.u16()?);
        let flags = from.u8()?;
        if flags & !(RDMA_WRITE | RDMA_READ) != 0 {
            return Err(Refused::Value);
        }
        Ok(Attributes {
            max_transfer_size,
            qos,
            reliability,
            rdma_write: flags & RDMA_WRITE != 0,
            rdma_read: flags & RDMA_READ != 0,
        })
    }
}
