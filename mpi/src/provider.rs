//! `fi_prov_ini`, and what libfabric calls first: `fi_getinfo` and `fi_fabric`.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};

use crate::address::Address;
use crate::attributes::{Offer, names_us, provider_of};
use crate::fi::{FI_SOURCE, fi_fabric_attr, fi_info, fi_provider, fid_fabric};
use crate::libfabric::{self, NAME, VERSION};
use crate::nic::Nic;
use crate::object::code;
use crate::settings;

struct Shared(UnsafeCell<fi_provider>);
// SAFETY: `fi_prov_ini` writes the version, then libfabric writes `context`, both under libfabric's lock.
unsafe impl Sync for Shared {}

static PROVIDER: Shared = Shared(UnsafeCell::new(fi_provider {
    version: VERSION,
    fi_version: 0,
    context: [std::ptr::null_mut(); 4],
    name: NAME.as_ptr(),
    getinfo,
    fabric,
    cleanup,
}));

/// The one function that libfabric looks up. The version is that of the libfabric that loads the provider, so that none
/// finds it too old.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "exported by its name, not as an item")]
pub extern "C" fn fi_prov_ini() -> *mut c_void {
    // SAFETY: see `Shared`.
    unsafe { (*PROVIDER.0.get()).fi_version = libfabric::version() };
    vipl_sys::stderr::remember();
    libfabric::introduce(PROVIDER.0.get());
    settings::declare();
    PROVIDER.0.get().cast()
}

/// Whether the program has requested this provider by its name. Otherwise every program that lists what libfabric
/// has to offer would open a NIC and start an agent.
fn is_wanted(hints: Option<String>) -> bool {
    let environment = |name: &str| std::env::var(name).ok();
    hints.is_some_and(|name| names_us(&name))
        || environment("FI_PROVIDER").is_some_and(|list| names_us(&list))
        || environment("FI_VIPL_DEVICE").is_some_and(|device| !device.is_empty())
}

unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    code(|| {
        // SAFETY: libfabric's arguments.
        if !is_wanted(unsafe { provider_of(hints) }) {
            return Err(libc::ENODATA);
        }
        let nic = Nic::get().map_err(|why| {
            libfabric::say(&why);
            libc::ENODATA
        })?;
        let offer = Offer::new(&nic.device.limits);
        if nic.settings.rdm {
            // SAFETY: libfabric's arguments, here and below.
            match unsafe { crate::rdm::suits(hints) } {
                Ok(()) => {
                    let offer = offer.for_version(version);
                    // SAFETY: as above.
                    unsafe {
                        out.write(offer.to_tagged_info(nic.address(0), nic.settings, hints));
                    }
                    return Ok(());
                }
                Err(what) => libfabric::info(|| format!("FI_EP_RDM is not offered: {what}")),
            }
        }
        // SAFETY: as above.
        let offer = unsafe { offer.suit(version, hints) }.map_err(|what| {
            libfabric::info(|| format!("the program asks for something else: {what}"));
            libc::ENODATA
        })?;
        // SAFETY: NUL-terminated strings or null.
        let (node, service) = unsafe { (text(node), text(service)) };
        let named = place(node.as_deref(), service.as_deref(), flags, &nic).ok_or(libc::ENODATA)?;
        // SAFETY: hints are null or valid.
        let hinted = unsafe {
            hints.as_ref().map(|hints| {
                (
                    Address::from_sockaddr(hints.src_addr, hints.src_addrlen),
                    Address::from_sockaddr(hints.dest_addr, hints.dest_addrlen),
                )
            })
        };
        let (hinted_source, hinted_destination) = hinted.unwrap_or_default();
        let source = named.0.or(hinted_source).unwrap_or_else(|| nic.address(0));
        let destination = named.1.or(hinted_destination);
        // SAFETY: libfabric's place for the answer.
        unsafe { out.write(offer.to_info(Some(source), destination, false)) };
        Ok(())
    })
}

/// # Safety
/// `text` is null or NUL-terminated.
unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// Source and destination that node and service name; None if they make no sense.
fn place(
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
    nic: &Nic,
) -> Option<(Option<Address>, Option<Address>)> {
    let port = match service {
        None => 0,
        Some(service) => service.trim().parse::<u16>().ok()?,
    };
    let own = || Address::new(nic.device.limits.address, 0, port);
    match node {
        // A port that was chosen by the program: a peer needs to know nothing but the port.
        None => Some((service.map(|_| own()), None)),
        Some(node) => {
            let ipv6: std::net::Ipv6Addr = node.trim_matches(['[', ']']).parse().ok()?;
            let address = Address::from_ipv6(&ipv6.octets(), port)?;
            Some(if flags & FI_SOURCE != 0 {
                (Some(address), None)
            } else {
                (None, Some(address))
            })
        }
    }
}

unsafe extern "C" fn fabric(
    attributes: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    code(|| {
        // SAFETY: libfabric's arguments.
        unsafe { crate::fabric::open(attributes, out, context) }
    })
}

unsafe extern "C" fn cleanup() {
    crate::object::entry((), || {
        crate::endpoint::forget_closed();
        Nic::release();
    });
}
