//! Which RDMA device and port a name means, and why it cannot be used. Nothing is opened for that.

use std::io;

use vipl_plugin_sdk::Status;
use vipl_plugin_sdk::abi::VIPL_LOG_WARN;
use vipl_sys::rdma::{self, Device};

/// A device and one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The kernel's name of the device.
    pub(crate) device: String,
    /// Number of the port.
    pub(crate) port: u8,
    /// The network interface whose addresses it uses, if there is one.
    pub(crate) interface: Option<String>,
    /// The kernel emulates it.
    pub(crate) is_software: bool,
}

/// Why there is none: for the log, and the status for the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    text: String,
    pub(crate) status: Status,
}

impl Refusal {
    fn invalid(text: String) -> Refusal {
        Refusal {
            text,
            status: Status::Invalid,
        }
    }

    /// Another reason.
    pub(crate) fn new(text: String) -> Refusal {
        Refusal {
            text,
            status: Status::Resource,
        }
    }

    /// What the system said when the device of a choice was opened.
    pub(crate) fn of(choice: &Choice, error: &io::Error) -> Refusal {
        let device = &choice.device;
        Refusal::new(match error.kind() {
            io::ErrorKind::Unsupported => format!(
                "libibverbs.so.1 cannot be loaded: {error}; install it with its drivers (Debian: ibverbs-providers; \
                 Fedora: libibverbs)"
            ),
            io::ErrorKind::NotFound => format!(
                "libibverbs has no driver for {device}; install it (Debian: ibverbs-providers; Fedora: libibverbs)"
            ),
            _ => format!("cannot open the RDMA device {device}: {error}"),
        })
    }

    /// Logs it.
    pub(crate) fn report(self) -> Status {
        crate::say(VIPL_LOG_WARN, &self.text);
        self.status
    }
}

impl Choice {
    /// The device and port for the argument of a name: empty, a device, or a network interface.
    pub(crate) fn of(argument: &str) -> Result<Choice, Refusal> {
        Choice::among(&rdma::devices(), argument)
    }

    fn among(all: &[Device], argument: &str) -> Result<Choice, Refusal> {
        if all.is_empty() {
            return Err(Refusal::invalid(
                "this host has no RDMA device: /sys/class/infiniband is empty".to_owned(),
            ));
        }
        if argument.is_empty() {
            return Choice::best(all);
        }
        if let Some(device) = all.iter().find(|device| device.name == argument) {
            return Choice::on(device, None);
        }
        let on = |device: &&Device| device.port_of(argument).is_some();
        match all.iter().find(on) {
            Some(device) => Choice::on(device, Some(argument)),
            None => {
                let names: Vec<&str> = all.iter().map(|device| device.name.as_str()).collect();
                Err(Refusal::invalid(format!(
                    "{argument} is neither an RDMA device nor a network interface with one; RDMA devices: {}",
                    names.join(", ")
                )))
            }
        }
    }

    /// The first one that can be used; hardware before software.
    fn best(all: &[Device]) -> Result<Choice, Refusal> {
        let (software, hardware): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.is_software());
        let mut tried = hardware
            .iter()
            .chain(&software)
            .map(|device| Choice::on(device, None));
        let first = tried.next().expect("there is one");
        match first {
            Ok(choice) => Ok(choice),
            Err(refusal) => tried.find_map(Result::ok).ok_or(refusal),
        }
    }

    fn on(device: &Device, interface: Option<&str>) -> Result<Choice, Refusal> {
        if let Some(text) = device.obstacle() {
            let status = match text.starts_with("/dev/") {
                true => Status::NotPermitted,
                false => Status::Resource,
            };
            return Err(Refusal { text, status });
        }
        let port = match interface {
            Some(interface) => device.port_of(interface),
            None => device.ports.iter().find(|port| port.is_active()),
        };
        let Some(port) = port.filter(|port| port.is_active()) else {
            let port = interface.unwrap_or_default();
            let text = format!("the port of {} at {port} is not active", device.name);
            return Err(Refusal::new(text));
        };
        Ok(Choice {
            device: device.name.clone(),
            port: port.number,
            interface: interface
                .map(str::to_owned)
                .or_else(|| port.interfaces.first().cloned()),
            is_software: device.is_software(),
        })
    }
}

/// The devices that a program of this user can open, hardware first.
pub(crate) fn names() -> Vec<String> {
    let mut usable = rdma::devices();
    usable.retain(|device| device.obstacle().is_none());
    usable.sort_by_key(Device::is_software);
    usable.into_iter().map(|device| device.name).collect()
}

/// The hardware at a network interface, if its link is up. Software is slower than the plug-in `ip` at the same interface.
pub(crate) fn hardware_at(interface: Option<&str>) -> Option<Choice> {
    let choice = Choice::of(interface.unwrap_or_default()).ok()?;
    let fits = interface.is_none() || choice.interface.as_deref() == interface;
    (fits && !choice.is_software).then_some(choice)
}

#[cfg(test)]
mod tests {
    use vipl_sys::rdma::Port;

    use super::*;

    /// `/dev/null` can be used by everybody.
    fn device(name: &str, driver: &str, state: &str, interface: &str) -> Device {
        let port = Port {
            number: 1,
            state: state.to_owned(),
            link_layer: "Ethernet".to_owned(),
            rate: String::new(),
            interfaces: vec![interface.to_owned()],
        };
        Device {
            name: name.to_owned(),
            driver: driver.to_owned(),
            node: "/dev/null".to_owned(),
            is_iwarp: false,
            ports: vec![port],
        }
    }

    fn chosen(all: &[Device], argument: &str) -> String {
        match Choice::among(all, argument) {
            Ok(choice) => format!("{}:{}", choice.device, choice.port),
            Err(refusal) => refusal.text,
        }
    }

    #[test]
    fn hardware_comes_first_and_names_are_devices_or_interfaces() {
        let all = [
            device("rxe0", "rdma_rxe", "ACTIVE", "eth0"),
            device("mlx5_0", "mlx5_core", "DOWN", "eth1"),
            device("mlx5_1", "mlx5_core", "ACTIVE", "eth2"),
        ];
        assert_eq!(chosen(&all, ""), "mlx5_1:1");
        assert_eq!(chosen(&all, "eth0"), "rxe0:1");
        assert_eq!(chosen(&all, "rxe0"), "rxe0:1");
        assert_eq!(chosen(&all, "eth1"), "no port of mlx5_0 is active");
        assert!(chosen(&all, "eth7").contains("RDMA devices: rxe0, mlx5_0, mlx5_1"));
        assert!(chosen(&[], "").contains("no RDMA device"));
        assert_eq!(chosen(&all[..2], ""), "rxe0:1");
        assert!(chosen(&all[1..2], "").contains("no port of mlx5_0"));
    }

    #[test]
    fn what_the_system_says_is_explained() {
        let choice = Choice::among(&[device("rxe0", "", "ACTIVE", "eth0")], "").expect("one");
        let missing = Refusal::of(&choice, &io::ErrorKind::NotFound.into());
        assert!(missing.text.contains("no driver for rxe0"));
        let library = io::Error::new(io::ErrorKind::Unsupported, "no such file");
        assert!(
            Refusal::of(&choice, &library)
                .text
                .contains("ibverbs-providers")
        );
    }
}
