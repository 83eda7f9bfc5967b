//! Name service (spec §3.32 to §3.34, §12): a table file, read at VipNSInit. On a network interface, names
//! that are not in it are looked up as other programs do (`neighbour`).

use std::ffi::{CStr, c_char};

use vipl_abi::{VIP_CHAR, VIP_ULONG};

use crate::error::Error;
use crate::nic::Nic;
use crate::{neighbour, process};

/// Longest name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The table: one entry per line, in file order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names(Vec<(Vec<u8>, Vec<String>)>);

impl Names {
    /// Reads a table. Lines that make no sense are given to `bad` with their number.
    pub(crate) fn parse(text: &str, mut bad: impl FnMut(usize, &str)) -> Names {
        let mut names = Names::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let mut words = line.split_whitespace();
            let address = words.next().and_then(parse_address);
            let given: Vec<String> = words.map(str::to_owned).collect();
            match address {
                Some(address)
                    if !given.is_empty() && given.iter().all(|n| n.len() <= NAME_BYTES_MAX) =>
                {
                    names.0.push((address, given));
                }
                _ => bad(number + 1, line),
            }
        }
        names
    }

    pub(crate) fn by_name(&self, name: &str, index: usize) -> Option<&[u8]> {
        let find = |name: &str| {
            self.0
                .iter()
                .filter(|(_, names)| names.iter().any(|known| known.eq_ignore_ascii_case(name)))
                .nth(index)
                .map(|(address, _)| address.as_slice())
        };
        find(name).or_else(|| find(name.split_once('.')?.0))
    }

    pub(crate) fn by_address(&self, address: &[u8]) -> Option<&str> {
        let (_, names) = self.0.iter().find(|(known, _)| known == address)?;
        names.first().map(String::as_str)
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|(address, _)| address.as_slice())
    }
}

/// Six hexadecimal bytes with `:` or `-` between them.
pub(crate) fn parse_address(word: &str) -> Option<Vec<u8>> {
    let bytes: Option<Vec<u8>> = word
        .split([':', '-'])
        .map(|byte| {
            let fits = (1..=2).contains(&byte.len()) && byte.bytes().all(|b| b.is_ascii_hexdigit());
            fits.then(|| u8::from_str_radix(byte, 16).ok()).flatten()
        })
        .collect();
    bytes.filter(|bytes| bytes.len() == 6)
}

/// Whether the NIC is the loopback device, which knows its own names without a table.
fn knows_itself(nic: &Nic) -> bool {
    nic.plugin.name == "loopback"
}

/// The network interface behind the NIC, if there is one: then the table is not the only source of names.
fn interface(nic: &Nic) -> Option<String> {
    let bytes = nic.info.name.map(|c| c as u8);
    let name = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
    let linked = nic.info.link != 0;
    linked.then(|| name.strip_prefix("via_").unwrap_or(name).to_owned())
}

fn host_name() -> String {
    let mut buffer = [0u8; 256];
    // SAFETY: 255 bytes of room, and a NUL behind them.
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

/// VipNSInit.
pub fn init(nic: &Nic, path: Option<&CStr>) -> Result<(), Error> {
    let mut table = nic.names.lock();
    if table.is_some() {
        return Ok(());
    }
    let settings = &process::get().settings;
    let default = settings.text("hosts").to_owned();
    let other_sources = path.is_none() && interface(nic).is_some() && !settings.strict();
    let may_miss = knows_itself(nic) || other_sources;
    let path = match path {
        Some(path) => path.to_string_lossy().into_owned(),
        None => default,
    };
    match std::fs::read(&path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            *table = Some(Names::parse(&text, |number, line| {
                log::warn!(target: "ns", "{path}:{number}: {line:?} is not an address and names; skipped");
            }));
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && may_miss => {
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

/// VipNSGetHostByName.
pub fn host_by_name(nic: &Nic, name: &CStr, index: VIP_ULONG) -> Result<Vec<u8>, Error> {
    let table = nic.names.lock();
    let table = table.as_ref().ok_or(Error::NameService)?;
    let name = name.to_str().map_err(|_| Error::NameService)?;
    let index = usize::try_from(index).map_err(|_| Error::NameService)?;
    let fits = |address: &&[u8]| address.len() == nic.address().len();
    if let Some(address) = table.by_name(name, index).filter(fits) {
        return Ok(address.to_vec());
    }
    if knows_itself(nic) && index == 0 && is_own_name(name) {
        return Ok(nic.address().to_vec());
    }
    if let (0, Some(interface)) = (index, interface(nic)) {
        return neighbour::find(name, &interface, nic.address()).map_err(|unknown| {
            log::warn!(target: "ns", "{unknown}");
            Error::NameService
        });
    }
    Err(Error::NameService)
}

/// VipNSGetHostByAddr.
pub fn name_by_host(nic: &Nic, address: &[u8]) -> Result<String, Error> {
    let table = nic.names.lock();
    let table = table.as_ref().ok_or(Error::NameService)?;
    if let Some(name) = table.by_address(address) {
        return Ok(name.to_owned());
    }
    if knows_itself(nic) && address == nic.address() {
        return Ok("localhost".to_owned());
    }
    Err(Error::NameService)
}

/// Hands a name to the program; too small a buffer is told the size it needs (NS-06).
///
/// # Safety
/// `length` is valid and tells the room behind `name`.
pub unsafe fn give_name(
    found: &str,
    name: *mut VIP_CHAR,
    length: *mut VIP_ULONG,
) -> Result<(), Error> {
    let needed = found.len() as VIP_ULONG + 1;
    // SAFETY: as asked of the caller.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_the_specification_says() {
        let text = "# table\n\n0:1:2:A:b:0C  node1 alias1 # comment\n00-01-02-0a-0b-0d NODE1\nbad line\n1:2:3 short\n00:01:02:0a:0b:0c later\n";
        let mut bad = Vec::new();
        let names = Names::parse(text, |number, _| bad.push(number));
        assert_eq!(bad, [5, 6]);
        let first = [0, 1, 2, 10, 11, 12];
        assert_eq!(names.by_name("node1", 0), Some(&first[..]));
        assert_eq!(names.by_name("Node1", 1), Some(&[0, 1, 2, 10, 11, 13][..]));
        assert_eq!(names.by_name("node1", 2), None);
        assert_eq!(names.by_name("alias1.example.org", 0), Some(&first[..]));
        assert_eq!(names.by_address(&first), Some("node1"));
        assert_eq!(names.by_name("nobody", 0), None);
    }
}
