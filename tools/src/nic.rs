//! An opened NIC: its attributes, its protection tag, names and incoming connections.
//!
//! A `Nic` is a counted reference; the NIC is closed when the last object made through it is gone.

use std::ffi::{CString, c_int, c_ulong, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use serde_json::{Value, json};
use vipl_abi::*;

use crate::error::note_async;
use crate::vipl::{Functions, Vipl};
use crate::{Error, Result};

/// An opened NIC.
#[derive(Clone)]
pub struct Nic(Rc<Inner>);

struct Inner {
    vipl: &'static Vipl,
    handle: VIP_NIC_HANDLE,
    ptag: VIP_PROTECTION_HANDLE,
    attributes: Attributes,
}

/// What VipQueryNic tells.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Attributes {
    pub name: String,
    pub address: Vec<u8>,
    pub hardware_version: u64,
    pub provider_version: u64,
    pub thread_safe: bool,
    pub discriminator_max: u64,
    pub register_bytes_max: u64,
    pub register_regions_max: u64,
    pub register_block_bytes_max: u64,
    pub vi_max: u64,
    pub descriptors_per_queue_max: u64,
    pub segments_per_descriptor_max: u64,
    pub cq_max: u64,
    pub cq_entries_max: u64,
    pub transfer_max: u64,
    pub native_mtu: u64,
    pub ptag_max: u64,
    pub reliability_levels: u16,
    pub rdma_read_levels: u16,
}

/// A host address and discriminator in the form the library reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetAddress(Vec<u8>);

impl NetAddress {
    /// The address of a connection point.
    #[must_use]
    pub fn new(host: &[u8], discriminator: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(4 + host.len() + discriminator.len());
        bytes.extend_from_slice(&(host.len() as u16).to_ne_bytes());
        bytes.extend_from_slice(&(discriminator.len() as u16).to_ne_bytes());
        bytes.extend_from_slice(host);
        bytes.extend_from_slice(discriminator);
        Self(bytes)
    }

    /// Room for what the library writes, zeroed.
    fn room(host: usize, discriminator: usize) -> Self {
        Self(vec![0; 4 + host + discriminator])
    }

    /// The host bytes.
    fn host(&self) -> &[u8] {
        let length = usize::from(u16::from_ne_bytes([self.0[0], self.0[1]]));
        &self.0[4..(4 + length).min(self.0.len())]
    }

    pub(crate) fn as_ptr(&self) -> *mut VIP_NET_ADDRESS {
        self.0.as_ptr().cast_mut().cast()
    }

    fn as_mut_ptr(&mut self) -> *mut VIP_NET_ADDRESS {
        self.0.as_mut_ptr().cast()
    }
}

/// A received connection request; refused when dropped unanswered.
pub struct Request {
    nic: Nic,
    handle: VIP_CONN_HANDLE,
    answered: bool,
}

impl Request {
    /// Binds the request to a VI; the handle is gone when that succeeds.
    pub(crate) fn accept(mut self, vi: VIP_VI_HANDLE) -> Result<()> {
        // SAFETY: two live handles of this library.
        let code = unsafe { (self.nic.functions().VipConnectAccept)(self.handle, vi) };
        self.answered = code == 0 || code == VIP_RETURN::VIP_TIMEOUT as c_int;
        check("VipConnectAccept", code)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.answered {
            // SAFETY: a live handle of this library.
            let _ = unsafe { (self.nic.functions().VipConnectReject)(self.handle) };
        }
    }
}

extern "C" fn on_error(_context: *mut c_void, error: *mut VIP_ERROR_DESCRIPTOR) {
    if error.is_null() {
        return;
    }
    let code = error
        .cast::<u8>()
        .wrapping_add(offset_of!(VIP_ERROR_DESCRIPTOR, ErrorCode));
    // SAFETY: the library passes an error descriptor; read as integer, since its value may be unknown.
    note_async(unsafe { code.cast::<c_int>().read_unaligned() });
}

impl Nic {
    /// Opens a device, asks for its attributes and makes one protection tag.
    ///
    /// # Errors
    /// The library refuses one of the three.
    pub fn open(vipl: &'static Vipl, device: &str) -> Result<Self> {
        let name = CString::new(device)
            .map_err(|_| Error::Usage("a device name cannot contain NUL".to_owned()))?;
        let functions = &vipl.functions;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a NUL-terminated name and room for a handle.
        let code = unsafe { (functions.VipOpenNic)(name.as_ptr(), &raw mut handle) };
        check("VipOpenNic", code).map_err(|error| error.context(device))?;
        // From here on `inner` closes the NIC, also when something below fails.
        let mut inner = Inner {
            vipl,
            handle,
            ptag: std::ptr::null_mut(),
            attributes: Attributes::default(),
        };
        inner.attributes = query(functions, handle)?;
        // SAFETY: a live handle and room for a tag.
        let code = unsafe { (functions.VipCreatePtag)(handle, &raw mut inner.ptag) };
        check("VipCreatePtag", code)?;
        // SAFETY: a live handle and a handler that touches nothing but its argument. A library that
        // has no callbacks keeps its own way of telling errors.
        let _ =
            unsafe { (functions.VipErrorCallback)(handle, std::ptr::null_mut(), Some(on_error)) };
        Ok(Self(Rc::new(inner)))
    }

    /// The NIC's attributes.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// The library it was opened with.
    #[must_use]
    pub fn vipl(&self) -> &'static Vipl {
        self.0.vipl
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        &self.0.vipl.functions
    }

    pub(crate) fn handle(&self) -> VIP_NIC_HANDLE {
        self.0.handle
    }

    pub(crate) fn ptag(&self) -> VIP_PROTECTION_HANDLE {
        self.0.ptag
    }

    /// Translates a host name to the host part of an address.
    ///
    /// # Errors
    /// The name service does not know the name.
    pub fn host_by_name(&self, name: &str) -> Result<Vec<u8>> {
        let text = CString::new(name)
            .map_err(|_| Error::Usage("a host name cannot contain NUL".to_owned()))?;
        // SAFETY: a live handle; NULL asks for the default table.
        let code = unsafe { (self.functions().VipNSInit)(self.handle(), std::ptr::null_mut()) };
        check("VipNSInit", code)?;
        let mut address = NetAddress::room(self.0.attributes.address.len().max(64), 0);
        // SAFETY: a NUL-terminated name, and room for more than any host address.
        let code = unsafe {
            let name = text.as_ptr().cast_mut();
            (self.functions().VipNSGetHostByName)(self.handle(), name, address.as_mut_ptr(), 0)
        };
        // SAFETY: a live handle.
        let _ = unsafe { (self.functions().VipNSShutdown)(self.handle()) };
        check("VipNSGetHostByName", code).map_err(|error| error.context(name))?;
        Ok(address.host().to_vec())
    }

    /// Waits for a connection request to this address; None after the timeout.
    ///
    /// # Errors
    /// The library refuses to wait.
    pub fn wait(&self, local: &NetAddress, timeout_ms: u64) -> Result<Option<Request>> {
        let attributes = self.attributes();
        let room = usize::try_from(attributes.discriminator_max)
            .unwrap_or(0)
            .max(64);
        let mut remote = NetAddress::room(attributes.address.len(), room);
        let mut wanted = MaybeUninit::<VIP_VI_ATTRIBUTES>::zeroed();
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live handle, an address, and room for all three results.
        let code = unsafe {
            (self.functions().VipConnectWait)(
                self.handle(),
                local.as_ptr(),
                timeout_ms as c_ulong,
                remote.as_mut_ptr(),
                wanted.as_mut_ptr(),
                &raw mut handle,
            )
        };
        if code == VIP_RETURN::VIP_TIMEOUT as c_int {
            return Ok(None);
        }
        check("VipConnectWait", code)?;
        Ok(Some(Request {
            nic: self.clone(),
            handle,
            answered: false,
        }))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let functions = &self.vipl.functions;
        if !self.ptag.is_null() {
            // SAFETY: a live handle and its tag; all VIs and regions hold the NIC and are gone.
            let _ = unsafe { (functions.VipDestroyPtag)(self.handle, self.ptag) };
        }
        // SAFETY: a live handle.
        let _ = unsafe { (functions.VipCloseNic)(self.handle) };
    }
}

pub(crate) fn check(function: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(Error::call(function, code))
    }
}

fn query(functions: &Functions, handle: VIP_NIC_HANDLE) -> Result<Attributes> {
    let mut raw = MaybeUninit::<VIP_NIC_ATTRIBUTES>::zeroed();
    // SAFETY: a live handle and room for the structure.
    check("VipQueryNic", unsafe {
        (functions.VipQueryNic)(handle, raw.as_mut_ptr())
    })?;
    // SAFETY: all-zero bytes are valid for it, and the library wrote integers and one pointer.
    let raw = unsafe { raw.assume_init() };
    let name = raw
        .Name
        .iter()
        .take_while(|c| **c != 0)
        .map(|c| *c as u8)
        .collect::<Vec<u8>>();
    let address = if raw.LocalNicAddress.is_null() {
        Vec::new()
    } else {
        let length = usize::from(raw.NicAddressLen);
        // SAFETY: the library promises this many bytes until the NIC is closed.
        unsafe { std::slice::from_raw_parts(raw.LocalNicAddress, length) }.to_vec()
    };
    Ok(Attributes {
        name: String::from_utf8_lossy(&name).into_owned(),
        address,
        hardware_version: raw.HardwareVersion as u64,
        provider_version: raw.ProviderVersion as u64,
        thread_safe: raw.ThreadSafe != 0,
        discriminator_max: u64::from(raw.MaxDiscriminatorLen),
        register_bytes_max: raw.MaxRegisterBytes as u64,
        register_regions_max: raw.MaxRegisterRegions as u64,
        register_block_bytes_max: raw.MaxRegisterBlockBytes as u64,
        vi_max: raw.MaxVI as u64,
        descriptors_per_queue_max: raw.MaxDescriptorsPerQueue as u64,
        segments_per_descriptor_max: raw.MaxSegmentsPerDesc as u64,
        cq_max: raw.MaxCQ as u64,
        cq_entries_max: raw.MaxCQEntries as u64,
        transfer_max: raw.MaxTransferSize as u64,
        native_mtu: raw.NativeMTU as u64,
        ptag_max: raw.MaxPtags as u64,
        reliability_levels: raw.ReliabilityLevelSupport,
        rdma_read_levels: raw.RDMAReadSupport,
    })
}

impl Attributes {
    /// The host address as people write it, and as others have to be told it.
    #[must_use]
    pub fn address_text(&self) -> String {
        self.host_text(&self.address)
    }

    /// Another host's address on this NIC's network.
    #[must_use]
    pub fn host_text(&self, address: &[u8]) -> String {
        let socket = self
            .name
            .starts_with("ip:")
            .then(|| socket(address))
            .flatten();
        socket.map_or_else(|| address_text(address), |socket| socket.to_string())
    }

    /// Every attribute: the name in the header, the value, and its unit.
    #[must_use]
    pub fn rows(&self) -> Vec<(&'static str, Value, &'static str)> {
        vec![
            ("Name", json!(self.name), ""),
            ("LocalNicAddress", json!(self.address_text()), ""),
            ("NicAddressLen", json!(self.address.len()), "bytes"),
            ("HardwareVersion", json!(self.hardware_version), ""),
            ("ProviderVersion", json!(self.provider_version), ""),
            ("ThreadSafe", json!(self.thread_safe), ""),
            (
                "MaxDiscriminatorLen",
                json!(self.discriminator_max),
                "bytes",
            ),
            ("MaxRegisterBytes", json!(self.register_bytes_max), "bytes"),
            (
                "MaxRegisterRegions",
                json!(self.register_regions_max),
                "regions",
            ),
            (
                "MaxRegisterBlockBytes",
                json!(self.register_block_bytes_max),
                "bytes",
            ),
            ("MaxVI", json!(self.vi_max), "VIs"),
            (
                "MaxDescriptorsPerQueue",
                json!(self.descriptors_per_queue_max),
                "descriptors",
            ),
            (
                "MaxSegmentsPerDesc",
                json!(self.segments_per_descriptor_max),
                "segments",
            ),
            ("MaxCQ", json!(self.cq_max), "CQs"),
            ("MaxCQEntries", json!(self.cq_entries_max), "entries"),
            ("MaxTransferSize", json!(self.transfer_max), "bytes"),
            ("NativeMTU", json!(self.native_mtu), "bytes"),
            ("MaxPtags", json!(self.ptag_max), "tags"),
            (
                "ReliabilityLevelSupport",
                json!(level_list(self.reliability_levels)),
                "",
            ),
            (
                "RDMAReadSupport",
                json!(level_list(self.rdma_read_levels)),
                "",
            ),
        ]
    }
}

/// A host address as people write it.
#[must_use]
pub fn address_text(address: &[u8]) -> String {
    address
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(":")
}

/// The IP address and port in an address of 6 or 18 bytes.
fn socket(address: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = address.split_last_chunk::<2>()?;
    let v4 = <[u8; 4]>::try_from(ip).map(IpAddr::from);
    let ip = v4
        .or_else(|_| <[u8; 16]>::try_from(ip).map(IpAddr::from))
        .ok()?;
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
}

/// Reads six or more bytes in hexadecimal with `:` or `-` between them, or an IP address and a port.
#[must_use]
pub fn parse_address(text: &str) -> Option<Vec<u8>> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        let port = socket.port().to_be_bytes();
        return Some(match socket.ip() {
            IpAddr::V4(ip) => [&ip.octets()[..], &port].concat(),
            IpAddr::V6(ip) => [&ip.octets()[..], &port].concat(),
        });
    }
    let parts: Vec<&str> = text.split([':', '-']).collect();
    if parts.len() < 6 {
        return None;
    }
    let byte = |part: &str| {
        (matches!(part.len(), 1 | 2))
            .then(|| u8::from_str_radix(part, 16).ok())
            .flatten()
    };
    parts.into_iter().map(byte).collect()
}

/// Names of the levels in a mask, for people.
#[must_use]
pub fn level_names(mask: u16) -> String {
    match level_list(mask) {
        names if names.is_empty() => "none".to_owned(),
        names => names.join(", "),
    }
}

/// Names of the levels in a mask.
fn level_list(mask: u16) -> Vec<String> {
    const LEVELS: [(u16, &str); 3] = [
        (VIP_SERVICE_UNRELIABLE, "unreliable"),
        (VIP_SERVICE_RELIABLE_DELIVERY, "delivery"),
        (VIP_SERVICE_RELIABLE_RECEPTION, "reception"),
    ];
    let mut names: Vec<String> = LEVELS
        .iter()
        .filter(|(bit, _)| mask & bit != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    let rest = mask & !VIP_BASE_SERVICES;
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_discriminator_follows_the_host_at_once() {
        let address = NetAddress::new(&[1, 2, 3, 4, 5, 6], b"ab");
        let lengths = [6u16.to_ne_bytes(), 2u16.to_ne_bytes()].concat();
        assert_eq!(
            address.0,
            [&lengths[..], &[1, 2, 3, 4, 5, 6, b'a', b'b']].concat()
        );
        assert_eq!(address.host(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let bytes = vec![0x02, 0, 0xff, 0x10, 0, 1];
        assert_eq!(parse_address(&address_text(&bytes)), Some(bytes.clone()));
        assert_eq!(parse_address("2-0-ff-10-0-1"), Some(bytes));
        for text in ["192.0.2.7:34998", "[2001:db8::7]:9"] {
            let address = parse_address(text).unwrap();
            let attributes = Attributes {
                name: "ip:eth0".to_owned(),
                address,
                ..Attributes::default()
            };
            assert_eq!(attributes.address_text(), text);
        }
        assert_eq!(parse_address("localhost"), None);
        assert_eq!(parse_address("1:2:3:4:5"), None);
        assert_eq!(parse_address("1:2:3:4:5:100"), None);
    }

    #[test]
    fn level_masks_are_spelled_out() {
        assert_eq!(level_names(7), "unreliable, delivery, reception");
        assert_eq!(level_names(2), "delivery");
        assert_eq!(level_names(0), "none");
        assert_eq!(level_names(1 << 14), "0x4000");
    }
}
