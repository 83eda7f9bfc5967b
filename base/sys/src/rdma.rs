//! RDMA devices of this host, from `/sys/class/infiniband`. Nothing is loaded or opened, and nothing is cached: devices
//! come and go.

use std::ffi::CString;
use std::fs;
use std::path::Path;

/// Where the kernel describes RDMA devices.
const SYSFS: &str = "/sys/class";

/// One RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name, such as `mlx5_0`.
    pub name: String,
    /// Its driver, such as `mlx5_core`; `rdma_rxe` and `siw` are software; empty if unknown.
    pub driver: String,
    /// The file by which programs reach it, such as `/dev/infiniband/uverbs0`; empty without the module `ib_uverbs`.
    pub node: String,
    /// It speaks iWARP, not InfiniBand or RoCE.
    pub is_iwarp: bool,
    /// Its ports, numbered from 1.
    pub ports: Vec<Port>,
}

/// One port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number.
    pub number: u8,
    /// Its state, such as `ACTIVE` or `DOWN`.
    pub state: String,
    /// `InfiniBand`, or `Ethernet` for RoCE.
    pub link_layer: String,
    /// Its speed, such as `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// Network interfaces whose addresses it uses.
    pub interfaces: Vec<String>,
}

impl Port {
    /// Whether it can carry messages now.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

impl Device {
    /// Whether the kernel emulates the device over an Ethernet interface.
    pub fn is_software(&self) -> bool {
        matches!(self.driver.as_str(), "rdma_rxe" | "siw")
    }

    /// The port that uses the addresses of a network interface; an active one before others.
    pub fn port_of(&self, interface: &str) -> Option<&Port> {
        let of = |port: &&Port| port.interfaces.iter().any(|name| name == interface);
        let active = self.ports.iter().filter(of).find(|port| port.is_active());
        active.or_else(|| self.ports.iter().find(of))
    }

    /// Why a program of this process cannot use it as InfiniBand or RoCE, with what helps; `None`: nothing is known.
    pub fn obstacle(&self) -> Option<String> {
        let name = &self.name;
        if self.is_iwarp {
            return Some(format!("{name} speaks iWARP, not InfiniBand or RoCE"));
        }
        if self.node.is_empty() {
            return Some(format!("{name} has no device file; modprobe ib_uverbs"));
        }
        if !self.ports.iter().any(Port::is_active) {
            return Some(format!("no port of {name} is active"));
        }
        let node = CString::new(self.node.as_str()).ok()?;
        // SAFETY: a text; nothing is opened.
        let denied = unsafe { libc::access(node.as_ptr(), libc::R_OK | libc::W_OK) } != 0;
        denied.then(|| {
            let why = std::io::Error::last_os_error();
            format!("{}: {why}; the group of that file may use it", self.node)
        })
    }
}

/// All of them, in order of their names.
pub fn devices() -> Vec<Device> {
    devices_in(Path::new(SYSFS))
}

/// Names in a folder, sorted; none if it does not exist.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The text of a file, without space at its ends; empty if it cannot be read.
fn text(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().to_owned()
}

/// What follows the colon, as in `4: ACTIVE`.
fn word(file: &Path) -> String {
    let text = text(file);
    let word = text.split_once(':').map_or("", |(_, word)| word.trim());
    word.to_owned()
}

fn devices_in(class: &Path) -> Vec<Device> {
    let verbs = class.join("infiniband_verbs");
    let nodes: Vec<(String, String)> = names(&verbs)
        .into_iter()
        .filter(|node| node.starts_with("uverbs"))
        .map(|node| (text(&verbs.join(&node).join("ibdev")), node))
        .collect();
    let node = |name: &str| {
        let found = nodes.iter().find(|(device, _)| device == name);
        found.map(|(_, node)| format!("/dev/infiniband/{node}"))
    };
    let all = class.join("infiniband");
    let device = |name: String| {
        let folder = all.join(&name);
        Device {
            driver: driver(&folder),
            node: node(&name).unwrap_or_default(),
            is_iwarp: word(&folder.join("node_type")) == "RNIC",
            ports: ports(&folder),
            name,
        }
    };
    names(&all).into_iter().map(device).collect()
}

/// The driver of a device. Software has no hardware behind it, but names the interface that it uses.
fn driver(device: &Path) -> String {
    let link = fs::read_link(device.join("device/driver")).ok();
    let name = link.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| {
        let is_rxe = device.join("parent").exists();
        if is_rxe { "rdma_rxe" } else { "" }.to_owned()
    })
}

fn ports(device: &Path) -> Vec<Port> {
    let folder = device.join("ports");
    let numbers = names(&folder)
        .into_iter()
        .filter_map(|name| name.parse().ok());
    let port = |number: u8| {
        let folder = folder.join(number.to_string());
        let netdevs = folder.join("gid_attrs/ndevs");
        // An entry that is not in use cannot be read.
        let mut interfaces: Vec<String> = names(&netdevs)
            .into_iter()
            .map(|entry| text(&netdevs.join(entry)))
            .filter(|name| !name.is_empty())
            .collect();
        interfaces.sort();
        interfaces.dedup();
        Port {
            number,
            state: word(&folder.join("state")),
            link_layer: text(&folder.join("link_layer")),
            rate: text(&folder.join("rate")),
            interfaces,
        }
    };
    numbers.map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree like that of the kernel: a card with one port up and one down, and software without a device file.
    fn tree(root: &Path) {
        let put = |file: &str, content: &str| {
            let file = root.join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, content).expect("a file");
        };
        put("infiniband/mlx5_0/node_type", "1: CA\n");
        put("infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        put("infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n");
        put("infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
        put("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth0\n");
        put("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1", "eth0\n");
        put("infiniband/mlx5_0/ports/2/state", "1: DOWN\n");
        put("infiniband/mlx5_0/ports/2/gid_attrs/ndevs/0", "eth0\n");
        put("infiniband_verbs/abi_version", "6\n");
        put("infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
        fs::create_dir_all(root.join("infiniband/mlx5_0/device")).expect("a folder");
        let driver = root.join("infiniband/mlx5_0/device/driver");
        std::os::unix::fs::symlink("../../drivers/mlx5_core", driver).expect("a link");
        put("infiniband/rxe0/parent", "eth1\n");
        put("infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
        put("infiniband/siw0/node_type", "4: RNIC\n");
    }

    #[test]
    fn devices_are_what_the_kernel_says() {
        let root = std::env::temp_dir().join(format!("vipl-rdma-{}", std::process::id()));
        tree(&root);
        let found = devices_in(&root);
        fs::remove_dir_all(&root).expect("removed");
        let [card, software, iwarp] = found.as_slice() else {
            panic!("three devices: {found:?}");
        };
        assert_eq!(card.driver, "mlx5_core");
        assert_eq!(card.node, "/dev/infiniband/uverbs0");
        assert_eq!(card.ports[0].interfaces, ["eth0"]);
        assert_eq!(card.ports[0].rate, "100 Gb/sec (4X EDR)");
        let port = card.port_of("eth0").expect("a port");
        assert_eq!((port.number, port.is_active()), (1, true));
        assert_eq!(card.port_of("eth1"), None);
        assert!(!card.is_software() && software.is_software());
        let why = software.obstacle().expect("no device file");
        assert!(why.contains("modprobe ib_uverbs"), "{why}");
        let why = iwarp.obstacle().expect("another protocol");
        assert!(why.contains("iWARP"), "{why}");
    }

    #[test]
    fn a_host_without_rdma_has_no_device() {
        assert_eq!(devices_in(Path::new("/nonexistent")), []);
    }
}
