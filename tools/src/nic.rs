//! An opened device: a NIC with one protection tag, and its attributes as people read them.

use std::ops::Deref;

use serde_json::{Value, json};
use vipl_client::{Attributes, Library, Ptag, Reliability, host_socket};

use crate::Result;
use crate::error::note_async;

/// An opened NIC and its protection tag; a counted reference.
#[derive(Clone)]
pub struct Nic {
    nic: vipl_client::Nic,
    ptag: Ptag,
}

impl Nic {
    /// Opens a device and makes one protection tag.
    ///
    /// # Errors
    /// The library refuses one of the two.
    pub fn open(library: &'static Library, device: &str) -> Result<Self> {
        // SAFETY: the tools use a NIC in one thread.
        let nic = unsafe { vipl_client::Nic::open_unsynchronized(library, device) }?;
        let ptag = Ptag::new(&nic)?;
        // A library that has no callbacks reports errors in its own way.
        let _ = nic.on_error(|error| note_async(error.code));
        Ok(Self { nic, ptag })
    }

    /// The protection tag of all memory and VIs.
    #[must_use]
    pub fn ptag(&self) -> &Ptag {
        &self.ptag
    }
}

impl Deref for Nic {
    type Target = vipl_client::Nic;

    fn deref(&self) -> &vipl_client::Nic {
        &self.nic
    }
}

/// The host address as people write it, and as others need it.
#[must_use]
pub fn address_text(nic: &Attributes) -> String {
    host_text(nic, &nic.address)
}

/// Another host's address on this NIC's network.
#[must_use]
pub fn host_text(nic: &Attributes, address: &[u8]) -> String {
    let socket = nic.name.starts_with("ip:").then(|| host_socket(address));
    let socket = socket.flatten().map(|socket| socket.to_string());
    socket.unwrap_or_else(|| vipl_client::host_text(address))
}

/// Every attribute: the name in the header, the value, and its unit.
#[must_use]
pub fn rows(nic: &Attributes) -> Vec<(&'static str, Value, &'static str)> {
    let row = |name, value: u64, unit| (name, json!(value), unit);
    vec![
        ("Name", json!(nic.name), ""),
        ("LocalNicAddress", json!(address_text(nic)), ""),
        row("NicAddressLen", nic.address.len() as u64, "bytes"),
        row("HardwareVersion", nic.hardware_version, ""),
        row("ProviderVersion", nic.provider_version, ""),
        ("ThreadSafe", json!(nic.thread_safe), ""),
        row("MaxDiscriminatorLen", nic.discriminator_max, "bytes"),
        row("MaxRegisterBytes", nic.register_bytes_max, "bytes"),
        row("MaxRegisterRegions", nic.register_regions_max, "regions"),
        row(
            "MaxRegisterBlockBytes",
            nic.register_block_bytes_max,
            "bytes",
        ),
        row("MaxVI", nic.vi_max, "VIs"),
        row(
            "MaxDescriptorsPerQueue",
            nic.descriptors_per_queue_max,
            "descriptors",
        ),
        row(
            "MaxSegmentsPerDesc",
            nic.segments_per_descriptor_max,
            "segments",
        ),
        row("MaxCQ", nic.cq_max, "CQs"),
        row("MaxCQEntries", nic.cq_entries_max, "entries"),
        row("MaxTransferSize", nic.transfer_max, "bytes"),
        row("NativeMTU", nic.native_mtu, "bytes"),
        row("MaxPtags", nic.ptag_max, "tags"),
        (
            "ReliabilityLevelSupport",
            json!(nic.reliability.names()),
            "",
        ),
        ("RDMAReadSupport", json!(nic.rdma_read.names()), ""),
    ]
}

/// Names of the levels in a mask, for people.
#[must_use]
pub fn level_names(mask: u16) -> String {
    Reliability::from_bits(mask).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_on_ip_have_a_port() {
        for text in ["192.0.2.7:34998", "[2001:db8::7]:9"] {
            let attributes = Attributes {
                name: "ip:eth0".to_owned(),
                address: vipl_client::parse_host(text).unwrap(),
                ..Attributes::default()
            };
            assert_eq!(address_text(&attributes), text);
        }
        let other = Attributes {
            address: vec![2, 0, 0xff, 0x10, 0, 1],
            ..Attributes::default()
        };
        assert_eq!(address_text(&other), "02:00:ff:10:00:01");
    }
}
