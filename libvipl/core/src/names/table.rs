//! The table of host names: one entry per line of a file, in file order (spec §12).

use std::net::SocketAddr;

use crate::connect::address::{parse_host, socket_bytes};

/// The plug-in of IP addresses with a port.
const IP: &str = "ip";
/// Longest name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// The plug-in of the address; `None`: any plug-in.
    plugin: Option<String>,
    address: Vec<u8>,
    /// Whether it was written as an IP address with a port.
    is_socket: bool,
    names: Vec<String>,
    /// The line number in the file.
    number: usize,
}

/// The kind of addresses of a device.
#[derive(Clone, Copy)]
pub(crate) struct Network<'a> {
    /// The plug-in.
    pub(crate) plugin: &'a str,
    /// Whether they are IP addresses with ports.
    pub(crate) is_ip: bool,
    /// Their length in bytes.
    pub(crate) length: usize,
}

impl Entry {
    fn parse(line: &str, number: usize) -> Option<Entry> {
        let mut words = line.split_whitespace();
        let (plugin, address) = split_plugin(words.next()?);
        let socket = address.parse::<SocketAddr>().ok();
        let names: Vec<String> = words.map(str::to_owned).collect();
        let good = !names.is_empty() && names.iter().all(|name| name.len() <= NAME_BYTES_MAX);
        Some(Entry {
            // Six bytes of this kind must not be taken for an Ethernet address.
            plugin: plugin.or(socket.map(|_| IP)).map(str::to_owned),
            address: socket
                .map(socket_bytes)
                .or_else(|| parse_host(address))
                .filter(|_| good)?,
            is_socket: socket.is_some(),
            names,
            number,
        })
    }

    /// Why its address does not belong to this network, if so.
    fn mismatch(&self, network: Network<'_>) -> Option<String> {
        let Network { is_ip, length, .. } = network;
        if self.is_socket && !is_ip {
            return Some("an IP address with a port, which this device does not use".to_owned());
        }
        let bytes = self.address.len();
        (bytes != length).then(|| format!("an address of {bytes} bytes; this device has {length}"))
    }

    /// Whether it may be an address of another kind of network: six bytes whose kind neither their form nor a
    /// plug-in prefix determines.
    fn is_doubtful(&self, network: Network<'_>) -> bool {
        network.is_ip && !self.is_socket && self.plugin.is_none()
    }

    fn is_for(&self, plugin: &str) -> bool {
        self.plugin.as_deref().is_none_or(|own| own == plugin)
    }
}

/// `PLUGIN:ADDRESS`, or an address alone, which may be `IP:PORT`. No byte of an address has three digits.
fn split_plugin(word: &str) -> (Option<&str>, &str) {
    match word.split_once(':') {
        Some((name, address))
            if (name.len() > 2 || name == IP)
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
pub(crate) struct Names {
    entries: Vec<Entry>,
    file: String,
}

impl Names {
    /// Reads a table. Malformed lines are passed to `bad` with their number.
    pub(crate) fn parse(text: &str, mut bad: impl FnMut(usize, &str)) -> Names {
        let mut names = Names::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            match Entry::parse(line, number + 1) {
                Some(entry) => names.entries.push(entry),
                None if line.is_empty() => {}
                None => bad(number + 1, line),
            }
        }
        names
    }

    /// Sets the name of the file.
    pub(crate) fn of(self, file: String) -> Names {
        Names { file, ..self }
    }

    /// The name of the file.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// The address of a name on a network. Entries with that name whose address does not belong to this
    /// network are skipped; those that may belong to another one are used only if there are no others. Both
    /// are passed to `unsuited` with their line.
    pub(crate) fn find(
        &self,
        network: Network<'_>,
        name: &str,
        index: usize,
        mut unsuited: impl FnMut(usize, &str),
    ) -> Option<&[u8]> {
        let is_sure =
            |entry: &Entry| !entry.is_doubtful(network) && entry.mismatch(network).is_none();
        let others = self.search(network.plugin, name, 0, is_sure).is_some();
        let mut doubted = Vec::new();
        let found = self.search(network.plugin, name, index, |entry| {
            if let Some(why) = entry.mismatch(network) {
                unsuited(entry.number, &format!("{why}; the line is left out"));
                return false;
            }
            let doubtful = entry.is_doubtful(network);
            if doubtful && !others {
                doubted.push(entry.number);
            }
            !doubtful || !others
        });
        for number in doubted {
            unsuited(
                number,
                "taken for an IPv4 address and a port; write IP:PORT, as in 192.0.2.7:34998, if it is that, and not an address of Ethernet",
            );
        }
        found
    }

    /// The same for any kind of address.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn by_name(&self, plugin: &str, name: &str, index: usize) -> Option<&[u8]> {
        self.search(plugin, name, index, |_| true)
    }

    fn search(
        &self,
        plugin: &str,
        name: &str,
        index: usize,
        mut suits: impl FnMut(&Entry) -> bool,
    ) -> Option<&[u8]> {
        let mut find = |name: &str| {
            let known = |entry: &&Entry| {
                entry.is_for(plugin) && entry.names.iter().any(|n| n.eq_ignore_ascii_case(name))
            };
            let mut found = self
                .entries
                .iter()
                .filter(known)
                .filter(|entry| suits(entry));
            found.nth(index).map(|entry| entry.address.as_slice())
        };
        find(name).or_else(|| find(name.split_once('.')?.0))
    }

    pub(crate) fn by_address(&self, plugin: &str, address: &[u8]) -> Option<&str> {
        let mut entries = self.entries.iter().filter(|entry| entry.is_for(plugin));
        let entry = entries.find(|entry| entry.address == address)?;
        entry.names.first().map(String::as_str)
    }

    /// All addresses of a network.
    pub(crate) fn addresses(&self, network: Network<'_>) -> impl Iterator<Item = &[u8]> {
        let entries = self
            .entries
            .iter()
            .filter(move |entry| entry.is_for(network.plugin) && entry.mismatch(network).is_none());
        entries.map(|entry| entry.address.as_slice())
    }
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
        let tulip = Network {
            plugin: "tulip",
            is_ip: false,
            length: 6,
        };
        assert_eq!(names.addresses(tulip).count(), 2);
    }

    #[test]
    fn an_address_with_a_port_is_for_ip() {
        let text =
            "192.0.2.7:258 far\n[2001:db8::7]:9 far six\nip:192.0.2.8:9 near\n2:0:0:0:0:9 far\n";
        let names = Names::parse(text, |_, line| panic!("{line}"));
        let v4 = [192, 0, 2, 7, 1, 2];
        assert_eq!(names.by_name("ip", "far", 0), Some(&v4[..]));
        assert_eq!(names.by_name("ip", "six", 0).map(<[u8]>::len), Some(18));
        assert_eq!(
            names.by_name("ip", "near", 0),
            Some(&[192, 0, 2, 8, 0, 9][..])
        );
        assert_eq!(names.by_address("ip", &v4), Some("far"));
        assert_eq!(
            names.by_name("tulip", "far", 0),
            Some(&[2, 0, 0, 0, 0, 9][..])
        );
        assert_eq!(names.by_name("tulip", "near", 0), None);
    }

    /// Six bytes of an Ethernet address are not taken for an IPv4 address with a port, and vice versa.
    #[test]
    fn an_address_of_another_kind_of_network_is_reported_with_its_line() {
        let text = "02:00:00:00:00:01 eth\nip:2:0:0:0:0:9 both\ntulip:192.0.2.7:258 both\n[fd00::1]:9 six\n192.0.2.7:258 eth\n2:0:0:0:0:3 only\n";
        let names = Names::parse(text, |_, line| panic!("{line}"));
        let find = |plugin, is_ip, length, name| {
            let mut lines = Vec::new();
            let network = Network {
                plugin,
                is_ip,
                length,
            };
            let found = names.find(network, name, 0, |line, _| lines.push(line));
            (found.map(<[u8]>::to_vec), lines)
        };
        let v4 = vec![192, 0, 2, 7, 1, 2];
        assert_eq!(find("ip", true, 6, "eth"), (Some(v4), vec![]));
        let ethernet = vec![2, 0, 0, 0, 0, 3];
        assert_eq!(find("ip", true, 6, "only"), (Some(ethernet), vec![6]));
        assert_eq!(find("ip", true, 18, "only"), (None, vec![6]));
        assert_eq!(
            find("ip", true, 6, "both"),
            (Some(vec![2, 0, 0, 0, 0, 9]), vec![])
        );
        assert_eq!(find("tulip", false, 6, "both"), (None, vec![3]));
        assert_eq!(find("tulip", false, 6, "eth").1, Vec::<usize>::new());
        assert_eq!(find("ip", true, 6, "six"), (None, vec![4]));
        assert_eq!(find("ip", true, 18, "six").1, Vec::<usize>::new());
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
