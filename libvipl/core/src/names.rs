//! Name service (spec §3.32 to §3.34, §12): a table file, read at VipNSInit, and the names of this host. On a
//! network interface, other names are looked up as other programs do (`neighbour`).

use std::ffi::{CStr, c_char};

use vipl_abi::{VIP_CHAR, VIP_ULONG};

use crate::connect::address::parse_host;
use crate::error::Error;
use crate::nic::Nic;

pub mod discovery;
mod neighbour;

/// Longest name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// The plug-in whose address this is; none: every plug-in's.
    plugin: Option<String>,
    address: Vec<u8>,
    names: Vec<String>,
}

impl Entry {
    fn parse(line: &str) -> Option<Entry> {
        let mut words = line.split_whitespace();
        let (plugin, address) = split_plugin(words.next()?);
        let names: Vec<String> = words.map(str::to_owned).collect();
        let good = !names.is_empty() && names.iter().all(|name| name.len() <= NAME_BYTES_MAX);
        Some(Entry {
            plugin: plugin.map(str::to_owned),
            address: parse_host(address).filter(|_| good)?,
            names,
        })
    }

    fn is_for(&self, plugin: &str) -> bool {
        self.plugin.as_deref().is_none_or(|own| own == plugin)
    }
}

/// `PLUGIN:ADDRESS`, or an address alone. No byte of an address has three digits.
fn split_plugin(word: &str) -> (Option<&str>, &str) {
    match word.split_once(':') {
        Some((name, address))
            if name.len() > 2
                && name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') =>
        {
            (Some(name), address)
        }
        _ => (None, word),
    }
}

/// The table: one entry per line, in file order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names(Vec<Entry>);

impl Names {
    /// Reads a table. Lines that make no sense are given to `bad` with their number.
    pub(crate) fn parse(text: &str, mut bad: impl FnMut(usize, &str)) -> Names {
        let mut names = Names::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            match Entry::parse(line) {
                Some(entry) => names.0.push(entry),
                None if line.is_empty() => {}
                None => bad(number + 1, line),
            }
        }
        names
    }

    pub(crate) fn by_name(&self, plugin: &str, name: &str, index: usize) -> Option<&[u8]> {
        let find = |name: &str| {
            let known = |entry: &&Entry| entry.names.iter().any(|n| n.eq_ignore_ascii_case(name));
            let entries = self.0.iter().filter(|entry| entry.is_for(plugin));
            let found = entries.filter(known).nth(index);
            found.map(|entry| entry.address.as_slice())
        };
        find(name).or_else(|| find(name.split_once('.')?.0))
    }

    pub(crate) fn by_address(&self, plugin: &str, address: &[u8]) -> Option<&str> {
        let mut entries = self.0.iter().filter(|entry| entry.is_for(plugin));
        let entry = entries.find(|entry| entry.address == address)?;
        entry.names.first().map(String::as_str)
    }

    pub(crate) fn addresses(&self, plugin: &str) -> impl Iterator<Item = &[u8]> {
        let entries = self.0.iter().filter(move |entry| entry.is_for(plugin));
        entries.map(|entry| entry.address.as_slice())
    }
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

/// VipNSInit. Without a table there are still the names of this host and, on a network interface, what the
/// system knows.
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
    match std::fs::read(&path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            *table = Some(Names::parse(&text, |number, line| {
                log::warn!(target: "ns", "{path}:{number}: {line:?} is not an address and names; skipped");
            }));
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Only one that somebody has named was expected to be there.
            let level = if named {
                log::Level::Warn
            } else {
                log::Level::Debug
            };
            log::log!(target: "ns", level, "there is no table of hosts {path}; only this host's own names are known");
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
    if let Some(address) = table.by_name(&nic.plugin.name, name, index).filter(fits) {
        return Ok(address.to_vec());
    }
    // Every device knows its own host, whatever the system makes of that name.
    if index == 0 && is_own_name(name) {
        return Ok(nic.address().to_vec());
    }
    if let (0, Some(interface)) = (index, interface(nic)) {
        return neighbour::find(name, &interface, nic.address()).map_err(|unknown| {
            log::warn!(target: "ns", "{unknown}");
            Error::NameService
        });
    }
    log::info!(
        target: "ns",
        "the table of hosts has no address number {index} of {name:?} for the plug-in {}, and it is not a name of this host", nic.plugin.name
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
    fn an_entry_may_be_for_one_plugin() {
        let text = "loopback:02:56:49:4c:00:00 node1\ntulip:2-0-0-0-0-1 node1\n2:0:0:0:0:9 node1\n2x:2:0:0:0:0:1 n\n";
        let mut bad = Vec::new();
        let names = Names::parse(text, |number, _| bad.push(number));
        assert_eq!(bad, [4]);
        let all = |plugin: &str| -> Vec<u8> {
            let found = (0..3).map_while(|index| names.by_name(plugin, "node1", index));
            found.map(|address| address[5]).collect()
        };
        assert_eq!(all("loopback"), [0, 9]);
        assert_eq!(all("tulip"), [1, 9]);
        assert_eq!(all("sim"), [9]);
        assert_eq!(
            names.by_address("tulip", &[2, 0, 0, 0, 0, 1]),
            Some("node1")
        );
        assert_eq!(names.by_address("sim", &[2, 0, 0, 0, 0, 1]), None);
        assert_eq!(names.addresses("tulip").count(), 2);
    }

    #[test]
    fn a_table_is_read_as_the_specification_says() {
        let text = "# table\n\n0:1:2:A:b:0C  node1 alias1 # comment\n00-01-02-0a-0b-0d NODE1\nbad line\n1:2:3 short\n00:01:02:0a:0b:0c later\n";
        let mut bad = Vec::new();
        let names = Names::parse(text, |number, _| bad.push(number));
        assert_eq!(bad, [5, 6]);
        let first = [0, 1, 2, 10, 11, 12];
        assert_eq!(names.by_name("sim", "node1", 0), Some(&first[..]));
        assert_eq!(
            names.by_name("sim", "Node1", 1),
            Some(&[0, 1, 2, 10, 11, 13][..])
        );
        assert_eq!(names.by_name("sim", "node1", 2), None);
        assert_eq!(
            names.by_name("sim", "alias1.example.org", 0),
            Some(&first[..])
        );
        assert_eq!(names.by_address("sim", &first), Some("node1"));
        assert_eq!(names.by_name("sim", "nobody", 0), None);
    }
}
