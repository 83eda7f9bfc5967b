//! Name service (spec §3.32 to §3.34, §12): a table file, read at VipNSInit, and the names of this host. On a
//! network, other names are looked up as other programs do (`neighbour` on Ethernet, `resolver` on IP).

use std::ffi::{CStr, c_char};

use vipl_abi::{VIP_CHAR, VIP_ULONG};
use vipl_plugin_abi::VIPL_ADDRESS_IP;

use crate::error::Error;
use crate::logger::log_failure;
use crate::nic::Nic;

pub mod discovery;
mod neighbour;
mod resolver;
pub(crate) mod table;

use table::{Names, Network};

/// The network interface of the NIC, if any: then the table is not the only source of names.
fn interface(nic: &Nic) -> Option<String> {
    let bytes = nic.info.name.map(|c| c as u8);
    let name = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
    let linked = nic.info.link != 0;
    linked.then(|| name.strip_prefix("via_").unwrap_or(name).to_owned())
}

fn host_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer has 255 bytes, followed by a NUL.
    unsafe { libc::gethostname(buffer.as_mut_ptr().cast::<c_char>(), 255) };
    CStr::from_bytes_until_nul(&buffer).map_or(String::new(), |n| n.to_string_lossy().into_owned())
}

fn is_own_name(name: &str) -> bool {
    let own = host_name();
    let without_domain = |name: &str| name.split('.').next().unwrap_or("").to_ascii_lowercase();
    name.eq_ignore_ascii_case("localhost")
        || name.eq_ignore_ascii_case(&own)
        || (!own.is_empty() && without_domain(name) == without_domain(&own))
}

/// Longest table of hosts.
const TABLE_BYTES_MAX: usize = 16 << 20;

/// VipNSInit. Without a table there are still the names of this host and, on a network interface, the names
/// known to the system.
pub fn init(nic: &Nic, path: Option<&CStr>) -> Result<(), Error> {
    let mut table = nic.names.lock();
    if table.is_some() {
        return Ok(());
    }
    let settings = &nic.process.settings;
    let named = path.is_some() || settings.given("hosts").is_some();
    let path = match path {
        Some(path) => path.to_string_lossy().into_owned(),
        None => settings.text("hosts").to_owned(),
    };
    match vipl_sys::file::read_small(path.as_ref(), TABLE_BYTES_MAX) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let names = Names::parse(&text, |number, line| {
                log::warn!(target: "ns", "{path}:{number}: {line:?} is not an address and names; skipped");
            });
            *table = Some(names.of(path));
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => {
            log::debug!(target: "ns", "there is no table of hosts {path}; only this host's own names are known");
            *table = Some(Names::default());
            Ok(())
        }
        Err(error) => {
            log::warn!(target: "ns", "VipNSInit cannot read {path}: {error}");
            Err(Error::NameService)
        }
    }
}

/// VipNSShutdown.
pub fn shutdown(nic: &Nic) -> Result<(), Error> {
    nic.names.lock().take().map(drop).ok_or(Error::NameService)
}

/// The kind of addresses of this NIC.
fn network(nic: &Nic) -> Network<'_> {
    Network {
        plugin: &nic.plugin.name,
        is_ip: nic.info.address_form == VIPL_ADDRESS_IP,
        length: nic.address().len(),
    }
}

/// VipNSGetHostByName.
pub fn host_by_name(nic: &Nic, name: &CStr, index: VIP_ULONG) -> Result<Vec<u8>, Error> {
    let table = nic.names.lock();
    let table = table.as_ref().ok_or(Error::NameService)?;
    let name = name.to_str().map_err(|_| Error::NameService)?;
    let index = usize::try_from(index).map_err(|_| Error::NameService)?;
    let known = table.find(network(nic), name, index, |number, why| {
        let file = table.file();
        log_failure!(
            "ns",
            (file, number, nic.handle.addr()),
            "{file}:{number}: the address of {name:?} is {why}"
        );
    });
    if let Some(address) = known {
        return Ok(address.to_vec());
    }
    // Every device knows its own host, however the system resolves that name.
    if index == 0 && is_own_name(name) {
        return Ok(nic.address().to_vec());
    }
    if index == 0 && nic.info.address_form == VIPL_ADDRESS_IP {
        return resolver::find(name, nic.address()).map_err(|unknown| {
            log::warn!(target: "ns", "{unknown}");
            Error::NameService
        });
    }
    if let (0, Some(interface)) = (index, interface(nic)) {
        return neighbour::find(name, &interface, nic.address()).map_err(|unknown| {
            log::warn!(target: "ns", "{unknown}");
            Error::NameService
        });
    }
    log_failure!(
        "ns",
        name,
        "the table of hosts has no address number {index} of {name:?} for the plug-in {}, and it is not a name of this host",
        nic.plugin.name
    );
    Err(Error::NameService)
}

/// VipNSGetHostByAddr.
pub fn name_by_host(nic: &Nic, address: &[u8]) -> Result<String, Error> {
    let table = nic.names.lock();
    let table = table.as_ref().ok_or(Error::NameService)?;
    if let Some(name) = table.by_address(&nic.plugin.name, address) {
        return Ok(name.to_owned());
    }
    if address == nic.address() {
        return Ok("localhost".to_owned());
    }
    Err(Error::NameService)
}

/// Copies a name to the application; if the buffer is too small, only stores the required length (NS-06).
///
/// # Safety
/// `length` is valid and states the size of `name`.
pub unsafe fn copy_name(
    found: &str,
    name: *mut VIP_CHAR,
    length: *mut VIP_ULONG,
) -> Result<(), Error> {
    let needed = found.len() as VIP_ULONG + 1;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let room = length.read_unaligned();
        length.write_unaligned(needed);
        if room < needed {
            return Err(Error::Resource);
        }
        std::ptr::copy_nonoverlapping(found.as_ptr().cast(), name, found.len());
        *name.add(found.len()) = 0;
    }
    Ok(())
}
