//! Several hosts inside one machine: network namespaces with one Ethernet interface each, and the cables or
//! the switch between them. Made with `ip`, removed when the value is dropped; what a killed test left
//! behind, the next one removes.
//!
//! ```text
//!   pair:  host 0 ─ eth0 ══════ eth0 ─ host 1          bridge:  host 0 ─ eth0 ══ port0 ┐
//!                                                               host 1 ─ eth0 ══ port1 ┼ switch
//!                                                               host 2 ─ eth0 ══ port2 ┘
//!   routed:  host 0 ─ eth0 ══ port0 ─ router ─ port1 ══ eth0 ─ host 1, each in a subnet of its own
//! ```
//!
//! It needs root. [`Namespaces::pair`] and [`Namespaces::bridge`] say why there is nothing, for a test that
//! is then to be skipped. Nothing ever leaves the machine: no namespace has a way out.

mod apart;
mod flow;
mod inside;
mod relay;
mod routed;

pub use apart::{Apart, listens, on_first_host};
pub use flow::{beside_tcp, stream};
pub use relay::Relay;
pub use vipl_link_emulator::{FaultCounts, Impairments};

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Name of each host's interface.
pub const INTERFACE: &str = "eth0";
/// What all names of namespaces begin with; the process id follows.
const PREFIX: &str = "vipl-t-";
const SWITCH: &str = "switch";
/// How long the kernel may take to notice a carrier; it takes a second at most when it has the time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Some hosts and what connects them.
#[derive(Debug)]
pub struct Namespaces {
    hosts: Vec<String>,
    /// The namespace of the switch, or of the router; without one there is a cable.
    switch: Option<String>,
    /// It is a router.
    routed: bool,
}

impl Namespaces {
    /// Two hosts with one cable.
    ///
    /// # Errors
    /// Why this machine or this user cannot have them.
    pub fn pair() -> Result<Self, String> {
        let made = Self::empty(2, false)?;
        let (first, second) = (&made.hosts[0], &made.hosts[1]);
        let peer = [
            "peer",
            "name",
            INTERFACE,
            "address",
            &mac(1),
            "netns",
            second,
        ];
        ip(
            &[
                "-n",
                first,
                "link",
                "add",
                INTERFACE,
                "address",
                &mac(0),
                "type",
                "veth",
            ],
            &peer,
        )?;
        made.up()?;
        Ok(made)
    }

    /// So many hosts on one switch.
    ///
    /// # Errors
    /// Why this machine or this user cannot have them.
    pub fn bridge(hosts: usize) -> Result<Self, String> {
        let made = Self::empty(hosts, true)?;
        let switch = made.switch.as_deref().unwrap_or_default();
        ip(
            &[
                "-n",
                switch,
                "link",
                "add",
                SWITCH,
                "type",
                "bridge",
                "forward_delay",
                "0",
            ],
            &[],
        )?;
        ip(&["-n", switch, "link", "set", SWITCH, "up"], &[])?;
        for (number, host) in made.hosts.iter().enumerate() {
            let port = port(number);
            let peer = [
                "peer",
                "name",
                INTERFACE,
                "address",
                &mac(number),
                "netns",
                host,
            ];
            ip(&["-n", switch, "link", "add", &port, "type", "veth"], &peer)?;
            ip(
                &["-n", switch, "link", "set", &port, "master", SWITCH, "up"],
                &[],
            )?;
        }
        made.up()?;
        Ok(made)
    }

    fn empty(hosts: usize, switched: bool) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_left_behind();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| format!("{PREFIX}{}-{number}-{what}", std::process::id());
        let mut made = Namespaces {
            hosts: Vec::new(),
            switch: None,
            routed: false,
        };
        for host in 0..hosts {
            let name = name(&host.to_string());
            ip(&["netns", "add", &name], &[])?;
            made.hosts.push(name);
        }
        if switched {
            let name = name("s");
            ip(&["netns", "add", &name], &[])?;
            made.switch = Some(name);
        }
        Ok(made)
    }

    fn up(&self) -> Result<(), String> {
        for (number, host) in self.hosts.iter().enumerate() {
            // A host reaches its own addresses by way of this one.
            ip(&["-n", host, "link", "set", "lo", "up"], &[])?;
            for address in [
                format!("{}/24", self.ipv4(number)),
                format!("{}/64", self.ipv6(number)),
            ] {
                let add = ["-n", host, "address", "add", &address, "dev", INTERFACE];
                // No other process has it: it need not be asked for.
                let v6: &[&str] = if address.contains("::") {
                    &["nodad"]
                } else {
                    &[]
                };
                if let Err(why) = ip(&add, v6) {
                    // A kernel may do without IPv6.
                    if v6.is_empty() {
                        return Err(why);
                    }
                }
            }
            ip(&["-n", host, "link", "set", INTERFACE, "up"], &[])?;
        }
        self.settle()
    }

    /// Waits until frames pass. An interface that is up drops every frame until the kernel has noticed its
    /// carrier, which it does in a work queue, up to a second later; a port of a switch likewise.
    fn settle(&self) -> Result<(), String> {
        for (number, host) in self.hosts.iter().enumerate() {
            settled(host, INTERFACE, "state UP")?;
            if let Some(switch) = &self.switch {
                settled(switch, &port(number), "state forwarding")?;
            }
        }
        Ok(())
    }

    fn must_settle(&self) {
        if let Err(why) = self.settle() {
            panic!("{why}");
        }
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Name of a host's namespace, for `ip -n`.
    pub fn name(&self, host: usize) -> &str {
        &self.hosts[host]
    }

    /// Name of the switch's namespace, if there is a switch; its ports are `port0`, `port1` and so on.
    pub fn switch(&self) -> Option<&str> {
        self.switch.as_deref()
    }

    /// Address of a host's interface.
    pub fn address(&self, host: usize) -> [u8; 6] {
        [0x02, b'v', b'i', b'p', b'l', host as u8]
    }

    /// Number of the subnet that a host is in.
    fn subnet(&self, host: usize) -> u16 {
        if self.routed { host as u16 } else { 0 }
    }

    /// IPv4 address of a host's interface.
    pub fn ipv4(&self, host: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 76, self.subnet(host) as u8, 1 + host as u8)
    }

    /// Tells a host the Ethernet addresses of all others, so that a cable that corrupts frames cannot tell it wrong
    /// ones.
    fn introduce(&self, host: usize) {
        for other in (0..self.hosts()).filter(|other| *other != host) {
            let (to, mac) = (self.ipv4(other).to_string(), mac(other));
            let at = ["-n", self.name(host), "neighbor", "replace", &to];
            must(&[&at[..], &["lladdr", &mac, "dev", INTERFACE]].concat());
        }
    }

    /// Takes a host's IPv4 address away.
    pub fn take_ipv4(&self, host: usize) {
        must(&[
            "-n",
            self.name(host),
            "-4",
            "address",
            "flush",
            "dev",
            INTERFACE,
        ]);
    }

    /// IPv6 address of a host's interface; cutting the cable of a pair takes it away.
    pub fn ipv6(&self, host: usize) -> Ipv6Addr {
        Ipv6Addr::new(0xfd76, 0, 0, self.subnet(host), 0, 0, 0, 1 + host as u16)
    }

    /// A command that runs on a host.
    pub fn command(&self, host: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", self.name(host)])
            .arg(program);
        command
    }

    /// Cuts a host off. With a switch its frames vanish, both ways, without a report; with a cable the
    /// other end is switched off, and both ends see that.
    pub fn cut(&self, host: usize) {
        match &self.switch {
            Some(switch) => must(&["-n", switch, "link", "set", &port(host), "nomaster"]),
            None => must(&["-n", self.name(1 - host), "link", "set", INTERFACE, "down"]),
        }
    }

    /// Undoes [`cut`](Self::cut).
    pub fn restore(&self, host: usize) {
        match &self.switch {
            Some(switch) => must(&["-n", switch, "link", "set", &port(host), "master", SWITCH]),
            None => must(&["-n", self.name(1 - host), "link", "set", INTERFACE, "up"]),
        }
        self.must_settle();
    }

    /// Sets the MTU of a host's interface, and of the port of the switch that it is connected to.
    pub fn set_mtu(&self, host: usize, bytes: u32) {
        let bytes = bytes.to_string();
        if let Some(switch) = &self.switch {
            must(&["-n", switch, "link", "set", &port(host), "mtu", &bytes]);
        }
        must(&[
            "-n",
            self.name(host),
            "link",
            "set",
            INTERFACE,
            "mtu",
            &bytes,
        ]);
    }

    /// Switches a host's own interface off or on.
    pub fn set_up(&self, host: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        must(&["-n", self.name(host), "link", "set", INTERFACE, state]);
        if up {
            self.must_settle();
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in self.hosts.iter().chain(&self.switch) {
            let _ = ip(&["netns", "del", name], &[]);
        }
    }
}

fn port(host: usize) -> String {
    format!("port{host}")
}

/// As [`Namespaces::address`] gives it.
fn mac(host: usize) -> String {
    format!("02:76:69:70:6c:{host:02x}")
}

/// Runs `ip`; what it complains about is the error.
fn ip(first: &[&str], then: &[&str]) -> Result<(), String> {
    let line = || format!("ip {}", [first, then].concat().join(" "));
    let mut command = Command::new("ip");
    command.args(first).args(then).stdin(Stdio::null());
    let Output { status, stderr, .. } = command
        .output()
        .map_err(|error| format!("{}: {error}", line()))?;
    if status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&stderr);
        Err(format!("{}: {}", line(), said.trim()))
    }
}

/// Waits until `ip` says this of an interface, unless it has no carrier or hangs on no switch: then nothing
/// will come of it.
fn settled(namespace: &str, interface: &str, wanted: &str) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let mut command = Command::new("ip");
        command.args(["-n", namespace, "-d", "-o", "link", "show", interface]);
        let output = command.output().map_err(|error| format!("ip: {error}"))?;
        let shown = String::from_utf8_lossy(&output.stdout);
        let hopeless = !shown.contains("LOWER_UP")
            || (interface != INTERFACE && !shown.contains(&format!("master {SWITCH}")));
        if hopeless {
            return Ok(());
        }
        if shown.contains(wanted) {
            // The kernel says so a moment before it is so, under a lock that this takes too.
            return ip(&["-n", namespace, "link", "set", interface, "up"], &[]);
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!(
                "{interface} in {namespace}: no {wanted:?} in {shown}"
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn must(line: &[&str]) {
    if let Err(error) = ip(line, &[]) {
        panic!("{error}");
    }
}

/// Removes namespaces of test processes that are no more.
fn remove_left_behind() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(owner) = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next())
        else {
            continue;
        };
        if !std::path::Path::new("/proc").join(owner).exists() {
            let _ = ip(&["netns", "del", &name], &[]);
        }
    }
}
