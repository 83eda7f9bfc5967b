//! What the connections of a NIC need of it.

use std::sync::Arc;

use crate::device::{Address, Device};
use crate::tags::Tags;
use crate::watch::Shared;

/// Largest message in bytes, unless the user asks for more. The device could do 2 GiB.
pub(crate) const TRANSFER_MAX: u64 = 65_536;

/// One port of an open device.
pub(crate) struct Card {
    pub(crate) device: Arc<Device>,
    pub(crate) port: u8,
    /// Where the port is; queue pair and packet are those of a VI.
    pub(crate) address: Address,
    /// Place of its GID; `None` on a subnet of InfiniBand.
    pub(crate) gid_index: Option<u8>,
    /// Segments of the device for the data of a message.
    pub(crate) segments: usize,
    pub(crate) tags: Tags,
    pub(crate) shared: Arc<Shared>,
}
