//! An opened NIC: its attributes, and names of hosts.

use std::ffi::{CStr, CString, c_ulong};
use std::mem::MaybeUninit;
use std::sync::Arc;

use vipl_abi::*;

use crate::address::Address;
use crate::error::{Error, Result, check};
use crate::events::{self, AsyncError, Handlers};
use crate::library::Library;
use crate::options::Reliability;
use crate::raw::Functions;

/// An opened NIC. A counted reference: the NIC is closed when the last object made through it is dropped.
#[derive(Clone, Debug)]
pub struct Nic(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    library: &'static Library,
    handle: VIP_NIC_HANDLE,
    attributes: Attributes,
    handlers: Handlers,
}

// SAFETY: the handle is a value. The library permits each call in each thread: `Nic::open` has checked ThreadSafe, or
// the caller of `open_unsynchronized` promised it.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// What VipQueryNic reports.
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
    /// Levels offered.
    pub reliability: Reliability,
    /// Levels on which RDMA Read works.
    pub rdma_read: Reliability,
}

impl Nic {
    /// Opens a device, such as `via_lo` or `tulip:eth0`.
    ///
    /// # Errors
    /// The library refuses: there is no such device. [`Error::NotThreadSafe`]: another VIPL than this project's may
    /// permit one thread only.
    pub fn open(library: &'static Library, device: &str) -> Result<Self> {
        // SAFETY: it is dropped before the caller has it, unless the library is thread-safe.
        let nic = unsafe { Self::open_unsynchronized(library, device) }?;
        match nic.attributes().thread_safe {
            true => Ok(nic),
            false => Err(Error::NotThreadSafe(device.to_owned())),
        }
    }

    /// Opens a device that need not be thread-safe.
    ///
    /// # Safety
    /// If [`Attributes::thread_safe`] is false, the NIC and everything made through it are used in one thread.
    ///
    /// # Errors
    /// The library refuses: there is no such device.
    pub unsafe fn open_unsynchronized(library: &'static Library, device: &str) -> Result<Self> {
        let name = CString::new(device).map_err(|_| Error::Nul("device"))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a NUL-terminated name and room for a handle.
        let code = unsafe { (library.functions().VipOpenNic)(name.as_ptr(), &raw mut handle) };
        check("VipOpenNic", code).map_err(|error| error.context(device))?;
        // From here on `inner` closes the NIC, also when something below fails.
        let mut inner = Inner {
            library,
            handle,
            attributes: Attributes::default(),
            handlers: Handlers::default(),
        };
        inner.attributes = query(library.functions(), handle)?;
        Ok(Self(Arc::new(inner)))
    }

    /// The NIC's attributes.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.0.attributes
    }

    /// The library it was opened with.
    #[must_use]
    pub fn library(&self) -> &'static Library {
        self.0.library
    }

    /// The C functions.
    #[must_use]
    pub fn functions(&self) -> &'static Functions {
        self.0.library.functions()
    }

    /// The handle.
    #[must_use]
    pub fn handle(&self) -> VIP_NIC_HANDLE {
        self.0.handle
    }

    /// The own connection point with this discriminator.
    #[must_use]
    pub fn address(&self, discriminator: &[u8]) -> Address {
        Address::new(&self.0.attributes.address, discriminator)
    }

    /// Translates the name of a host to its address.
    ///
    /// # Errors
    /// [`Code::NameService`](crate::Code::NameService): the name service does not know the name.
    pub fn host_by_name(&self, name: &str) -> Result<Vec<u8>> {
        let text = CString::new(name).map_err(|_| Error::Nul("host"))?;
        self.init_names()?;
        let mut room = Address::room(self.0.attributes.address.len().max(64), 0);
        let find = self.functions().VipNSGetHostByName;
        // SAFETY: a live NIC, a NUL-terminated name, and room for more than any host address.
        let code = unsafe {
            let name = text.as_ptr().cast_mut();
            find(self.handle(), name, room.as_mut_ptr().cast(), 0)
        };
        check("VipNSGetHostByName", code).map_err(|error| error.context(name))?;
        Ok(Address::decode(&room).host)
    }

    /// Translates the address of a host to its first name.
    ///
    /// # Errors
    /// [`Code::NameService`](crate::Code::NameService): the name service does not know the address.
    pub fn host_by_address(&self, host: &[u8]) -> Result<String> {
        let find = self.functions().VipNSGetHostByAddr;
        let find = find.ok_or(Error::Missing("VipNSGetHostByAddr"))?;
        self.init_names()?;
        let address = Address::new(host, b"").encode();
        let mut name = vec![0u8; 256];
        loop {
            let mut length = name.len() as VIP_ULONG;
            // SAFETY: a live NIC, an address, and room for `length` bytes.
            let code = unsafe {
                let address = address.as_ptr().cast_mut().cast();
                let name = name.as_mut_ptr().cast();
                find(self.handle(), address, name, &raw mut length)
            };
            if code == VIP_RETURN::VIP_ERROR_RESOURCE as i32 && length as usize > name.len() {
                name.resize(length as usize, 0);
                continue;
            }
            check("VipNSGetHostByAddr", code)?;
            let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
            return Ok(text.to_string_lossy().into_owned());
        }
    }

    /// Prepares the name service with the default table. It may be called again; closing the NIC ends it.
    fn init_names(&self) -> Result<()> {
        // SAFETY: a live NIC; NULL stands for the default table.
        check("VipNSInit", unsafe {
            (self.functions().VipNSInit)(self.handle(), std::ptr::null_mut())
        })
    }

    /// Addresses of the hosts within this many hops, the own one first.
    ///
    /// # Errors
    /// [`Code::NotSupported`](crate::Code::NotSupported): the plug-in cannot discover hosts.
    pub fn discover(&self, hops: u32) -> Result<Vec<Vec<u8>>> {
        let query = self.functions().VipQuerySystemManagementInfo;
        let query = query.ok_or(Error::Missing("VipQuerySystemManagementInfo"))?;
        let ask = |list: &mut VIP_AUTODISCOVERY_LIST| {
            // SAFETY: a live NIC and the structure of this topic; its array has as many elements as it says.
            unsafe {
                query(
                    self.handle(),
                    VIP_SMI_AUTODISCOVERY,
                    std::ptr::from_mut(list).cast(),
                )
            }
        };
        let mut list = VIP_AUTODISCOVERY_LIST {
            NumberOfHops: hops as c_ulong,
            ADAddrArray: std::ptr::null_mut(),
            NumAdAddrs: 0,
        };
        check("VipQuerySystemManagementInfo", ask(&mut list))?;
        loop {
            let count = list.NumAdAddrs as usize;
            let room = Address::room(self.0.attributes.address.len(), 0);
            let mut rooms = vec![room; count];
            let mut pointers: Vec<*mut VIP_NET_ADDRESS> = rooms
                .iter_mut()
                .map(|room| room.as_mut_ptr().cast())
                .collect();
            list.ADAddrArray = pointers.as_mut_ptr();
            let code = ask(&mut list);
            // Another host has come meanwhile.
            if code == VIP_RETURN::VIP_ERROR_RESOURCE as i32 && list.NumAdAddrs as usize > count {
                continue;
            }
            check("VipQuerySystemManagementInfo", code)?;
            rooms.truncate(list.NumAdAddrs as usize);
            return Ok(rooms
                .iter()
                .map(|room| Address::decode(room).host)
                .collect());
        }
    }

    /// Sets the handler for asynchronous errors; without one the library logs them. It runs in a thread of the
    /// library, and must not panic: that ends the process. What it holds is dropped when the NIC is closed, also if
    /// another handler replaces it; a handler that holds the NIC keeps it open.
    ///
    /// # Errors
    /// The library refuses.
    pub fn on_error(&self, handler: impl Fn(&AsyncError) + Send + Sync + 'static) -> Result<()> {
        let context = self.0.handlers.keep(Box::new(handler));
        let set = self.functions().VipErrorCallback;
        // SAFETY: a live NIC; the context lives until the NIC is closed, after which no handler runs.
        check("VipErrorCallback", unsafe {
            set(self.handle(), context, Some(events::on_error))
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: a live handle; every other object holds the NIC, and all are dropped.
        let code = unsafe { (self.library.functions().VipCloseNic)(self.handle) };
        if code != 0 {
            // It may still call them.
            self.handlers.leak();
        }
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
    let name: Vec<u8> = raw
        .Name
        .iter()
        .map(|c| *c as u8)
        .take_while(|c| *c != 0)
        .collect();
    let address = match raw.LocalNicAddress.is_null() {
        true => Vec::new(),
        false => {
            let length = usize::from(raw.NicAddressLen);
            // SAFETY: the library promises this many bytes until the NIC is closed.
            unsafe { std::slice::from_raw_parts(raw.LocalNicAddress, length) }.to_vec()
        }
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
        reliability: Reliability::from_bits(raw.ReliabilityLevelSupport),
        rdma_read: Reliability::from_bits(raw.RDMAReadSupport),
    })
}
