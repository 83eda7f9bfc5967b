//! The plug-ins that the suite runs on: one entry each.
//!
//! A provider says how its device is opened and what it can do. What it cannot do gives skips that name
//! the missing capability; nothing is left out silently. The devices of a network interface are run inside
//! network namespaces that are made for each run ([`crate::ground`]).

use std::ffi::OsString;
use std::path::PathBuf;
use std::{fmt, fs};

use vipl_ctest::{Program, source, work_dir};
use vipl_netns::Namespaces;

/// Things that a device may or may not be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities(u16);

/// The level Unreliable.
pub(crate) const U: Abilities = Abilities(1);
/// The level Reliable Delivery.
pub(crate) const RD: Abilities = Abilities(2);
/// The level Reliable Reception.
pub(crate) const RR: Abilities = Abilities(4);
/// RDMA Write.
pub(crate) const WRITE: Abilities = Abilities(8);
/// RDMA Read.
pub(crate) const READ: Abilities = Abilities(16);
/// Autodiscovery.
pub(crate) const DISCOVERY: Abilities = Abilities(32);
/// Opens as VINIC, as the first device of a host does.
pub(crate) const VINIC: Abilities = Abilities(64);
/// Loses or spoils a frame when it is told to, so that what follows from it can be shown.
pub(crate) const LOSS: Abilities = Abilities(128);
/// Fails as a whole.
pub(crate) const NIC_FAILURE: Abilities = Abilities(256);
/// Has no RDMA Read, and says so.
pub(crate) const NO_READ: Abilities = Abilities(512);
/// Takes whatever is sent on Unreliable, however fast. Memory of one host does; a network does not.
pub(crate) const NO_OVERRUN: Abilities = Abilities(1024);
/// Bears it when memory is unmapped while it is registered. A device that pins pages goes on using them.
pub(crate) const UNMAPPING: Abilities = Abilities(2048);
/// Everything.
pub(crate) const ALL: Abilities = Abilities((1 << NAMES.len()) - 1);
/// Nothing in particular.
pub(crate) const NONE: Abilities = Abilities(0);

const NAMES: [(Abilities, &str); 12] = [
    (U, "Unreliable"),
    (RD, "Reliable Delivery"),
    (RR, "Reliable Reception"),
    (WRITE, "RDMA Write"),
    (READ, "RDMA Read"),
    (DISCOVERY, "autodiscovery"),
    (VINIC, "the name VINIC"),
    (LOSS, "loss of a chosen frame"),
    (NIC_FAILURE, "failure of the whole NIC"),
    (NO_READ, "a device without RDMA Read"),
    (NO_OVERRUN, "a network that is never overrun"),
    (
        UNMAPPING,
        "memory that may be unmapped while it is registered",
    ),
];

impl Abilities {
    /// These and those.
    pub(crate) const fn and(self, other: Abilities) -> Abilities {
        Abilities(self.0 | other.0)
    }

    /// Those of `needed` that are not here.
    pub(crate) const fn lacking(self, needed: Abilities) -> Abilities {
        Abilities(needed.0 & !self.0)
    }

    /// All of those are here, too.
    pub(crate) const fn contains(self, other: Abilities) -> bool {
        self.lacking(other).is_empty()
    }

    /// None at all.
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Abilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = NAMES
            .iter()
            .filter(|(one, _)| self.0 & one.0 != 0)
            .map(|(_, name)| *name)
            .collect();
        f.write_str(&names.join(", "))
    }
}

/// A way of moving data that a plug-in can be told to take.
pub(crate) struct Way {
    /// As it stands in the names of runs.
    pub(crate) name: &'static str,
    /// The setting.
    pub(crate) env: &'static [(&'static str, &'static str)],
}

/// One plug-in.
pub(crate) struct Provider {
    /// As it stands in the names of runs.
    pub(crate) name: &'static str,
    /// What the programs open.
    pub(crate) device: &'static str,
    /// The source of a plug-in that does not come with the library, relative to the crate `ctest`: a file in C, or
    /// the example in Rust.
    pub(crate) source: Option<&'static str>,
    /// What the device can do.
    pub(crate) abilities: Abilities,
    /// How it can move data; the first one is the default.
    pub(crate) ways: &'static [Way],
    /// Needs a network interface: runs go into namespaces, and the two processes also on two hosts.
    pub(crate) on_interface: bool,
}

/// Where the kernel describes RDMA devices.
const RDMA: &str = "/sys/class/infiniband";

/// Nothing to choose.
pub(crate) const ONE_WAY: &[Way] = &[Way { name: "", env: &[] }];

/// What the Ethernet device class can do, whatever the card.
const ETHERNET: Abilities = RDMA_NIC.and(UNMAPPING);
/// What an RDMA NIC can do.
const RDMA_NIC: Abilities = U.and(RD).and(RR).and(WRITE).and(READ).and(DISCOVERY);

/// All of them.
pub(crate) const PROVIDERS: &[Provider] = &[
    Provider {
        name: "loopback",
        device: "/dev/via_lo",
        source: None,
        abilities: U
            .and(RD)
            .and(RR)
            .and(WRITE)
            .and(READ)
            .and(DISCOVERY)
            .and(VINIC)
            .and(UNMAPPING),
        ways: &[
            Way {
                name: "single-copy",
                env: &[],
            },
            Way {
                name: "two-copies",
                env: &[("VIPL_SINGLE_COPY", "false")],
            },
        ],
        on_interface: false,
    },
    Provider {
        name: "clan",
        device: "clan:",
        source: None,
        // RDMA Read is what the card did not have: it is turned on here.
        abilities: ETHERNET,
        ways: &[
            Way {
                name: "doorbells",
                env: &[("VIPL_CLAN_RDMA_READ", "true")],
            },
            Way {
                name: "tokens",
                env: &[
                    ("VIPL_CLAN_RDMA_READ", "true"),
                    ("VIPL_CLAN_INLINE_MAX", "0"),
                ],
            },
        ],
        on_interface: false,
    },
    Provider {
        name: "clan-net",
        device: "clan:eth0",
        source: None,
        abilities: ETHERNET,
        ways: &[Way {
            name: "",
            env: &[("VIPL_CLAN_RDMA_READ", "true")],
        }],
        on_interface: true,
    },
    Provider {
        name: "sim",
        device: "sim:",
        source: None,
        abilities: ETHERNET,
        ways: ONE_WAY,
        on_interface: false,
    },
    Provider {
        name: "tulip",
        device: "tulip:eth0",
        source: None,
        abilities: ETHERNET,
        ways: ONE_WAY,
        on_interface: true,
    },
    Provider {
        name: "gnic2",
        device: "gnic2:eth0",
        source: None,
        abilities: ETHERNET,
        ways: ONE_WAY,
        on_interface: true,
    },
    Provider {
        name: "ip",
        device: "ip:eth0",
        source: None,
        abilities: ETHERNET,
        ways: ONE_WAY,
        on_interface: true,
    },
    Provider {
        name: "verbs",
        device: "verbs:",
        source: None,
        abilities: RDMA_NIC,
        ways: ONE_WAY,
        on_interface: false,
    },
    Provider {
        name: "example-c",
        device: "example:",
        source: Some("../examples/plugin.c"),
        // Autodiscovery is the library's.
        abilities: RD.and(NO_READ).and(DISCOVERY).and(UNMAPPING),
        ways: ONE_WAY,
        on_interface: false,
    },
    Provider {
        name: "example-rs",
        device: "example_rs:",
        source: Some("../examples/plugin-rs"),
        // Autodiscovery is the library's.
        abilities: RD.and(NO_READ).and(DISCOVERY).and(UNMAPPING),
        ways: ONE_WAY,
        on_interface: false,
    },
];

/// The folders for `VIPL_PLUGIN_PATH`, of all plug-ins that do not come with the library.
pub(crate) fn plugin_path() -> OsString {
    let dirs: Vec<PathBuf> = PROVIDERS.iter().filter_map(Provider::build).collect();
    std::env::join_paths(dirs).expect("folders without a colon")
}

impl Provider {
    /// Why it cannot be run on this machine by this user.
    pub(crate) fn absent(&self) -> Option<String> {
        if self.name == "verbs" && fs::read_dir(RDMA).map_or(true, |mut all| all.next().is_none()) {
            return Some("no RDMA device; cargo xtask guest has one".to_owned());
        }
        if !self.on_interface {
            return None;
        }
        let why = Namespaces::pair().err()?;
        Some(format!("no network namespaces: {why}"))
    }

    /// On Unreliable it loses what comes faster than it is taken, also between processes of one host: its buffers are
    /// few.
    pub(crate) fn is_overrun_at_home(&self) -> bool {
        self.name == "verbs"
    }

    /// A device of another plug-in.
    pub(crate) fn other_device(&self) -> &'static str {
        let other = PROVIDERS.iter().find(|other| other.name != self.name);
        other.map_or("", |other| other.device)
    }

    /// What programs find in `CTEST_LACKS`: abilities that VIPL has no attribute for.
    pub(crate) fn lacks(&self) -> String {
        self.abilities.lacking(WRITE.and(UNMAPPING)).to_string()
    }

    /// Builds a plug-in that does not come with the library; gives its folder.
    fn build(&self) -> Option<PathBuf> {
        let file = self.source?;
        if !file.ends_with(".c") {
            return Some(vipl_ctest::example_in_rust().to_owned());
        }
        let dir = work_dir().join("conformance").join(self.name);
        let plugin = self.device.trim_end_matches(':');
        if vipl_ctest::are_compiled() {
            return Some(dir);
        }
        Program::new(source(file))
            .flag("-O2")
            .shared()
            .build(&dir.join(format!("libvipl_{plugin}.so")));
        Some(dir)
    }
}
