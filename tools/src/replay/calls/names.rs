//! The name service, and what the library knows about itself.
//!
//! Names of then are names of the device's own host now, as all hosts are: VipNSInit reads a table with those that the program
//! has found. A name that it did not find is asked for by a number that no host has, so that no resolver is asked for it.

use std::ffi::{CString, c_char};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

use vipl_client::raw::abi::*;
use vipl_client::{host_socket, host_text};
use vipl_sys::shm;

use super::super::file::Call;
use super::super::process::{Nic, Process};
use super::given::{Address, nothing, null, output, stranger, was_refused};
use super::{Outcome, Stage, made, optional};

/// Room for a name and for a document; more than there is.
const NAME_ROOM: usize = 256;
const DOCUMENT_ROOM: usize = 4 << 20;

impl Stage<'_> {
    /// # Safety
    /// As `make` says.
    pub(super) unsafe fn name(&self, process: &Process, call: &Call) -> Option<Outcome> {
        let f = self.functions;
        let then = call.number("NicHandle");
        let (nic, handle) = (process.nic(then), process.nic_handle(then));
        // SAFETY: as the caller says.
        unsafe {
            Some(match call.name.as_str() {
                "VipNSInit" => made(match call.result.as_str() {
                    "VIP_SUCCESS" => match table(&nic, process) {
                        Ok(file) => {
                            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                            let path = CString::new(path).unwrap_or_default();
                            (f.VipNSInit)(handle, path.as_ptr().cast_mut().cast())
                        }
                        Err(_) => return Some(Outcome::Left("no memory file can be made")),
                    },
                    // There was no such table.
                    _ => (f.VipNSInit)(handle, c"/proc/self/fd/none".as_ptr().cast_mut().cast()),
                }),
                "VipNSGetHostByName" => {
                    let mut found = Address::new(&[], &[]);
                    let to = output(call, "Address", found.net());
                    let name = text(call, "Name");
                    let index = match call.result.as_str() {
                        "VIP_SUCCESS" => 0,
                        _ => VIP_ULONG::from(u32::MAX),
                    };
                    made((f.VipNSGetHostByName)(
                        handle,
                        pointer(call, "Name", &name),
                        to,
                        index,
                    ))
                }
                "VipNSGetHostByAddr" => {
                    let is_known = call.result != "VIP_ERROR_NAMESERVICE";
                    let mut address = match call.address("Address") {
                        Some(_) if is_known && !was_refused(call) => Address::new(&nic.host, &[]),
                        Some(_) if !is_known => Address::new(&stranger(&nic.host), &[]),
                        _ => Address::of(call, "Address", &nic, |_| true),
                    };
                    let mut name: Vec<c_char> = vec![0; NAME_ROOM];
                    let mut length: VIP_ULONG = match call.result.as_str() {
                        // The program had no room for it.
                        "VIP_ERROR_RESOURCE" => 0,
                        _ => name.len() as VIP_ULONG,
                    };
                    let to = output(call, "Name", name.as_mut_ptr());
                    let length = output(call, "NameLen", &raw mut length);
                    optional!(f.VipNSGetHostByAddr, handle, address.net(), to, length)
                }
                "VipNSShutdown" => made((f.VipNSShutdown)(handle)),
                "VipQuerySystemManagementInfo" => {
                    let mut nothing: *mut VIP_NET_ADDRESS = null();
                    // No address fits, the number is asked for, or the list is wrong: as the result of then was.
                    let (array, count) = match call.result.as_str() {
                        "VIP_ERROR_RESOURCE" => (&raw mut nothing, 0),
                        "VIP_INVALID_PARAMETER" => (null(), 1),
                        _ => (null(), 0),
                    };
                    let mut list = VIP_AUTODISCOVERY_LIST {
                        NumberOfHops: 0,
                        ADAddrArray: array,
                        NumAdAddrs: count,
                    };
                    let list = output(call, "SysManInfo", &raw mut list);
                    let kind = call.number("InfoType") as VIP_ULONG;
                    optional!(f.VipQuerySystemManagementInfo, handle, kind, list.cast())
                }
                "vipl_describe" => {
                    let mut document: Vec<c_char> = vec![0; DOCUMENT_ROOM];
                    let mut length: VIP_ULONG = match call.result.as_str() {
                        "VIP_ERROR_RESOURCE" => 0,
                        _ => document.len() as VIP_ULONG,
                    };
                    let to = match call.number("Buffer") {
                        0 => null(),
                        _ => document.as_mut_ptr(),
                    };
                    let length = output(call, "Length", &raw mut length);
                    let topic = text(call, "Topic");
                    optional!(f.vipl_describe, pointer(call, "Topic", &topic), to, length)
                }
                _ => return None,
            })
        }
    }
}

/// A text of the program's.
fn text(call: &Call, name: &str) -> Option<CString> {
    CString::new(call.bytes(name)?).ok()
}

/// The same as the program gave it.
fn pointer(call: &Call, name: &str, text: &Option<CString>) -> *mut c_char {
    match text {
        _ if call.text(name) == Some("bad") => nothing(),
        Some(text) => text.as_ptr().cast_mut(),
        None => null(),
    }
}

/// A table of the names that the program has found, in a file without a name.
fn table(nic: &Nic, process: &Process) -> std::io::Result<File> {
    let mut file = File::from(shm::create_growing(c"vip_replay-hosts")?);
    file.write_all(lines(nic, process.names.iter().map(String::as_str)).as_bytes())?;
    Ok(file)
}

fn lines<'a>(nic: &Nic, names: impl Iterator<Item = &'a str>) -> String {
    let socket = nic.is_ip.then(|| host_socket(&nic.host)).flatten();
    let host = socket.map_or_else(|| host_text(&nic.host), |socket| socket.to_string());
    // A table has no way to write any other name: no program has found one.
    let is_name = |name: &&str| {
        !name.is_empty()
            && !name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#')
    };
    names
        .filter(is_name)
        .map(|name| format!("{host} {name}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_names_of_then_at_the_address_of_now() {
        let mut nic = Nic {
            host: vec![2, 0, 0, 0, 1, 0xff],
            ..Nic::default()
        };
        let names = [
            "alpha",
            "b c",
            "d\n02:0:0:0:0:1 e",
            "",
            "f#g",
            "Beta.example",
        ];
        let expected = "02:00:00:00:01:ff alpha\n02:00:00:00:01:ff Beta.example\n";
        assert_eq!(lines(&nic, names.into_iter()), expected);
        nic.is_ip = true;
        assert_eq!(lines(&nic, ["a"].into_iter()), "2.0.0.0:511 a\n");
    }
}
